//! The driver of the state machine, and the only module that performs its actions: it starts and
//! signals processes, calls the host, runs timers, writes the files, and feeds back events until
//! supervision has finished.

mod timers;

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::time::Duration;

use futures_util::future::OptionFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::files::{Entry, FileError, Owner, Snapshot, Stage, StateFile};
use super::handle::Controls;
use super::host::{Host, Work};
use super::machine::{
    Action, Adopted, EpochState, Event, Machine, Outcome, RestartMode, Run, Timer,
};
use super::options::{OnRestart, Options, RestartKind};
use super::report::{EXITS, Ended, EpochReport, ExitRecord, Report};
use super::resume;
use crate::process::{ExitReason, Process};

use self::timers::Timers;

/// Interval at which a failed write of the snapshot is retried.
const SNAPSHOT_PERIOD: Duration = Duration::from_secs(1);

/// Supervises processes with `config` until supervision ends. Dropping the future kills the
/// processes. If a stop was requested before, nothing is started, and processes that a former
/// supervisor left are ended.
///
/// Poll it on the thread that lives as long as the program if the host ties processes to their
/// thread, as [`super::EnvoyHost`] does.
///
/// # Errors
/// When the snapshot cannot be read or written; nothing was started then.
pub async fn run<H: Host>(
    host: H,
    config: H::Config,
    options: Options,
    mut controls: Controls<H::Config>,
) -> Result<Ended, FileError> {
    let mut driver = Driver::begin(host, config, options, controls.report.clone()).await?;
    let snapshot = driver.snapshot_content();
    if let Err(error) = driver.snapshot.set(snapshot) {
        // Adopted processes keep serving, for a supervisor that can start.
        driver.detach_all();
        return Err(error);
    }
    if !controls.end() {
        let actions = driver.machine.begin();
        driver.perform(actions);
    }
    // The first start may have failed already.
    driver.process_events();
    let mut period = interval(SNAPSHOT_PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if let Some(outcome) = driver.machine.outcome() {
            return Ok(driver.end(outcome));
        }
        tokio::select! {
            biased;
            event = driver.next() => driver.record(event),
            requests = controls.requests() => driver.queue.extend(requests),
            _ = period.tick(), if driver.snapshot.is_kept() => driver.keep_snapshot(),
        }
        driver.process_events();
    }
}

struct Running<C> {
    process: Box<dyn Process>,
    epoch: u32,
    fingerprint: String,
    since: Instant,
    adopted: bool,
    /// A future that becomes ready when the process serves, or when its last connection has closed.
    awaited: Option<Work<Event<C>>>,
}

impl<C> Running<C> {
    /// The next event of the process. Cancel safe.
    async fn next(&mut self, run: Run) -> Event<C> {
        tokio::select! {
            biased;
            reason = self.process.wait() => Event::Exited(run, reason),
            Some(event) = OptionFuture::from(self.awaited.as_mut()) => {
                self.awaited = None;
                event
            }
        }
    }
}

/// A pending call of the host, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    /// Checks whether and how the running process can be replaced.
    Check,
    /// Checks whether Envoy accepts its first configuration.
    Validate,
    /// A request to the serving process over its admin interface: drain, then quit.
    Admin,
}

struct Driver<H: Host> {
    host: H,
    machine: Machine<H::Config>,
    running: BTreeMap<Run, Running<H::Config>>,
    /// At most one of each kind: a new call replaces the previous one, whose result is obsolete.
    calls: BTreeMap<Call, Work<Event<H::Config>>>,
    timers: Timers,
    queue: VecDeque<Event<H::Config>>,
    state: Report,
    report: watch::Sender<Report>,
    pid_file: StateFile,
    snapshot: StateFile,
    owner: Option<Owner>,
    on_restart: Option<OnRestart>,
    /// Result of the last check, until the next start.
    decided: Option<RestartMode>,
}

