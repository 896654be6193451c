//! What failures cost: the two budgets, the waits, and what a verdict about a spent one changes.

use super::super::policy::{RETRIES, crash_wait, retry_wait};
use super::{
    Action, Actions, Epoch, EpochState, Machine, Outcome, Phase, Question, Timer, Verdict,
};

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
        if self.crashes > RETRIES {
            self.question = Some(Question::Crashes);
            actions.push(Action::Spent { serving: false });
            return;
        }
        self.pause_before_start(actions);
    }

    pub(super) fn pause_before_start(&mut self, actions: &mut Actions<D>) {
        let wait = crash_wait(self.attempts.saturating_add(1));
        self.pause = (!wait.is_zero()).then(|| self.arm(Timer::Crash, wait, actions));
    }

    /// An older epoch serves on.
    pub(super) fn replacement_failed(&mut self, actions: &mut Actions<D>) {
        self.wanted.failures = self.wanted.failures.saturating_add(1);
        if self.wanted.failures > RETRIES {
            self.question = Some(Question::Replacement);
            actions.push(Action::Spent { serving: true });
            return;
        }
        let wait = retry_wait(self.wanted.failures);
        self.wanted.waiting = Some(self.arm(Timer::Retry, wait, actions));
    }

    pub(super) fn judged(&mut self, verdict: Verdict, actions: &mut Actions<D>) {
        let Some(question) = self
            .question
            .take()
            .filter(|_| self.phase == Phase::Running)
        else {
            return;
        };
        if verdict == Verdict::Exit {
            return self.stop(Outcome::Spent, actions);
        }
        let serving = self
            .serving()
            .map(|epoch| (epoch.serial, epoch.config.clone()));
        match (question, serving) {
            (Question::Replacement, Some((serial, config))) => {
                self.wanted.serial = serial;
                self.wanted.config = config.unwrap_or_else(|| self.wanted.config.clone());
                self.wanted.failures = 0;
            }
            (Question::Replacement, None) => self.wanted.failures = 0,
            (Question::Crashes, _) => {
                self.crashes = 0;
                self.pause_before_start(actions);
            }
        }
    }
}
