//! The one place that performs what the machine decides: it starts and signals processes, makes
//! calls, waits, writes the files, and feeds back what happens until the machine has finished.

mod timers;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::files::{Entry, FileError, Owner, Snapshot, Stage, StateFile};
use super::handle::{Controls, Requests, Shutdown};
use super::host::{Host, Process, Work};
use super::machine::{
    Action, Adopted, EpochState, Event, Exit, Machine, Outcome, RestartMode, Run, Start, Timer,
};
use super::options::{Ended, OnRestart, Options, RestartKind};
use super::report::{EXITS, EpochReport, ExitRecord, Report};
use super::resume;
use crate::process::ExitReason;

use self::timers::Timers;

/// How often is looked whether the snapshot still has to be written.
const SNAPSHOT_PERIOD: Duration = Duration::from_secs(1);

/// Supervises processes with `config` until that ends. Dropping the future ends the processes. When
/// an end was asked for already, nothing is started, and what a former supervisor left is ended.
///
/// Poll it on the thread that lives as long as the program when the host ties processes to their
/// thread, as [`super::EnvoyHost`] does.
///
/// # Errors
/// When the snapshot cannot be read or written; nothing was started then.
pub async fn run<H: Host>(
    host: H,
    config: H::Config,
    options: Options,
    controls: Controls<H::Config>,
) -> Result<Ended, FileError> {
    let Controls {
        mut requests,
        report,
    } = controls;
    let mut driver = Driver::begin(host, config, options, report).await?;
    if let Err(error) = driver.write_snapshot() {
        // What was adopted serves on, for a supervisor that can begin.
        driver.detach_all();
        return Err(error);
    }
    if requests.borrow().shutdown == Shutdown::No {
        let actions = driver.machine.begin();
        driver.perform(actions);
    }
    driver.publish();
    let mut applied = Applied::default();
    let mut period = interval(SNAPSHOT_PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while driver.machine.outcome().is_none() {
        tokio::select! {
            biased;
            happening = driver.next() => driver.happened(happening),
            Ok(()) = requests.changed() => {
                let requests = requests.borrow_and_update().clone();
                driver.queue.extend(applied.events(requests));
            }
            _ = period.tick(), if driver.snapshot.is_some() => driver.keep_snapshot(),
        }
        driver.settle();
    }
    Ok(driver.end())
}

/// Which requests the machine has got already.
#[derive(Default)]
struct Applied {
    updates: u64,
    restarts: u64,
}

impl Applied {
    fn events<C>(&mut self, requests: Requests<C>) -> Vec<Event<C>> {
        let mut events = Vec::new();
        if requests.updates != std::mem::replace(&mut self.updates, requests.updates) {
            events.extend(requests.config.map(Event::Update));
        }
        if requests.restarts != std::mem::replace(&mut self.restarts, requests.restarts) {
            events.push(Event::Restart);
        }
        match requests.shutdown {
            Shutdown::No => {}
            Shutdown::Release => events.push(Event::Release),
            Shutdown::Stop => events.push(Event::Stop),
            Shutdown::Kill => events.push(Event::Kill),
        }
        events
    }
}

struct Running<H: Host> {
    process: H::Process,
    epoch: u32,
    fingerprint: String,
    since: Instant,
    adopted: bool,
    probe: Option<Work<()>>,
    idle: Option<Work<()>>,
}

/// A call of the host that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    /// Whether and how what runs can be replaced.
    Check,
    /// Whether Envoy accepts its first configuration.
    Validate,
    /// What the process that serves is asked over its admin interface: to drain, then to quit.
    Admin,
}

enum Happening<C> {
    Event(Event<C>),
    Exited(Run, ExitReason),
    Refused(u64, String),
    Validated(u64, Result<(), String>),
}

/// What happens next to a process. Cancel safe.
async fn next_of<H: Host>((run, running): (&Run, &mut Running<H>)) -> Happening<H::Config> {
    tokio::select! {
        biased;
        reason = running.process.wait() => Happening::Exited(*run, reason),
        Some(()) = OptionFuture::from(running.probe.as_mut()) => {
            Happening::Event(Event::Ready(*run))
        }
        Some(()) = OptionFuture::from(running.idle.as_mut()) => {
            Happening::Event(Event::Idle(*run))
        }
    }
}