impl<H: Host> Driver<H> {
    async fn begin(
        mut host: H,
        config: H::Config,
        options: Options,
        report: watch::Sender<Report>,
    ) -> Result<Self, FileError> {
        let left = match &options.snapshot {
            Some(path) => Snapshot::load(path)?,
            None => None,
        };
        let found = match left {
            Some(snapshot) => resume::adopt(&mut host, snapshot).await,
            None => Vec::new(),
        };
        let adopted = found.iter().map(|(entry, _)| Adopted {
            epoch: entry.epoch,
            current: entry.fingerprint == host.fingerprint(&config),
        });
        let adopted: Vec<Adopted> = adopted.collect();
        let machine = Machine::new(options.policy, config, &adopted);
        // The machine has just created its epochs from them, in this order.
        let runs = machine.epochs().iter().map(|epoch| epoch.run);
        let running = runs.zip(found).map(|(run, (entry, process))| {
            tracing::info!(epoch = entry.epoch, pid = process.pid(), "adopted envoy");
            let running = Running {
                process,
                epoch: entry.epoch,
                fingerprint: entry.fingerprint,
                since: Instant::now(),
                adopted: true,
                awaited: None,
            };
            (run, running)
        });
        Ok(Self {
            running: running.collect(),
            host,
            machine,
            calls: BTreeMap::new(),
            timers: Timers::default(),
            queue: VecDeque::new(),
            state: Report::default(),
            report,
            pid_file: StateFile::new("pid file", options.pid_file),
            snapshot: StateFile::new("snapshot", options.snapshot),
            owner: options.owner,
            on_restart: options.on_restart,
            decided: None,
        })
    }

    /// The next event. Cancel safe.
    async fn next(&mut self) -> Event<H::Config> {
        let lives = self.running.iter_mut();
        let lives = lives.map(|(run, running)| running.next(*run));
        let mut lives: FuturesUnordered<_> = lives.collect();
        let calls = self.calls.iter_mut();
        let calls = calls.map(|(call, work)| work.map(|event| (*call, event)));
        let mut answers: FuturesUnordered<_> = calls.collect();
        let (call, event) = tokio::select! {
            biased;
            Some(event) = lives.next() => return event,
            Some(answered) = answers.next() => answered,
            timer = self.timers.next() => return Event::Elapsed(timer),
        };
        drop(answers);
        self.calls.remove(&call);
        event
    }

    /// Queues the event for the machine, and updates log and report.
    fn record(&mut self, event: Event<H::Config>) {
        match &event {
            Event::Ready(run) => {
                if let Some(running) = self.running.get(run) {
                    let (epoch, pid) = (running.epoch, running.process.pid());
                    tracing::info!(epoch, pid, "envoy serves");
                    self.host.serves(epoch);
                    self.state.refusal = None;
                }
            }
            Event::Idle(run) => tracing::info!(
                epoch = self.running.get(run).map(|running| running.epoch),
                "envoy has no connections left, ending its drain"
            ),
            Event::Checked(_, Ok(mode)) => self.decided = Some(*mode),
            Event::Checked(_, Err(reason)) => {
                tracing::error!(%reason, "the new configuration is refused; envoy runs on with the old one");
                self.state.refuse(reason.clone());
            }
            Event::Validated(_, Err(reason)) => {
                tracing::error!(%reason, "envoy refuses its configuration");
                self.state.refuse(reason.clone());
            }
            Event::Exited(run, reason) => self.exited(*run, reason),
            _ => {}
        }
        self.queue.push_back(event);
    }

    fn exited(&mut self, run: Run, reason: &ExitReason) {
        let Some(running) = self.running.remove(&run) else {
            return;
        };
        let epoch = self.machine.epochs().iter().find(|epoch| epoch.run == run);
        let state = epoch.map_or(EpochState::Killed, |epoch| epoch.state);
        let (epoch, pid) = (running.epoch, running.process.pid());
        let lived = running.since.elapsed();
        let expected = self.machine.stopping() || state.leaves();
        if expected {
            tracing::info!(epoch, pid, ?lived, %reason, "envoy process exited");
        } else {
            let message = running.process.last_message();
            tracing::error!(
                epoch, pid, ?lived, %reason, said = message,
                "envoy process exited unexpectedly"
            );
            // If the configuration is being refused, the reason for that is more specific.
            if state == EpochState::Starting && !self.machine.refused() {
                let message = message
                    .map(|message| format!(": {message}"))
                    .unwrap_or_default();
                self.state
                    .refuse(format!("epoch {epoch} {reason}{message}"));
            }
        }
        while self.state.exits.len() >= EXITS {
            self.state.exits.pop_front();
        }
        self.state.exits.push_back(ExitRecord {
            epoch,
            pid,
            reason: reason.clone(),
            expected,
            lived,
            at: Instant::now(),
        });
    }

