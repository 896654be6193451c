//! The supervisor's state machine. Pure: events in, actions out; no IO or clock, and deterministic.
//!
//! One configuration is wanted. The newest epoch runs it, or is being replaced by one that will.
//! Two kinds of failure are distinguished. If no other process serves, a process that ends has
//! crashed and is started again after [`crash_wait`]. If an older epoch serves, a replacement that
//! ends before it took over has failed and is retried after [`retry_wait`], which affects no
//! client. Each kind has [`RETRIES`] retries.
//!
//! The end of every process is bounded in time: SIGTERM, a wait, SIGKILL, a last wait.

mod events;
#[cfg(test)]
mod generated;
#[cfg(test)]
mod tests;

pub(super) use events::{Action, Adopted, Event, RestartMode, Run, Timer};
pub use events::{EpochState, Outcome};

use std::time::Duration;

use super::options::{
    ABORT_WAIT, HEALTHY_AFTER, Policy, REAP_WAIT, RETRIES, START_WITHIN, crash_wait, retry_wait,
};
use crate::process::ExitReason;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// All processes are being ended; contains the outcome so far.
    Stopping(Outcome),
    Finished(Outcome),
}

/// Whether the connections of a draining process are watched. The drain ends with the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdleWatch {
    /// Not wanted, or not yet.
    Off,
    /// Wanted as soon as only one process is left.
    Due,
    /// Watching the connections of this process.
    On(Run),
}

/// Whether Envoy accepts a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Validation {
    /// Not known.
    Unknown,
    /// The validation is running.
    Running,
    /// Envoy accepts it, or only running it will show.
    Passed,
    /// Envoy rejects it.
    Refused,
}

/// The configuration that should run.
#[derive(Debug)]
struct Wanted<D> {
    serial: u64,
    config: D,
    /// Failures since it was requested.
    failures: u32,
    /// Whether a wait must end before the next attempt.
    retry_waits: bool,
    validation: Validation,
}

/// A process and its number in a hot restart family.
#[derive(Debug)]
pub(super) struct Epoch<D> {
    /// Identifies its start.
    pub(super) run: Run,
    /// Its epoch number.
    pub(super) epoch: u32,
    /// Its state.
    pub(super) state: EpochState,
    /// Serial of the configuration that it was started with; 0 for one that a former supervisor
    /// started with another configuration.
    serial: u64,
    /// Its configuration, if known.
    config: Option<D>,
    /// Whether it drains because another process took over its sockets, not for a cold restart.
    handed_over: bool,
    /// Whether its clients were told before the stop that it is about to end.
    drained: bool,
    /// Whether it is old enough for earlier failures to be forgotten.
    aged: bool,
    /// Whether SIGKILL did not end it in time.
    lost: bool,
}

/// State of the supervisor.
#[derive(Debug)]
pub(super) struct Machine<D> {
    policy: Policy,
    phase: Phase,
    wanted: Wanted<D>,
    /// The last configuration that became ready, with its serial; used to roll back.
    last_ready: Option<(u64, D)>,
    /// Running epochs in ascending order.
    epochs: Vec<Epoch<D>>,
    /// Starts since a process was last healthy.
    starts: u32,
    /// Crashes since a process was last healthy.
    crashes: u32,
    /// Whether a wait must end before the next start.
    crash_waits: bool,
    /// Serial of the configuration that is being checked, if any.
    checking: Option<u64>,
    idle: IdleWatch,
    last_run: Run,
    last_serial: u64,
    /// Actions for the current event.
    actions: Vec<Action<D>>,
}

impl<D: Clone + PartialEq> Machine<D> {
    /// A supervisor that wants `config` and has `adopted` processes, in order of their epochs. The
    /// last one serves, the others have handed over.
    pub(super) fn new(policy: Policy, config: D, adopted: &[Adopted]) -> Self {
        let mut machine = Self {
            policy,
            phase: Phase::Running,
            wanted: Wanted {
                serial: 1,
                config,
                failures: 0,
                retry_waits: false,
                validation: Validation::Unknown,
            },
            last_ready: None,
            epochs: Vec::new(),
            starts: 0,
            crashes: 0,
            crash_waits: false,
            checking: None,
            idle: IdleWatch::Off,
            last_run: 0,
            last_serial: 1,
            actions: Vec::new(),
        };
        if let Some((serving, older)) = adopted.split_last() {
            for one in older {
                let run = machine.adopt(*one, EpochState::Draining);
                machine.arm(Timer::Over(run, EpochState::Draining), policy.hand_over);
            }
            let run = machine.adopt(*serving, EpochState::Serving);
            machine.arm(Timer::Healthy(run), HEALTHY_AFTER);
        }
        machine
    }