struct Driver<H: Host> {
    host: H,
    machine: Machine<H::Config>,
    running: BTreeMap<Run, Running<H>>,
    /// At most one of each kind: a new one takes the place of the one before, whose answer would
    /// mean nothing any more.
    calls: BTreeMap<Call, Work<Option<Happening<H::Config>>>>,
    timers: Timers,
    queue: VecDeque<Event<H::Config>>,
    state: Report,
    report: watch::Sender<Report>,
    pid_file: Option<StateFile>,
    snapshot: Option<StateFile>,
    owner: Option<Owner>,
    on_restart: Option<OnRestart>,
    /// Whether a process has run already, so that the next one is a restart.
    has_run: bool,
    /// What the last check decided, until the next start.
    decided: Option<RestartMode>,
}

type Actions<H> = Vec<Action<<H as Host>::Config>>;

impl<H: Host> Driver<H> {
    async fn begin(
        mut host: H,
        config: H::Config,
        options: Options,
        report: watch::Sender<Report>,
    ) -> Result<Self, FileError> {
        let wanted = host.fingerprint(&config);
        let found = match &options.snapshot {
            Some(path) => resume::adopt(&mut host, Snapshot::load(path)?).await,
            None => Vec::new(),
        };
        let adopted: Vec<Adopted> = found
            .iter()
            .map(|(entry, _)| Adopted {
                epoch: entry.epoch,
                current: entry.fingerprint == wanted,
            })
            .collect();
        let has_run = !found.is_empty();
        let machine = Machine::new(options.policy, config, &adopted);
        // The machine has just made epochs of them, in this order.
        let runs: Vec<Run> = machine.epochs().iter().map(|epoch| epoch.run).collect();
        let running = runs.into_iter().zip(found).map(|(run, (entry, process))| {
            tracing::info!(epoch = entry.epoch, pid = process.pid(), "adopted envoy");
            let running = Running {
                process,
                epoch: entry.epoch,
                fingerprint: entry.fingerprint,
                since: Instant::now(),
                adopted: true,
                probe: None,
                idle: None,
            };
            (run, running)
        });
        let driver = Self {
            running: running.collect(),
            host,
            machine,
            calls: BTreeMap::new(),
            timers: Timers::default(),
            queue: VecDeque::new(),
            state: Report::default(),
            report,
            pid_file: options
                .pid_file
                .map(|path| StateFile::new("pid file", path)),
            snapshot: options
                .snapshot
                .map(|path| StateFile::new("snapshot", path)),
            owner: options.owner,
            on_restart: options.on_restart,
            has_run,
            decided: None,
        };
        Ok(driver)
    }

    /// What happens next. Cancel safe.
    async fn next(&mut self) -> Happening<H::Config> {
        loop {
            let (call, answer) = {
                let mut lives: FuturesUnordered<_> = self.running.iter_mut().map(next_of).collect();
                let calls = self.calls.iter_mut();
                let mut answers: FuturesUnordered<_> = calls
                    .map(|(call, work)| async { (*call, work.await) })
                    .collect();
                tokio::select! {
                    biased;
                    Some(happening) = lives.next() => return happening,
                    Some(answered) = answers.next() => answered,
                    timer = self.timers.next() => return Happening::Event(Event::Elapsed(timer)),
                }
            };
            self.calls.remove(&call);
            // Nothing follows from some.
            if let Some(happening) = answer {
                return happening;
            }
        }
    }

    fn happened(&mut self, happening: Happening<H::Config>) {
        match happening {
            Happening::Event(event) => {
                if let Event::Ready(run) = event
                    && let Some(running) = self.running.get_mut(&run)
                {
                    running.probe = None;
                    tracing::info!(
                        epoch = running.epoch,
                        pid = running.process.pid(),
                        "envoy serves"
                    );
                    self.host.serves(running.epoch);
                    self.state.refusal = None;
                }
                if let Event::Idle(run) = event
                    && let Some(running) = self.running.get_mut(&run)
                {
                    running.idle = None;
                    tracing::info!(
                        epoch = running.epoch,
                        "nothing is connected to envoy any more, so that its drain ends now"
                    );
                }
                if let Event::Checked(_, Some(mode)) = event {
                    self.decided = Some(mode);
                }
                self.queue.push_back(event);
            }
            Happening::Exited(run, reason) => self.exited(run, reason),
            Happening::Refused(serial, reason) => {
                tracing::error!(%reason, "the new configuration is refused; envoy runs on with the old one");
                self.state.refuse(reason);
                self.queue.push_back(Event::Checked(serial, None));
            }
            Happening::Validated(serial, result) => {
                self.queue
                    .push_back(Event::Validated(serial, result.is_ok()));
                if let Err(reason) = result {
                    tracing::error!(%reason, "envoy refuses its configuration");
                    self.state.refuse(reason);
                }
            }
        }
    }