    /// Passes all queued events to the machine and performs the resulting actions.
    fn process_events(&mut self) {
        while let Some(event) = self.queue.pop_front() {
            let actions = self.machine.on(event);
            let machine = &self.machine;
            self.timers.retain(|timer| machine.waits_for(timer));
            self.perform(actions);
        }
        self.publish();
        // Immediately: if this program were killed now, a process missing from the snapshot would
        // be orphaned. After the end of supervision the snapshot is final.
        if self.machine.outcome().is_none() {
            self.keep_snapshot();
        }
    }

    fn perform(&mut self, actions: Vec<Action<H::Config>>) {
        for action in actions {
            match action {
                Action::Check(serial, config) => self.check(serial, &config),
                Action::Validate(serial, config) => {
                    let validation = self.host.validate(&config);
                    let answer = validation.map(move |result| Event::Validated(serial, result));
                    self.calls.insert(Call::Validate, answer.boxed());
                }
                Action::Start(run, epoch, config) => self.start(run, epoch, &config),
                Action::Drain(_) => {
                    let drain = self.host.drain();
                    let answer = async {
                        if let Err(error) = drain.await {
                            tracing::warn!(%error, "error while draining Envoy listeners");
                        }
                        // The result does not matter: the drain time runs in any case.
                        pending().await
                    };
                    self.calls.insert(Call::Admin, answer.boxed());
                }
                Action::AwaitIdle(run) => {
                    if let Some(running) = self.running.get_mut(&run) {
                        let idle = self.host.idle().map(move |()| Event::Idle(run));
                        running.awaited = Some(idle.boxed());
                    }
                }
                Action::Quit(run) => self.quit(run),
                Action::Terminate(run) => self.signal(run, "SIGTERM", Signal::TERM),
                Action::Kill(run) => {
                    tracing::warn!("killing envoy");
                    self.signal(run, "SIGKILL", Signal::KILL);
                }
                Action::CleanUp(epoch) => self.host.clean_up(epoch, self.running.is_empty()),
                Action::Arm(timer, wait) => self.arm(timer, wait),
                Action::Spent => {
                    self.state.next_start = None;
                    match self.machine.refused() {
                        true => {
                            tracing::error!(
                                "envoy is not started again, because it refuses its configuration"
                            );
                        }
                        false => tracing::error!(
                            serving = !self.machine.stopping(),
                            "all retries are exhausted"
                        ),
                    }
                }
            }
        }
    }

    fn detach_all(&mut self) {
        for (_, running) in std::mem::take(&mut self.running) {
            running.process.detach();
        }
    }

    fn check(&mut self, serial: u64, config: &H::Config) {
        self.state.next_start = None;
        let newest = self.machine.epochs().last();
        let running = newest.and_then(|newest| self.running.get(&newest.run));
        let identity = running.and_then(|running| running.process.identity());
        let check = self.host.check(config, identity);
        let answer = check.map(move |checked| Event::Checked(serial, checked));
        self.calls.insert(Call::Check, answer.boxed());
    }

    fn start(&mut self, run: Run, epoch: u32, config: &H::Config) {
        self.state.starts += 1;
        self.state.next_start = None;
        // The process to be replaced may have exited since the check.
        let kind = match (self.decided.take(), epoch) {
            (Some(RestartMode::Hot), 1..) => RestartKind::Hot,
            (Some(RestartMode::Cold), 0) => RestartKind::Cold,
            _ => RestartKind::Crash,
        };
        match self.host.start(epoch, config) {
            Ok(process) => {
                tracing::info!(epoch, pid = process.pid(), "started envoy");
                let first = self.running.is_empty() && self.state.exits.is_empty();
                if let Some(on_restart) = self.on_restart.as_mut().filter(|_| !first) {
                    on_restart(kind);
                }
                let ready = self.host.ready(epoch).map(move |()| Event::Ready(run));
                let running = Running {
                    process,
                    epoch,
                    fingerprint: self.host.fingerprint(config),
                    since: Instant::now(),
                    adopted: false,
                    awaited: Some(ready.boxed()),
                };
                self.running.insert(run, running);
            }
            Err(error) => {
                tracing::error!(epoch, %error, "envoy could not be started");
                self.state.refuse(error);
                self.queue.push_back(Event::SpawnFailed(run));
            }
        }
    }

