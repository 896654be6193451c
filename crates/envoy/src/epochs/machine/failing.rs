//! What failures cost: the two budgets, the waits, and when there is no point in another try.

use super::super::policy::{RETRIES, crash_wait, retry_wait};
use super::{Action, Actions, Epoch, EpochState, Machine, Outcome, Phase, Timer, Trial};

impl<D: Clone + PartialEq> Machine<D> {
    /// Nothing serves any more.
    pub(super) fn crashed(&mut self, epoch: &Epoch<D>, actions: &mut Actions<D>) {
        if epoch.state == EpochState::Starting && epoch.serial == self.wanted.serial {
            self.wanted.failures = self.wanted.failures.saturating_add(1);
        }
        // A replacement that has lost its parent half-way never gets its sockets.
        if self.starting()
            && let Some(child) = self.epochs.last().map(|child| child.run)
        {
            self.kill(child, actions);
        }
        self.crashes += 1;
        if self.crashes > RETRIES || self.refused() {
            return self.give_up(actions);
        }
        let wait = crash_wait(self.attempts.saturating_add(1));
        self.pause = (!wait.is_zero()).then(|| self.arm(Timer::Crash, wait, actions));
    }

    /// Nothing serves, and nothing is tried any more.
    pub(super) fn give_up(&mut self, actions: &mut Actions<D>) {
        actions.push(Action::Spent { serving: false });
        self.stop(Outcome::Spent, actions);
    }

    /// Whether Envoy says that it will never take what is wanted, and nothing else can run.
    pub(crate) fn refused(&self) -> bool {
        self.wanted.trial == Trial::Refused
    }

    /// Has Envoy asked, once, whether the process that has just failed could ever have run. The
    /// table of waits goes on meanwhile. With something to fall back to that is not the question.
    pub(super) fn validate(&mut self, index: usize, actions: &mut Actions<D>) {
        let (epoch, wanted) = (&self.epochs[index], &self.wanted);
        if self.phase == Phase::Running
            && epoch.state == EpochState::Starting
            && epoch.serial == wanted.serial
            && wanted.trial == Trial::Unknown
            && self.good.is_none()
            && self.serving().is_none()
        {
            actions.push(Action::Validate(wanted.serial, wanted.config.clone()));
            self.wanted.trial = Trial::Asked;
        }
    }

    /// A process that runs already goes on: it knows better, or ends by itself.
    pub(super) fn validated(&mut self, serial: u64, passed: bool) {
        if self.wanted.serial == serial && self.wanted.trial == Trial::Asked {
            self.wanted.trial = match passed {
                true => Trial::Passed,
                false => Trial::Refused,
            };
        }
    }

    /// An older epoch serves on.
    pub(super) fn replacement_failed(&mut self, actions: &mut Actions<D>) {
        self.wanted.failures = self.wanted.failures.saturating_add(1);
        if self.wanted.failures > RETRIES {
            actions.push(Action::Spent { serving: true });
            return self.stay();
        }
        let wait = retry_wait(self.wanted.failures);
        self.wanted.waiting = Some(self.arm(Timer::Retry, wait, actions));
    }

    /// Wants what serves already, and not what should have replaced it.
    pub(super) fn stay(&mut self) {
        let serving = self.serving();
        if let Some((serial, config)) = serving.map(|epoch| (epoch.serial, epoch.config.clone())) {
            self.wanted.serial = serial;
            self.wanted.config = config.unwrap_or_else(|| self.wanted.config.clone());
        }
        self.wanted.failures = 0;
    }
}
