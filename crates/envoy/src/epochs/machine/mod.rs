//! The supervisor without IO: events come in, actions go out. It knows no clock, no process and
//! no network; the same events always bring the same actions.
//!
//! A configuration is wanted; the newest epoch runs it, or is being replaced by one that will.
//! Two kinds of failure are kept apart. When nothing else serves, a process that ends has crashed
//! and is started again after [`crate::epochs::crash_wait`]. When an older epoch serves, a replacement that ends
//! before it took over has failed, and is tried again after [`crate::epochs::retry_wait`]; nobody notices but the
//! log. Either has [`crate::epochs::RETRIES`] retries.

mod ending;
mod failing;
#[cfg(test)]
mod generated;
#[cfg(test)]
mod tests;
mod timers;
mod types;
mod wishing;

pub(super) use types::{Action, Adopted, Epoch, Event, Exit, Run, Start, Timer, Way};
pub use types::{EpochState, Outcome};

use super::policy::{ABORT_WAIT, HEALTHY_AFTER, Policy, REAP_WAIT};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// On the way to an end; with whether something was killed for it.
    Stopping(Outcome),
    Finished(Outcome),
}

/// Whether somebody watches for the end of the connections to what drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdleWatch {
    /// Not wanted, or not yet.
    Off,
    /// Wanted, as soon as there is but one process.
    Due,
    /// Those to this process.
    On(Run),
}

impl IdleWatch {
    /// The process has ended, and with it every connection.
    fn forget(&mut self, run: Run) {
        if *self == Self::On(run) {
            *self = Self::Off;
        }
    }
}

/// What is known of whether Envoy takes a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    /// Nothing.
    Unknown,
    /// It is being asked.
    Asked,
    /// It does, or that cannot be found out in another way than by running it.
    Passed,
    /// It does not.
    Refused,
}

/// The configuration that shall run.
#[derive(Debug, Clone)]
struct Wanted<D> {
    serial: u64,
    config: D,
    /// How often it failed since it was wished for.
    failures: u32,
    /// The timer that has to run out before it is tried again.
    waiting: Option<u64>,
    trial: Trial,
}

/// The supervisor's state.
#[derive(Debug, Clone)]
pub(super) struct Machine<D> {
    policy: Policy,
    phase: Phase,
    wanted: Wanted<D>,
    /// What was ready last, to fall back to.
    good: Option<(u64, D)>,
    /// In the order of their numbers.
    epochs: Vec<Epoch<D>>,
    /// Starts since a process was last healthy.
    attempts: u32,
    /// Crashes since a process was last healthy.
    crashes: u32,
    /// The timer that has to run out before the next start.
    pause: Option<u64>,
    checking: Option<u64>,
    idle: IdleWatch,
    last_run: Run,
    last_serial: u64,
    last_timer: u64,
}

type Actions<D> = Vec<Action<D>>;

impl<D: Clone + PartialEq> Machine<D> {
    /// A supervisor that wants `config`, beside what it `adopted` in the order of the epochs.
    /// The last of those serves, the others have handed over. Answers what has to be done first.
    pub(super) fn new(policy: Policy, config: D, adopted: &[Adopted]) -> (Self, Actions<D>) {
        let (mut machine, mut actions) = Self::heir(policy, config, adopted);
        machine.reconcile(&mut actions);
        (machine, actions)
    }