    fn exited(&mut self, run: Run, reason: ExitReason) {
        let Some(running) = self.running.remove(&run) else {
            return;
        };
        let epoch = self.machine.epochs().iter().find(|epoch| epoch.run == run);
        let state = epoch.map_or(EpochState::Killed, |epoch| epoch.state);
        let record = ExitRecord {
            epoch: running.epoch,
            pid: running.process.pid(),
            reason,
            expected: self.machine.stopping() || state.leaves(),
            lived: running.since.elapsed(),
            at: Instant::now(),
        };
        let (epoch, pid, lived) = (record.epoch, record.pid, record.lived);
        if record.expected {
            tracing::info!(epoch, pid, ?lived, reason = %record.reason, "envoy process exited");
        } else {
            let words = running.process.last_words();
            tracing::error!(
                epoch, pid, ?lived, reason = %record.reason, said = words,
                "envoy process exited unexpectedly"
            );
            // What it says of a configuration that it refuses says more.
            if state == EpochState::Starting && !self.machine.refused() {
                self.state.refuse(match words {
                    Some(words) => format!("epoch {epoch} {}: {words}", record.reason),
                    None => format!("epoch {epoch} {}", record.reason),
                });
            }
        }
        let exit = match &record.reason {
            ExitReason::Code(0) => Exit::Clean,
            ExitReason::Code(_) | ExitReason::Unobserved(_) => Exit::Failed,
            ExitReason::Signal(_) => Exit::Killed,
        };
        self.queue.push_back(Event::Exited(run, exit));
        while self.state.exits.len() >= EXITS {
            self.state.exits.pop_front();
        }
        self.state.exits.push_back(record);
    }

    /// Lets the machine have everything that has happened.
    fn settle(&mut self) {
        while let Some(event) = self.queue.pop_front() {
            let actions = self.machine.on(event);
            self.perform(actions);
        }
        let machine = &self.machine;
        self.timers.retain(|timer| machine.waits_for(timer));
        self.publish();
        // At once: a process that is not in it would be nobody's if this program were killed now.
        // What is let go of stays as it is.
        if self.machine.outcome().is_none() {
            self.keep_snapshot();
        }
    }