    fn quit(&mut self, run: Run) {
        // Its remaining connections do not matter any more.
        if let Some(running) = self.running.get_mut(&run) {
            running.awaited = None;
        }
        let quit = self.host.quit();
        let answer = async move {
            let Err(error) = quit.await else {
                return pending().await;
            };
            tracing::warn!(%error, "envoy did not confirm that it quits, sending SIGTERM");
            Event::QuitFailed(run)
        };
        self.calls.insert(Call::Admin, answer.boxed());
    }

    fn signal(&mut self, run: Run, name: &'static str, signal: Signal) {
        if let Some(running) = self.running.get_mut(&run) {
            tracing::debug!(epoch = running.epoch, signal = name, "envoy");
            if let Err(error) = running.process.signal(signal) {
                tracing::warn!(%error, signal = name, "envoy could not be signalled");
            }
        }
    }

    fn arm(&mut self, timer: Timer, wait: Duration) {
        if timer == Timer::Grace {
            let seconds = wait.as_secs();
            tracing::info!(seconds, "waiting before terminating dataplane proxy");
        }
        if matches!(timer, Timer::Crash | Timer::Retry) {
            tracing::info!(?wait, "waiting before envoy is started again");
            self.state.next_start = Some(Instant::now() + wait);
        }
        self.timers.arm(timer, wait);
    }

    fn publish(&mut self) {
        let running = &self.running;
        let epochs = self.machine.epochs().iter().filter_map(|epoch| {
            let running = running.get(&epoch.run)?;
            Some(EpochReport {
                epoch: epoch.epoch,
                pid: running.process.pid(),
                state: epoch.state,
                since: running.since,
                adopted: running.adopted,
            })
        });
        self.state.epochs = epochs.collect();
        self.state.obstacle = self.host.obstacle();
        self.state.stopping = self.machine.stopping();
        match self.state.current() {
            Some(current) => self
                .pid_file
                .keep(format!("{}\n", current.pid).into_bytes()),
            // The process id may soon be reused, unless the process outlives supervision.
            None if self.machine.outcome().is_none() => self.pid_file.remove(),
            None => {}
        }
        self.report.send_if_modified(|report| {
            let changed = *report != self.state;
            if changed {
                report.clone_from(&self.state);
            }
            changed
        });
    }

    fn keep_snapshot(&mut self) {
        if self.snapshot.is_kept() {
            let content = self.snapshot_content();
            self.snapshot.keep(content);
        }
    }

    fn snapshot_content(&self) -> Vec<u8> {
        let entries = self.machine.epochs().iter().filter_map(|epoch| {
            let running = self.running.get(&epoch.run)?;
            Some(Entry {
                epoch: epoch.epoch,
                fingerprint: running.fingerprint.clone(),
                stage: match epoch.state {
                    EpochState::Starting => Stage::Starting,
                    state if state.serves() => Stage::Serving,
                    _ => Stage::Leaving,
                },
                identity: running.process.identity()?,
            })
        });
        let entries = entries.collect();
        let snapshot = Snapshot::new(self.owner.clone(), self.host.base_id(), entries);
        // A snapshot consists of numbers and short texts, so it can always be encoded.
        serde_json::to_vec_pretty(&snapshot).unwrap_or_default()
    }

    fn end(mut self, outcome: Outcome) -> Ended {
        self.publish();
        if outcome == Outcome::Released {
            self.keep_snapshot();
            self.detach_all();
        } else {
            self.pid_file.remove();
            self.snapshot.remove();
        }
        Ended {
            outcome,
            last: self.state.exits.back().cloned(),
            refused: outcome == Outcome::Spent && self.machine.refused(),
            refusal: self.state.refusal.take(),
        }
    }
}