    /// The same, for a supervisor whose next event is one that ends it: it starts nothing.
    pub(super) fn heir(policy: Policy, config: D, adopted: &[Adopted]) -> (Self, Actions<D>) {
        let mut machine = Self {
            policy,
            phase: Phase::Running,
            wanted: Wanted {
                serial: 1,
                config,
                failures: 0,
                waiting: None,
                trial: Trial::Unknown,
            },
            good: None,
            epochs: Vec::new(),
            attempts: 0,
            crashes: 0,
            pause: None,
            checking: None,
            idle: IdleWatch::Off,
            last_run: 0,
            last_serial: 1,
            last_timer: 0,
        };
        let mut actions = Vec::new();
        for (index, adopted_one) in adopted.iter().enumerate() {
            machine.adopt(*adopted_one, index + 1 == adopted.len(), &mut actions);
        }
        (machine, actions)
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

    /// Takes an event and answers what has to be done, in this order. An event that means nothing
    /// in the present state is ignored; after the end every one is.
    pub(super) fn on(&mut self, event: Event<D>) -> Actions<D> {
        let mut actions = Vec::new();
        if matches!(self.phase, Phase::Finished(_)) {
            return actions;
        }
        match event {
            Event::Schedule(config) => self.schedule(config),
            Event::Restart => self.restart(),
            Event::Stop => self.stop(Outcome::Stopped { forced: false }, &mut actions),
            Event::Kill => self.kill_all(&mut actions),
            Event::Release => self.release(&mut actions),
            Event::Checked(serial, way) => self.checked(serial, way, &mut actions),
            Event::SpawnFailed(run) => self.ended(run, false, &mut actions),
            Event::Ready(run) => self.ready(run, &mut actions),
            Event::Exited(run, exit) => self.exited(run, exit, &mut actions),
            Event::Validated(serial, passed) => self.validated(serial, passed),
            Event::QuitFailed(run) => {
                // The order to quit was this state's, so that SIGTERM is all that is missing.
                if self.state(run) == Some(EpochState::Stopping) {
                    actions.push(Action::Terminate(run));
                }
            }
            Event::Idle(run) => self.idle(run, &mut actions),
            Event::Elapsed(timer) => self.elapsed(timer, &mut actions),
        }
        self.reconcile(&mut actions);
        actions
    }

    fn adopt(&mut self, adopted: Adopted, newest: bool, actions: &mut Actions<D>) {
        if adopted.current {
            self.wanted.trial = Trial::Passed;
        }
        self.last_run += 1;
        let run = self.last_run;
        self.epochs.push(Epoch {
            run,
            epoch: adopted.epoch,
            state: if newest {
                EpochState::Serving
            } else {
                EpochState::Draining
            },
            serial: if adopted.current {
                self.wanted.serial
            } else {
                0
            },
            config: adopted.current.then(|| self.wanted.config.clone()),
            handed_over: !newest,
            aged: false,
            lost: false,
        });
        actions.push(if newest {
            Action::Arm(Timer::Healthy(run), HEALTHY_AFTER)
        } else {
            Action::Arm(Timer::Drained(run), self.policy.hand_over)
        });
    }

    fn forget_failures(&mut self) {
        self.attempts = 0;
        self.crashes = 0;
    }

    /// Does what is missing for the newest epoch to run what is wanted.
    fn reconcile(&mut self, actions: &mut Actions<D>) {
        self.await_idle(actions);
        if self.phase != Phase::Running {
            return;
        }
        let serving = self.serving().is_some();
        let Some(newest) = self.epochs.last() else {
            return self.start_unless_paused(actions);
        };
        let (run, serial, fresh) = (newest.run, newest.serial, self.wanted.failures == 0);
        match newest.state {
            EpochState::Starting if serial != self.wanted.serial && fresh => {
                self.abandon(run, actions);
            }
            EpochState::Serving | EpochState::Healthy if serial != self.wanted.serial => {
                self.replace(actions);
            }
            EpochState::Draining if newest.handed_over && !serving => {
                self.start_unless_paused(actions);
            }
            EpochState::Killed if newest.lost && !serving => {
                self.phase = Phase::Finished(Outcome::Unkillable);
            }
            // Either all is well or the end of a process has to be waited for, which is bounded.
            _ => {}
        }
    }

    fn replace(&mut self, actions: &mut Actions<D>) {
        // Envoy ends its parent's parent at once, and with it the connections that drain there.
        let crowded = self.epochs.iter().filter(|epoch| !epoch.lost).count() > 1;
        if crowded || self.wanted.waiting.is_some() || self.checking.is_some() {
            return;
        }
        self.checking = Some(self.wanted.serial);
        actions.push(Action::Check(
            self.wanted.serial,
            self.wanted.config.clone(),
        ));
    }

    fn checked(&mut self, serial: u64, way: Option<Way>, actions: &mut Actions<D>) {
        if self.checking != Some(serial) || self.phase != Phase::Running {
            return;
        }
        self.checking = None;
        if way.is_some() {
            self.wanted.trial = Trial::Passed;
        }
        let Some(serving) = self.serving().map(|epoch| epoch.run) else {
            // What served is gone, so that there is nothing to be careful with.
            return;
        };
        match way {
            None => self.replacement_failed(actions),
            Some(Way::Hot) => self.start(actions),
            Some(Way::Plain) => self.retire(serving, actions),
            Some(Way::Kept) => self.stay(),
        }
    }

    fn start_unless_paused(&mut self, actions: &mut Actions<D>) {
        if self.refused() {
            self.give_up(actions);
        } else if self.pause.is_none() {
            self.start(actions);
        }
    }

    fn start(&mut self, actions: &mut Actions<D>) {
        let serving = self.serving().is_some();
        // With nothing that serves, what has worked comes before what has failed.
        let (serial, config) = match &self.good {
            Some(good) if !serving && self.wanted.failures > 0 => good.clone(),
            _ => (self.wanted.serial, self.wanted.config.clone()),
        };
        let epoch = self
            .epochs
            .last()
            .map_or(0, |newest| newest.epoch.wrapping_add(1));
        self.last_run += 1;
        self.attempts = self.attempts.saturating_add(1);
        let run = self.last_run;
        self.epochs.push(Epoch {
            run,
            epoch,
            state: EpochState::Starting,
            serial,
            config: Some(config.clone()),
            handed_over: false,
            aged: false,
            lost: false,
        });
        actions.push(Action::Start(Start { run, epoch, config }));
        actions.push(Action::Arm(Timer::Healthy(run), HEALTHY_AFTER));
        if serving {
            actions.push(Action::Arm(Timer::Overdue(run), self.policy.start_within));
        }
    }

    fn ready(&mut self, run: Run, actions: &mut Actions<D>) {
        let Some(index) = self.position(run) else {
            return;
        };
        let epoch = &mut self.epochs[index];
        if epoch.state != EpochState::Starting {
            return;
        }
        epoch.state = EpochState::Serving;
        let (serial, aged) = (epoch.serial, epoch.aged);
        self.good = epoch.config.clone().map(|config| (serial, config));
        if serial == self.wanted.serial {
            self.wanted.failures = 0;
            self.wanted.waiting = None;
            self.wanted.trial = Trial::Passed;
        }
        if aged {
            self.epochs[index].state = EpochState::Healthy;
            self.forget_failures();
        }
        for older in &mut self.epochs[..index] {
            if older.state.serves() {
                older.state = EpochState::Draining;
                older.handed_over = true;
                let drained = Timer::Drained(older.run);
                actions.push(Action::Arm(drained, self.policy.hand_over));
            }
        }
    }

    fn exited(&mut self, run: Run, exit: Exit, actions: &mut Actions<D>) {
        if let Some(index) = self.position(run) {
            actions.push(Action::CleanUp(self.epochs[index].epoch));
            if exit == Exit::Failed {
                self.validate(index, actions);
            }
        }
        self.ended(run, exit == Exit::Clean, actions);
    }

    fn ended(&mut self, run: Run, clean: bool, actions: &mut Actions<D>) {
        let Some(index) = self.position(run) else {
            return;
        };
        let epoch = self.epochs.remove(index);
        self.idle.forget(run);
        if let Phase::Stopping(outcome) = self.phase {
            if self.epochs.is_empty() {
                self.phase = Phase::Finished(outcome);
            }
        } else if epoch.state.leaves() {
            // Expected: whatever waited for it goes on.
        } else if epoch.state == EpochState::Starting && self.serving().is_some() {
            if epoch.serial == self.wanted.serial {
                self.replacement_failed(actions);
            }
        } else if clean && self.starting() {
            // Told to go by its child, which just has not been seen to be ready yet.
        } else if clean {
            // Somebody asked it to quit and means the whole, as sidecars of batch jobs rely on.
            self.stop(Outcome::Ended, actions);
        } else {
            self.crashed(&epoch, actions);
        }
    }

    /// Whether the newest epoch only just starts.
    fn starting(&self) -> bool {
        self.epochs
            .last()
            .is_some_and(|newest| newest.state == EpochState::Starting)
    }

    /// The epoch that drains to make room for another, which is the newest then.
    fn retiring(&self) -> Option<&Epoch<D>> {
        let retires =
            |newest: &&Epoch<D>| newest.state == EpochState::Draining && !newest.handed_over;
        self.epochs.last().filter(retires)
    }

    /// The newest epoch that serves.
    fn serving(&self) -> Option<&Epoch<D>> {
        self.epochs.iter().rev().find(|epoch| epoch.state.serves())
    }

    fn position(&self, run: Run) -> Option<usize> {
        self.epochs.iter().position(|epoch| epoch.run == run)
    }

    fn state(&self, run: Run) -> Option<EpochState> {
        self.position(run).map(|index| self.epochs[index].state)
    }
}