    fn perform(&mut self, actions: Actions<H>) {
        for action in actions {
            match action {
                Action::Check(serial, config) => self.check(serial, &config),
                Action::Validate(serial, config) => {
                    let validation = self.host.validate(&config);
                    let call = async move { Some(Happening::Validated(serial, validation.await)) };
                    self.calls.insert(Call::Validate, Box::pin(call));
                }
                Action::Start(start) => self.start(&start),
                Action::Drain(_) => {
                    let drain = self.host.drain();
                    let call = async move {
                        if let Err(error) = drain.await {
                            tracing::warn!(%error, "error while draining Envoy listeners");
                        }
                        // Nothing follows from it: the time to drain runs on.
                        None
                    };
                    self.calls.insert(Call::Admin, Box::pin(call));
                }
                Action::AwaitIdle(run) => {
                    if let Some(running) = self.running.get_mut(&run) {
                        running.idle = Some(self.host.idle());
                    }
                }
                Action::Quit(run) => self.quit(run),
                Action::Terminate(run) => self.signal(run, "SIGTERM", H::Process::terminate),
                Action::Kill(run) => {
                    tracing::warn!("killing envoy");
                    self.signal(run, "SIGKILL", H::Process::kill);
                }
                Action::CleanUp(epoch) => self.host.clean_up(epoch, self.running.is_empty()),
                Action::Arm(timer, wait) => self.arm(timer, wait),
                Action::Spent { serving } => {
                    self.state.next_start = None;
                    if self.machine.refused() {
                        tracing::error!("envoy would refuse its configuration again and again");
                    } else {
                        tracing::error!(serving, "all retries are spent");
                    }
                }
                Action::Detach => {
                    self.keep_snapshot();
                    self.detach_all();
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
        let serving = self.machine.epochs().last();
        let running = serving
            .and_then(|epoch| self.running.get(&epoch.run))
            .and_then(|running| running.process.identity());
        let check = self.host.check(config, running);
        let call = async move {
            Some(match check.await {
                Ok(mode) => Happening::Event(Event::Checked(serial, Some(mode))),
                Err(reason) => Happening::Refused(serial, reason),
            })
        };
        self.calls.insert(Call::Check, Box::pin(call));
    }

    fn start(&mut self, start: &Start<H::Config>) {
        self.state.starts += 1;
        self.state.next_start = None;
        let epoch = start.epoch;
        // Whoever was to be replaced may have ended by itself since the check.
        let kind = match (self.decided.take(), epoch) {
            (Some(RestartMode::Hot), 1..) => RestartKind::Hot,
            (Some(RestartMode::Cold), 0) => RestartKind::Cold,
            _ => RestartKind::Crash,
        };
        match self.host.start(start) {
            Ok(process) => {
                tracing::info!(epoch, pid = process.pid(), "started envoy");
                if std::mem::replace(&mut self.has_run, true)
                    && let Some(on_restart) = &mut self.on_restart
                {
                    on_restart(kind);
                }
                let running = Running {
                    process,
                    epoch,
                    fingerprint: self.host.fingerprint(&start.config),
                    since: Instant::now(),
                    adopted: false,
                    probe: Some(self.host.ready(epoch)),
                    idle: None,
                };
                self.running.insert(start.run, running);
            }
            Err(error) => {
                tracing::error!(epoch, %error, "envoy could not be started");
                self.state.refuse(error);
                self.queue.push_back(Event::SpawnFailed(start.run));
            }
        }
    }

    fn quit(&mut self, run: Run) {
        // Whether somebody is connected does not matter any more.
        if let Some(running) = self.running.get_mut(&run) {
            running.idle = None;
        }
        let quit = self.host.quit();
        let call = async move {
            let error = quit.await.err()?;
            tracing::warn!(%error, "envoy did not confirm that it quits, sending SIGTERM");
            Some(Happening::Event(Event::QuitFailed(run)))
        };
        self.calls.insert(Call::Admin, Box::pin(call));
    }

    fn signal(
        &mut self,
        run: Run,
        name: &'static str,
        send: fn(&mut H::Process) -> std::io::Result<()>,
    ) {
        if let Some(running) = self.running.get_mut(&run) {
            tracing::debug!(epoch = running.epoch, signal = name, "envoy");
            if let Err(error) = send(&mut running.process) {
                tracing::warn!(%error, signal = name, "envoy could not be signalled");
            }
        }
    }

    fn arm(&mut self, timer: Timer, wait: Duration) {
        if timer == Timer::Grace {
            let seconds = wait.as_secs();
            tracing::info!(seconds, "waiting before terminating dataplane proxy");
        }
        if matches!(timer, Timer::Crash(_) | Timer::Retry(_)) {
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
        if let Some(file) = &mut self.pid_file {
            match self.state.current() {
                Some(current) => file.keep(format!("{}\n", current.pid).into_bytes()),
                // The number may soon be another's, unless the process lives on.
                None if self.machine.outcome().is_none() => file.remove(),
                None => {}
            }
        }
        self.report.send_if_modified(|report| {
            let changed = *report != self.state;
            if changed {
                report.clone_from(&self.state);
            }
            changed
        });
    }

    fn write_snapshot(&mut self) -> Result<(), FileError> {
        let content = self.snapshot_content();
        match &mut self.snapshot {
            Some(file) => file.set(content),
            None => Ok(()),
        }
    }

    fn keep_snapshot(&mut self) {
        if self.snapshot.is_none() {
            return;
        }
        let content = self.snapshot_content();
        if let Some(file) = &mut self.snapshot {
            file.keep(content);
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
        // A snapshot is numbers and short texts, which always have a form.
        serde_json::to_vec_pretty(&snapshot).unwrap_or_default()
    }

    fn end(mut self) -> Ended {
        self.publish();
        let outcome = self
            .machine
            .outcome()
            .unwrap_or(Outcome::Stopped { forced: false });
        if outcome != Outcome::Released {
            self.pid_file.iter_mut().for_each(StateFile::remove);
            self.snapshot.iter_mut().for_each(StateFile::remove);
        }
        Ended {
            outcome,
            last: self.state.exits.back().cloned(),
            refused: outcome == Outcome::Spent && self.machine.refused(),
            refusal: self.state.refusal.take(),
        }
    }
}
