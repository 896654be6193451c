//! The supervisor without IO: events come in, actions go out. It knows no clock, no process and
//! no network; the same events always bring the same actions.
//!
//! A configuration is wanted; the newest epoch runs it, or is being replaced by one that will.
//! Two kinds of failure are kept apart. When nothing else serves, a process that ends has crashed
//! and is started again after [`crash_wait`]. When an older epoch serves, a replacement that ends
//! before it took over has failed, and is tried again after [`retry_wait`]; nobody notices but the
//! log. Either has [`RETRIES`] retries.
//!
//! Every process is brought to its end in bounded time: SIGTERM, a wait, SIGKILL, a last wait.

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
    /// On the way to an end; with whether something was killed for it.
    Stopping(Outcome),
    Finished(Outcome),
}

/// Whether the connections of a process that drains are watched: their end ends the drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdleWatch {
    /// Not wanted, or not yet.
    Off,
    /// Wanted, as soon as there is but one process.
    Due,
    /// Those to this process.
    On(Run),
}

/// What is known of whether Envoy accepts a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Validation {
    /// Nothing.
    Unknown,
    /// Envoy is being asked.
    Running,
    /// It does, or that can only be found out by running it.
    Passed,
    /// It does not.
    Refused,
}

/// The configuration that shall run.
#[derive(Debug)]
struct Wanted<D> {
    serial: u64,
    config: D,
    /// How often it failed since it was asked for.
    failures: u32,
    /// Whether a wait has to end before it is tried again.
    retry_waits: bool,
    validation: Validation,
}

/// A process and its number among those that hand over to one another.
#[derive(Debug)]
pub(super) struct Epoch<D> {
    /// Names its start.
    pub(super) run: Run,
    /// Its number.
    pub(super) epoch: u32,
    /// Where it is in its life.
    pub(super) state: EpochState,
    /// Serial of the configuration that it was started for; 0 for what a former supervisor started
    /// with something else.
    serial: u64,
    /// What it runs, where that is known.
    config: Option<D>,
    /// Whether it drains because another took its sockets over, rather than for a cold restart.
    handed_over: bool,
    /// Whether it has lived long enough for earlier failures to be forgotten.
    aged: bool,
    /// Whether the kernel did not end it in time.
    lost: bool,
}

/// The supervisor's state.
#[derive(Debug)]
pub(super) struct Machine<D> {
    policy: Policy,
    phase: Phase,
    wanted: Wanted<D>,
    /// What was ready last, to fall back to.
    good: Option<(u64, D)>,
    /// In the order of their numbers.
    epochs: Vec<Epoch<D>>,
    /// Starts since a process was last healthy.
    starts: u32,
    /// Crashes since a process was last healthy.
    crashes: u32,
    /// Whether a wait has to end before the next start.
    crash_waits: bool,
    /// Serial of the configuration that is being checked.
    checking: Option<u64>,
    idle: IdleWatch,
    last_run: Run,
    last_serial: u64,
    /// What the present event brings.
    actions: Vec<Action<D>>,
}

impl<D: Clone + PartialEq> Machine<D> {
    /// A supervisor that wants `config` and has `adopted` processes, in the order of the epochs.
    /// The last of those serves, the others have handed over.
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
            good: None,
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

    /// What has to be done first. Where the first event ends supervision, leave this out: then
    /// nothing is started.
    pub(super) fn begin(&mut self) -> Vec<Action<D>> {
        self.reconcile();
        std::mem::take(&mut self.actions)
    }

    /// The living epochs, the newest last.
    pub(super) fn epochs(&self) -> &[Epoch<D>] {
        &self.epochs
    }