    /// The first actions. Skip this call if the first event ends supervision, so that nothing is
    /// started.
    pub(super) fn begin(&mut self) -> Vec<Action<D>> {
        self.reconcile();
        std::mem::take(&mut self.actions)
    }

    /// Running epochs, newest last.
    pub(super) fn epochs(&self) -> &[Epoch<D>] {
        &self.epochs
    }

    /// How supervision ended; `None` while it is active.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        match self.phase {
            Phase::Finished(outcome) => Some(outcome),
            Phase::Running | Phase::Stopping(_) => None,
        }
    }

    /// Whether supervision is ending or has ended.
    pub(super) fn stopping(&self) -> bool {
        self.phase != Phase::Running
    }

    /// Whether Envoy rejects the wanted configuration, and there is no other one to run.
    pub(super) fn refused(&self) -> bool {
        self.wanted.validation == Validation::Refused
    }

    /// Handles an event and returns actions to be performed in order. Events that are irrelevant in
    /// the current state are ignored; after the end, all events are.
    pub(super) fn on(&mut self, event: Event<D>) -> Vec<Action<D>> {
        if self.outcome().is_some() {
            return Vec::new();
        }
        match event {
            Event::Update(config) => self.update(config),
            Event::Restart => self.restart(),
            Event::Drained => self.drained(),
            Event::Stop => self.stop(Outcome::Stopped { forced: false }),
            Event::Kill => self.kill_all(),
            Event::Release => self.release(),
            Event::Checked(serial, checked) => self.checked(serial, checked.ok()),
            Event::SpawnFailed(run) => self.ended(run, None),
            Event::Ready(run) => self.ready(run),
            Event::Exited(run, reason) => self.ended(run, Some(&reason)),
            Event::Validated(serial, result) => self.validated(serial, result.is_ok()),
            Event::QuitFailed(run) => {
                // It is still in this state, so only SIGTERM is missing.
                if self.state(run) == Some(EpochState::Stopping) {
                    self.actions.push(Action::Terminate(run));
                }
            }
            Event::Idle(run) => self.connections_ended(run),
            Event::Elapsed(timer) => self.elapsed(timer),
        }
        self.reconcile();
        std::mem::take(&mut self.actions)
    }

    // Configuration changes.

    fn update(&mut self, config: D) {
        if config == self.wanted.config {
            return;
        }
        // The serving process already runs it: nothing has to be started.
        let running = self
            .serving()
            .filter(|epoch| epoch.config.as_ref() == Some(&config))
            .map(|epoch| epoch.serial);
        self.want(config, running);
    }

    fn restart(&mut self) {
        // A pending replacement of the serving process, which has not been started yet, fulfils the
        // request.
        let wanted = self.wanted.serial;
        let runs = self.epochs.iter().any(|epoch| epoch.serial == wanted);
        if !runs && self.wanted.failures == 0 && self.serving().is_some() {
            return;
        }
        // So does a process that is only starting.
        let newest = self.epochs.last().map(|newest| newest.serial);
        if self.starting().is_none() || newest != Some(wanted) {
            self.want(self.wanted.config.clone(), None);
        }
    }

    /// Sets the wanted configuration. Failures of earlier ones do not count.
    fn want(&mut self, config: D, running: Option<u64>) {
        let validation = running.map_or(Validation::Unknown, |_| Validation::Passed);
        let serial = running.unwrap_or_else(|| {
            self.last_serial += 1;
            self.last_serial
        });
        self.wanted = Wanted {
            serial,
            config,
            failures: 0,
            retry_waits: false,
            validation,
        };
        self.checking = None;
        self.crash_waits = false;
        self.forget_failures();
    }

    /// Wants the configuration of the serving process again, instead of its failed replacement.
    fn keep_serving(&mut self) {
        let serving = self.serving();
        if let Some((serial, config)) = serving.map(|epoch| (epoch.serial, epoch.config.clone())) {
            self.wanted.serial = serial;
            self.wanted.config = config.unwrap_or_else(|| self.wanted.config.clone());
        }
        self.wanted.failures = 0;
    }

    // Starts and replacements.

    /// Takes the next step towards the newest epoch running the wanted configuration.
    fn reconcile(&mut self) {
        self.watch_connections();
        if self.phase != Phase::Running {
            return;
        }
        let serving = self.serving().is_some();
        let Some(newest) = self.epochs.last() else {
            return self.start_unless_paused();
        };
        let outdated = newest.serial != self.wanted.serial;
        match newest.state {
            EpochState::Starting if outdated && self.wanted.failures == 0 => {
                self.terminate(newest.run);
            }
            EpochState::Serving | EpochState::Healthy if outdated => self.replace(),
            EpochState::Draining if newest.handed_over && !serving => self.start_unless_paused(),
            EpochState::Killed if newest.lost && !serving => {
                self.phase = Phase::Finished(Outcome::Unkillable);
            }
            // Either nothing is to be done, or a process is ending, which takes a bounded time.
            _ => {}
        }
    }

    fn replace(&mut self) {
        // Envoy would terminate its parent's parent at once, with the connections that drain there.
        let hand_over = self.epochs.iter().filter(|epoch| !epoch.lost).count() > 1;
        if !hand_over && !self.wanted.retry_waits && self.checking.is_none() {
            let Wanted { serial, config, .. } = &self.wanted;
            self.checking = Some(*serial);
            self.actions.push(Action::Check(*serial, config.clone()));
        }
    }

    fn checked(&mut self, serial: u64, mode: Option<RestartMode>) {
        if self.checking != Some(serial) || self.phase != Phase::Running {
            return;
        }
        self.checking = None;
        if mode.is_some() {
            self.wanted.validation = Validation::Passed;
        }
        let Some(serving) = self.serving().map(|epoch| epoch.run) else {
            // The serving process has ended, so nothing has to be taken over.
            return;
        };
        match mode {
            None => self.replacement_failed(),
            Some(RestartMode::Hot) => self.start(),
            Some(RestartMode::Cold) => self.end_for_cold_restart(serving),
            Some(RestartMode::Deferred) => self.keep_serving(),
        }
    }

    /// Ends a process for a cold restart, after a drain if the policy has one.
    fn end_for_cold_restart(&mut self, run: Run) {
        let grace = self.policy.cold_restart_grace;
        if grace.is_zero() {
            return self.terminate(run);
        }
        self.set(run, EpochState::Draining);
        self.actions.push(Action::Drain(run));
        self.arm(Timer::Over(run, EpochState::Draining), grace);
        // The new process follows at once, so there is no minimum time for clients to learn about
        // the end.
        self.idle = IdleWatch::Due;
    }

    fn start_unless_paused(&mut self) {
        if self.refused() {
            self.end_as_spent();
        } else if !self.crash_waits {
            self.start();
        }
    }

    fn start(&mut self) {
        let serving = self.serving().is_some();
        // If no process serves, the last ready configuration is preferred to one that has failed.
        let (serial, config) = match &self.last_ready {
            Some(ready) if !serving && self.wanted.failures > 0 => ready.clone(),
            _ => (self.wanted.serial, self.wanted.config.clone()),
        };
        let newest = self.epochs.last();
        let epoch = newest.map_or(0, |newest| newest.epoch.wrapping_add(1));
        self.starts = self.starts.saturating_add(1);
        let run = self.add(epoch, EpochState::Starting, serial, Some(config.clone()));
        self.actions.push(Action::Start(run, epoch, config));
        self.arm(Timer::Healthy(run), HEALTHY_AFTER);
        if serving {
            self.arm(Timer::Over(run, EpochState::Starting), START_WITHIN);
        }
    }

    fn adopt(&mut self, adopted: Adopted, state: EpochState) -> Run {
        let (mut serial, mut config) = (0, None);
        if adopted.current {
            self.wanted.validation = Validation::Passed;
            serial = self.wanted.serial;
            config = Some(self.wanted.config.clone());
        }
        self.add(adopted.epoch, state, serial, config)
    }

    fn add(&mut self, epoch: u32, state: EpochState, serial: u64, config: Option<D>) -> Run {
        self.last_run += 1;
        self.epochs.push(Epoch {
            run: self.last_run,
            epoch,
            state,
            serial,
            config,
            handed_over: state == EpochState::Draining,
            drained: false,
            aged: false,
            lost: false,
        });
        self.last_run
    }

    fn ready(&mut self, run: Run) {
        let Some(index) = self.epochs.iter().position(|epoch| epoch.run == run) else {
            return;
        };
        let (older, newer) = self.epochs.split_at_mut(index);
        let epoch = &mut newer[0];
        if epoch.state != EpochState::Starting {
            return;
        }
        epoch.state = EpochState::Serving;
        self.last_ready = epoch.config.clone().map(|config| (epoch.serial, config));
        if epoch.serial == self.wanted.serial {
            self.wanted.failures = 0;
            self.wanted.retry_waits = false;
            self.wanted.validation = Validation::Passed;
        }
        for older in older.iter_mut().filter(|older| older.state.serves()) {
            older.state = EpochState::Draining;
            older.handed_over = true;
            let drained = Timer::Over(older.run, EpochState::Draining);
            self.actions
                .push(Action::Arm(drained, self.policy.hand_over));
        }
        if epoch.aged {
            epoch.state = EpochState::Healthy;
            self.forget_failures();
        }
    }

    // Unexpected ends and their consequences.

    /// Requests one validation of the configuration of a process that has just failed. The retries
    /// continue meanwhile. Not needed if there is a configuration to roll back to.
    fn validate(&mut self, failed: &Epoch<D>) {
        if failed.state == EpochState::Starting
            && failed.serial == self.wanted.serial
            && self.phase == Phase::Running
            && self.wanted.validation == Validation::Unknown
            && self.last_ready.is_none()
            && self.serving().is_none()
        {
            let Wanted { serial, config, .. } = &self.wanted;
            self.actions.push(Action::Validate(*serial, config.clone()));
            self.wanted.validation = Validation::Running;
        }
    }

    /// A process that is already running is left alone: it may become ready, or ends by itself.
    fn validated(&mut self, serial: u64, passed: bool) {
        if self.wanted.serial == serial && self.wanted.validation == Validation::Running {
            self.wanted.validation = match passed {
                true => Validation::Passed,
                false => Validation::Refused,
            };
        }
    }

    /// Handles the end of a process; `None` if it could not be started.
    fn ended(&mut self, run: Run, reason: Option<&ExitReason>) {
        let Some(index) = self.epochs.iter().position(|epoch| epoch.run == run) else {
            return;
        };
        let epoch = self.epochs.remove(index);
        let clean = reason.is_some_and(ExitReason::success);
        if let Some(reason) = reason {
            self.actions.push(Action::CleanUp(epoch.epoch));
            // A signal does not mean that the configuration is bad.
            if !clean && !matches!(reason, ExitReason::Signal(_)) {
                self.validate(&epoch);
            }
        }
        if let Phase::Stopping(outcome) = self.phase {
            if self.epochs.is_empty() {
                self.phase = Phase::Finished(outcome);
            }
        } else if epoch.state.leaves() {
            // Expected: the next step follows in `reconcile`.
        } else if epoch.state == EpochState::Starting && self.serving().is_some() {
            if epoch.serial == self.wanted.serial {
                self.replacement_failed();
            }
        } else if clean && self.starting().is_some() {
            // Its child has taken over and terminated it, but is not known to be ready yet.
        } else if clean {
            // An operator requested it to quit, which means the whole sidecar; batch jobs rely on
            // that.
            self.stop(Outcome::Ended);
        } else {
            self.crashed(&epoch);
        }
    }

    /// Handles a crash: no process serves any more.
    fn crashed(&mut self, epoch: &Epoch<D>) {
        if epoch.state == EpochState::Starting && epoch.serial == self.wanted.serial {
            self.wanted.failures = self.wanted.failures.saturating_add(1);
        }
        // A replacement that lost its parent during the takeover never gets its sockets.
        if let Some(child) = self.starting() {
            self.kill(child);
        }
        self.crashes += 1;
        if self.crashes > RETRIES || self.refused() {
            return self.end_as_spent();
        }
        let wait = crash_wait(self.starts.saturating_add(1));
        self.crash_waits = !wait.is_zero();
        if self.crash_waits {
            self.arm(Timer::Crash, wait);
        }
    }

    /// Handles a failed replacement: an older epoch keeps serving.
    fn replacement_failed(&mut self) {
        self.wanted.failures = self.wanted.failures.saturating_add(1);
        if self.wanted.failures > RETRIES {
            self.actions.push(Action::Spent);
            return self.keep_serving();
        }
        self.wanted.retry_waits = true;
        self.arm(Timer::Retry, retry_wait(self.wanted.failures));
    }

    /// Ends supervision: no process serves, and the retries are exhausted.
    fn end_as_spent(&mut self) {
        self.actions.push(Action::Spent);
        self.stop(Outcome::Spent);
    }

    fn forget_failures(&mut self) {
        self.starts = 0;
        self.crashes = 0;
    }

    // End of supervision.

    /// Leaves all processes to a successor.
    fn release(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Finished(Outcome::Released);
        }
    }

    /// Clients of the serving process already know that it is about to end.
    fn drained(&mut self) {
        for epoch in &mut self.epochs {
            epoch.drained |= epoch.state.serves();
        }
    }

    /// Starts to end all processes; `outcome` is the result if that succeeds.
    fn stop(&mut self, outcome: Outcome) {
        if !self.begin_end(outcome) {
            return;
        }
        self.idle = IdleWatch::Off;
        let drains_already = self.draining_for_cold_restart();
        // A process that is not ready has no traffic to drain.
        let serving = self.serving().map(|epoch| epoch.run).or(drains_already);
        let grace = serving.map_or(Duration::ZERO, |_| self.policy.grace);
        let deadline = grace.saturating_add(self.policy.kill_after);
        self.arm(Timer::Deadline, deadline);
        let Some(run) = serving.filter(|_| !grace.is_zero()) else {
            return self.quit_all();
        };
        if let Some(starting) = self.starting() {
            self.terminate(starting);
        }
        self.arm(Timer::Grace, grace);
        self.set(run, EpochState::Draining);
        if self.policy.drain {
            if drains_already != Some(run) {
                self.actions.push(Action::Drain(run));
            }
            if let Some(minimum) = self.policy.min_drain.filter(|min| *min < grace) {
                let drained = self.epoch(run).is_some_and(|epoch| epoch.drained);
                self.arm(
                    Timer::MinDrain,
                    if drained { Duration::ZERO } else { minimum },
                );
            }
        }
    }

    /// Requests all processes to end. The one with the admin interface is asked to quit, so that it
    /// can finish writing; others get SIGTERM. The newest process has the admin interface, but
    /// while it is starting it is unknown which process would answer.
    fn quit_all(&mut self) {
        let alone = self.epochs.len() == 1;
        let has_admin = |epoch: &&Epoch<D>| {
            alone || (epoch.state != EpochState::Starting && !epoch.handed_over)
        };
        let newest = self.epochs.last().filter(has_admin).map(|epoch| epoch.run);
        for epoch in &mut self.epochs {
            if !matches!(epoch.state, EpochState::Stopping | EpochState::Killed) {
                epoch.state = EpochState::Stopping;
                self.actions.push(match newest == Some(epoch.run) {
                    true => Action::Quit(epoch.run),
                    false => Action::Terminate(epoch.run),
                });
            }
        }
    }

    /// Kills all processes, even during a graceful stop.
    fn kill_all(&mut self) {
        self.begin_end(Outcome::Stopped { forced: false });
        self.force();
    }

    /// Starts the end of supervision. Returns whether it had not been started before and there are
    /// processes to end.
    fn begin_end(&mut self, outcome: Outcome) -> bool {
        let begins = self.phase == Phase::Running;
        if begins {
            self.phase = match self.epochs.is_empty() {
                true => Phase::Finished(outcome),
                false => Phase::Stopping(outcome),
            };
        }
        begins && !self.epochs.is_empty()
    }

    fn force(&mut self) {
        let Phase::Stopping(outcome) = self.phase else {
            return;
        };
        if let Outcome::Stopped { .. } = outcome {
            self.phase = Phase::Stopping(Outcome::Stopped { forced: true });
        }
        for index in 0..self.epochs.len() {
            self.kill(self.epochs[index].run);
        }
        self.arm(Timer::Last, REAP_WAIT);
    }

    /// Starts to watch connections once their end may end the drain.
    fn watch_connections(&mut self) {
        let mut left = self.epochs.iter().filter(|epoch| !epoch.lost);
        // A process that took over cannot count the connections of its parent.
        if let (IdleWatch::Due, Some(only), None) = (self.idle, left.next(), left.next())
            && only.state == EpochState::Draining
            && !only.handed_over
        {
            self.idle = IdleWatch::On(only.run);
            self.actions.push(Action::AwaitIdle(only.run));
        }
    }

    /// Ends the drain early: no client is affected.
    fn connections_ended(&mut self, run: Run) {
        if self.idle != IdleWatch::On(run) || self.state(run) != Some(EpochState::Draining) {
            return;
        }
        if self.phase == Phase::Running {
            self.terminate(run);
        } else {
            // The time to quit starts now; the deadline of the whole stop would be too late.
            self.arm(Timer::Deadline, self.policy.kill_after);
            self.quit_all();
        }
    }

    // End of a single process.

    fn terminate(&mut self, run: Run) {
        if self.set(run, EpochState::Stopping) {
            self.actions.push(Action::Terminate(run));
            self.arm(Timer::Over(run, EpochState::Stopping), ABORT_WAIT);
        }
    }

    fn kill(&mut self, run: Run) {
        if self.set(run, EpochState::Killed) {
            self.actions.push(Action::Kill(run));
            self.arm(Timer::Over(run, EpochState::Killed), REAP_WAIT);
        }
    }

    // Timers.

    /// Whether this timer is still relevant. One that is not relevant now will not become so,
    /// unless it is armed again.
    pub(super) fn waits_for(&self, timer: Timer) -> bool {
        match timer {
            Timer::Healthy(run) => self.epoch(run).is_some_and(|epoch| !epoch.aged),
            // A stop has its own timers for starting processes and for drains.
            Timer::Over(run, state) => self.epoch(run).is_some_and(|epoch| {
                let stops = matches!(state, EpochState::Stopping | EpochState::Killed);
                epoch.state == state && (stops || epoch.handed_over || self.phase == Phase::Running)
            }),
            // No process is started once supervision is ending.
            Timer::Crash => self.phase == Phase::Running && self.crash_waits,
            Timer::Retry => self.phase == Phase::Running && self.wanted.retry_waits,
            Timer::MinDrain | Timer::Grace | Timer::Deadline | Timer::Last => {
                matches!(self.phase, Phase::Stopping(_))
            }
        }
    }

    fn elapsed(&mut self, timer: Timer) {
        if !self.waits_for(timer) {
            return;
        }
        match timer {
            Timer::Healthy(run) => self.aged(run),
            Timer::Over(run, EpochState::Stopping) => self.kill(run),
            Timer::Over(run, EpochState::Killed) => {
                if let Some(epoch) = self.epoch_mut(run) {
                    epoch.lost = true;
                }
            }
            Timer::Over(run, state) => {
                self.terminate(run);
                if state == EpochState::Starting && self.serving().is_some() {
                    self.replacement_failed();
                }
            }
            Timer::Crash => self.crash_waits = false,
            Timer::Retry => self.wanted.retry_waits = false,
            Timer::MinDrain => self.idle = IdleWatch::Due,
            Timer::Grace => self.quit_all(),
            Timer::Deadline => self.force(),
            Timer::Last => {
                self.phase = Phase::Finished(match self.phase {
                    Phase::Stopping(Outcome::Spent) => Outcome::Spent,
                    _ => Outcome::Unkillable,
                });
            }
        }
    }

    fn aged(&mut self, run: Run) {
        let alone = self.serving().is_none();
        let Some(epoch) = self.epoch_mut(run) else {
            return;
        };
        epoch.aged = true;
        match epoch.state {
            EpochState::Serving => epoch.state = EpochState::Healthy,
            // It may wait for its configuration while servers are down.
            EpochState::Starting if alone => {}
            _ => return,
        }
        self.forget_failures();
    }

    fn arm(&mut self, timer: Timer, wait: Duration) {
        self.actions.push(Action::Arm(timer, wait));
    }

    // Epochs.

    /// The newest epoch, if it is starting.
    fn starting(&self) -> Option<Run> {
        let newest = self.epochs.last()?;
        (newest.state == EpochState::Starting).then_some(newest.run)
    }

    /// The newest epoch, if it drains for a cold restart.
    fn draining_for_cold_restart(&self) -> Option<Run> {
        let newest = self.epochs.last()?;
        (newest.state == EpochState::Draining && !newest.handed_over).then_some(newest.run)
    }

    /// The newest epoch that serves.
    fn serving(&self) -> Option<&Epoch<D>> {
        self.epochs.iter().rev().find(|epoch| epoch.state.serves())
    }

    fn epoch(&self, run: Run) -> Option<&Epoch<D>> {
        self.epochs.iter().find(|epoch| epoch.run == run)
    }

    fn epoch_mut(&mut self, run: Run) -> Option<&mut Epoch<D>> {
        self.epochs.iter_mut().find(|epoch| epoch.run == run)
    }

    fn state(&self, run: Run) -> Option<EpochState> {
        self.epoch(run).map(|epoch| epoch.state)
    }

    /// Sets the state of a process. Returns whether it has changed.
    fn set(&mut self, run: Run, state: EpochState) -> bool {
        match self.epoch_mut(run) {
            Some(epoch) if epoch.state != state => {
                epoch.state = state;
                true
            }
            _ => false,
        }
    }
}