    /// How supervision ended, once it has.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        match self.phase {
            Phase::Finished(outcome) => Some(outcome),
            Phase::Running | Phase::Stopping(_) => None,
        }
    }

    /// Whether it is on the way to an end, or has ended.
    pub(super) fn stopping(&self) -> bool {
        self.phase != Phase::Running
    }

    /// Whether Envoy says that it will never accept what is wanted, and nothing else can run.
    pub(super) fn refused(&self) -> bool {
        self.wanted.validation == Validation::Refused
    }

    /// Takes an event and answers what has to be done, in this order. An event that means nothing
    /// in the present state is ignored; after the end every one is.
    pub(super) fn on(&mut self, event: Event<D>) -> Vec<Action<D>> {
        if self.outcome().is_some() {
            return Vec::new();
        }
        match event {
            Event::Update(config) => self.update(config),
            Event::Restart => self.restart(),
            Event::Stop => self.stop(Outcome::Stopped { forced: false }),
            Event::Kill => self.kill_all(),
            Event::Release => self.release(),
            Event::Checked(serial, checked) => self.checked(serial, checked.ok()),
            Event::SpawnFailed(run) => self.ended(run, None),
            Event::Ready(run) => self.ready(run),
            Event::Exited(run, reason) => self.ended(run, Some(&reason)),
            Event::Validated(serial, result) => self.validated(serial, result.is_ok()),
            Event::QuitFailed(run) => {
                // It was asked to quit in this state, so that SIGTERM is all that is missing.
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

    // What shall run.

    fn update(&mut self, config: D) {
        if config == self.wanted.config {
            return;
        }
        // Back to what still serves: then there is nothing to start.
        let running = self
            .serving()
            .filter(|epoch| epoch.config.as_ref() == Some(&config))
            .map(|epoch| epoch.serial);
        self.want(config, running);
    }

    fn restart(&mut self) {
        // One that is on its way to replace what serves has not been started yet.
        let wanted = self.wanted.serial;
        let runs = self.epochs.iter().any(|epoch| epoch.serial == wanted);
        if !runs && self.wanted.failures == 0 && self.serving().is_some() {
            return;
        }
        // A process that only just starts is as fresh as one can be.
        let newest = self.epochs.last().map(|newest| newest.serial);
        if self.starting().is_none() || newest != Some(wanted) {
            self.want(self.wanted.config.clone(), None);
        }
    }

    /// Sets the configuration to run. Earlier failures do not count against it.
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

    /// Wants what serves already, and not what should have replaced it.
    fn keep_serving(&mut self) {
        let serving = self.serving();
        if let Some((serial, config)) = serving.map(|epoch| (epoch.serial, epoch.config.clone())) {
            self.wanted.serial = serial;
            self.wanted.config = config.unwrap_or_else(|| self.wanted.config.clone());
        }
        self.wanted.failures = 0;
    }

    // Starts and replacements.

    /// Does what is missing for the newest epoch to run what is wanted.
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
            // Either all is well or the end of a process has to be waited for, which is bounded.
            _ => {}
        }
    }

    fn replace(&mut self) {
        // Envoy ends its parent's parent at once, and with it the connections that drain there.
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
            // What served is gone, so that there is nothing to be careful with.
            return;
        };
        match mode {
            None => self.replacement_failed(),
            Some(RestartMode::Hot) => self.start(),
            Some(RestartMode::Cold) => self.make_way(serving),
            Some(RestartMode::Deferred) => self.keep_serving(),
        }
    }

    /// Ends a process for a cold restart, after a drain where the policy has one.
    fn make_way(&mut self, run: Run) {
        let grace = self.policy.cold_restart_grace;
        if grace.is_zero() {
            return self.terminate(run);
        }
        self.set(run, EpochState::Draining);
        self.actions.push(Action::Drain(run));
        self.arm(Timer::Over(run, EpochState::Draining), grace);
        // The next process comes at once, so that no client has to hear first that it goes.
        self.idle = IdleWatch::Due;
    }

    fn start_unless_paused(&mut self) {
        if self.refused() {
            self.give_up();
        } else if !self.crash_waits {
            self.start();
        }
    }

    fn start(&mut self) {
        let serving = self.serving().is_some();
        // With nothing that serves, what has worked comes before what has failed.
        let (serial, config) = match &self.good {
            Some(good) if !serving && self.wanted.failures > 0 => good.clone(),
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
        self.good = epoch.config.clone().map(|config| (epoch.serial, config));
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

    // Ends that nobody asked for, and what they cost.

    /// Has Envoy asked, once, whether the process that has just failed could ever have run. The
    /// table of waits goes on meanwhile. With something to fall back to that is not the question.
    fn validate(&mut self, failed: &Epoch<D>) {
        if failed.state == EpochState::Starting
            && failed.serial == self.wanted.serial
            && self.phase == Phase::Running
            && self.wanted.validation == Validation::Unknown
            && self.good.is_none()
            && self.serving().is_none()
        {
            let Wanted { serial, config, .. } = &self.wanted;
            self.actions.push(Action::Validate(*serial, config.clone()));
            self.wanted.validation = Validation::Running;
        }
    }

    /// A process that runs already goes on: it knows better, or ends by itself.
    fn validated(&mut self, serial: u64, passed: bool) {
        if self.wanted.serial == serial && self.wanted.validation == Validation::Running {
            self.wanted.validation = match passed {
                true => Validation::Passed,
                false => Validation::Refused,
            };
        }
    }

    /// Without a reason it has not even been started.
    fn ended(&mut self, run: Run, reason: Option<&ExitReason>) {
        let Some(index) = self.epochs.iter().position(|epoch| epoch.run == run) else {
            return;
        };
        let epoch = self.epochs.remove(index);
        let clean = reason.is_some_and(ExitReason::success);
        if let Some(reason) = reason {
            self.actions.push(Action::CleanUp(epoch.epoch));
            // Whoever sent a signal was no judge of the configuration.
            if !clean && !matches!(reason, ExitReason::Signal(_)) {
                self.validate(&epoch);
            }
        }
        if let Phase::Stopping(outcome) = self.phase {
            if self.epochs.is_empty() {
                self.phase = Phase::Finished(outcome);
            }
        } else if epoch.state.leaves() {
            // Expected: whatever waited for it goes on.
        } else if epoch.state == EpochState::Starting && self.serving().is_some() {
            if epoch.serial == self.wanted.serial {
                self.replacement_failed();
            }
        } else if clean && self.starting().is_some() {
            // Its child asked it to go, which just has not been seen to be ready yet.
        } else if clean {
            // Somebody asked it to quit and means the whole, as sidecars of batch jobs rely on.
            self.stop(Outcome::Ended);
        } else {
            self.crashed(&epoch);
        }
    }

    /// Nothing serves any more.
    fn crashed(&mut self, epoch: &Epoch<D>) {
        if epoch.state == EpochState::Starting && epoch.serial == self.wanted.serial {
            self.wanted.failures = self.wanted.failures.saturating_add(1);
        }
        // A replacement that has lost its parent half-way never gets its sockets.
        if let Some(child) = self.starting() {
            self.kill(child);
        }
        self.crashes += 1;
        if self.crashes > RETRIES || self.refused() {
            return self.give_up();
        }
        let wait = crash_wait(self.starts.saturating_add(1));
        self.crash_waits = !wait.is_zero();
        if self.crash_waits {
            self.arm(Timer::Crash, wait);
        }
    }

    /// An older epoch serves on.
    fn replacement_failed(&mut self) {
        self.wanted.failures = self.wanted.failures.saturating_add(1);
        if self.wanted.failures > RETRIES {
            self.actions.push(Action::Spent);
            return self.keep_serving();
        }
        self.wanted.retry_waits = true;
        self.arm(Timer::Retry, retry_wait(self.wanted.failures));
    }

    /// Nothing serves, and nothing is tried any more.
    fn give_up(&mut self) {
        self.actions.push(Action::Spent);
        self.stop(Outcome::Spent);
    }

    fn forget_failures(&mut self) {
        self.starts = 0;
        self.crashes = 0;
    }

    // The end of everything.

    /// Leaves everything that runs to a successor.
    fn release(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Finished(Outcome::Released);
        }
    }

    /// Begins the end of everything, with `outcome` when it is done.
    fn stop(&mut self, outcome: Outcome) {
        if !self.begin_end(outcome) {
            return;
        }
        self.idle = IdleWatch::Off;
        let drains_already = self.makes_way();
        // What is not ready carries no traffic that a grace period could save.
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
                self.arm(Timer::MinDrain, minimum);
            }
        }
    }

    /// Asks everything that runs to end. The one with the admin interface may finish what it
    /// writes; a signal has to do for others. The newest has it, and while that one only starts
    /// nobody knows who would be asked.
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

    /// Kills everything. Also after a stop that is not fast enough for someone.
    fn kill_all(&mut self) {
        self.begin_end(Outcome::Stopped { forced: false });
        self.force();
    }

    /// Answers whether this is the beginning, and something has to be ended.
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

    /// Watches for the end of the connections, once that may end the drain.
    fn watch_connections(&mut self) {
        let mut left = self.epochs.iter().filter(|epoch| !epoch.lost);
        // Who took over cannot tell what is still connected to the one before it.
        if let (IdleWatch::Due, Some(only), None) = (self.idle, left.next(), left.next())
            && only.state == EpochState::Draining
            && !only.handed_over
        {
            self.idle = IdleWatch::On(only.run);
            self.actions.push(Action::AwaitIdle(only.run));
        }
    }

    /// Nobody would notice if the drain ended now.
    fn connections_ended(&mut self, run: Run) {
        if self.idle != IdleWatch::On(run) || self.state(run) != Some(EpochState::Draining) {
            return;
        }
        if self.phase == Phase::Running {
            self.terminate(run);
        } else {
            // The time to quit runs from now on; the one of the whole stop would be too long.
            self.arm(Timer::Deadline, self.policy.kill_after);
            self.quit_all();
        }
    }

    // The end of one process.

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

    /// Whether anything would come of it if this timer ran out. One of which nothing would come now
    /// will not mean anything later either, unless it is armed again.
    pub(super) fn waits_for(&self, timer: Timer) -> bool {
        match timer {
            Timer::Healthy(run) => self.epoch(run).is_some_and(|epoch| !epoch.aged),
            // A stop has its own times for what starts, and for the drain of what served.
            Timer::Over(run, state) => self.epoch(run).is_some_and(|epoch| {
                let stops = matches!(state, EpochState::Stopping | EpochState::Killed);
                epoch.state == state && (stops || epoch.handed_over || self.phase == Phase::Running)
            }),
            // Nothing is started again once everything comes to its end.
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
            // It may wait for its configuration for as long as servers are down.
            EpochState::Starting if alone => {}
            _ => return,
        }
        self.forget_failures();
    }

    fn arm(&mut self, timer: Timer, wait: Duration) {
        self.actions.push(Action::Arm(timer, wait));
    }

    // Epochs.

    /// The newest epoch, if it only just starts.
    fn starting(&self) -> Option<Run> {
        let newest = self.epochs.last()?;
        (newest.state == EpochState::Starting).then_some(newest.run)
    }

    /// The newest epoch, if it drains for a cold restart.
    fn makes_way(&self) -> Option<Run> {
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

    /// Answers whether the state changed.
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
