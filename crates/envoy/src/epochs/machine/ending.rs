//! How processes are brought to their end, one by one or all together. Every way has a bound that
//! no process can move: SIGTERM, a wait, SIGKILL, a last wait.

use super::{
    ABORT_WAIT, Action, Actions, Epoch, EpochState, IdleWatch, Machine, Outcome, Phase, REAP_WAIT,
    Run, Timer,
};

impl<D: Clone + PartialEq> Machine<D> {
    /// Ends a process that nobody needs any more.
    pub(super) fn abandon(&mut self, run: Run, actions: &mut Actions<D>) {
        if self.set(run, EpochState::Stopping) {
            actions.push(Action::Terminate(run));
            actions.push(Action::Arm(Timer::Patience(run), ABORT_WAIT));
        }
    }

    pub(super) fn kill(&mut self, run: Run, actions: &mut Actions<D>) {
        if self.set(run, EpochState::Killed) {
            actions.push(Action::Kill(run));
            actions.push(Action::Arm(Timer::Reap(run), REAP_WAIT));
        }
    }

    /// Makes room for a successor that cannot run beside it.
    pub(super) fn retire(&mut self, run: Run, actions: &mut Actions<D>) {
        let grace = self.policy.retire_grace;
        if grace.is_zero() {
            return self.abandon(run, actions);
        }
        if self.set(run, EpochState::Draining) {
            actions.push(Action::Drain(run));
            actions.push(Action::Arm(Timer::Drained(run), grace));
            // Its successor comes at once, so that nobody has to hear first that it goes.
            self.idle = IdleWatch::Due;
        }
    }

    pub(super) fn not_reaped(&mut self, run: Run) {
        if let Some(index) = self.position(run)
            && self.epochs[index].state == EpochState::Killed
        {
            self.epochs[index].lost = true;
        }
    }

    /// Lets go of everything that runs.
    pub(super) fn release(&mut self, actions: &mut Actions<D>) {
        if self.phase == Phase::Running {
            self.phase = Phase::Finished(Outcome::Released);
            actions.push(Action::Detach);
        }
    }

    /// Begins the end of everything, with `outcome` when it is done.
    pub(super) fn stop(&mut self, outcome: Outcome, actions: &mut Actions<D>) {
        if self.phase != Phase::Running {
            return;
        }
        if self.epochs.is_empty() {
            self.phase = Phase::Finished(outcome);
            return;
        }
        self.phase = Phase::Stopping(outcome);
        self.idle = IdleWatch::Off;
        let retiring = self.retiring().map(|epoch| epoch.run);
        // What is not ready carries no traffic that a grace period could save.
        let serving = self.serving().map(|epoch| epoch.run).or(retiring);
        let grace = match serving {
            Some(_) => self.policy.grace,
            None => std::time::Duration::ZERO,
        };
        let deadline = grace.saturating_add(self.policy.kill_after);
        actions.push(Action::Arm(Timer::Deadline, deadline));
        match serving {
            Some(run) if !grace.is_zero() => {
                self.each(EpochState::Starting, Self::abandon, actions);
                actions.push(Action::Arm(Timer::Grace, grace));
                self.set(run, EpochState::Draining);
                if self.policy.drain {
                    if retiring != Some(run) {
                        actions.push(Action::Drain(run));
                    }
                    if let Some(minimum) = self.policy.min_drain.filter(|min| *min < grace) {
                        actions.push(Action::Arm(Timer::MinDrain, minimum));
                    }
                }
            }
            _ => self.quit_all(actions),
        }
    }

    /// Watches for the end of the connections, once that may end the drain.
    pub(super) fn await_idle(&mut self, actions: &mut Actions<D>) {
        let mut left = self.epochs.iter().filter(|epoch| !epoch.lost);
        // Who took over cannot tell what is still connected to the one before it.
        if let (IdleWatch::Due, Some(only), None) = (self.idle, left.next(), left.next())
            && only.state == EpochState::Draining
            && !only.handed_over
        {
            self.idle = IdleWatch::On(only.run);
            actions.push(Action::AwaitIdle(only.run));
        }
    }

    /// Nobody would notice if the drain ended now.
    pub(super) fn idle(&mut self, run: Run, actions: &mut Actions<D>) {
        if self.idle != IdleWatch::On(run) || self.state(run) != Some(EpochState::Draining) {
            return;
        }
        if self.phase == Phase::Running {
            self.abandon(run, actions);
        } else {
            // The time to quit runs from now on; the one of the whole stop would be too long.
            actions.push(Action::Arm(Timer::Deadline, self.policy.kill_after));
            self.quit_all(actions);
        }
    }

    /// Kills everything. Also after a stop that is not fast enough for someone.
    pub(super) fn kill_all(&mut self, actions: &mut Actions<D>) {
        if self.phase == Phase::Running {
            let outcome = Outcome::Stopped { forced: false };
            self.phase = if self.epochs.is_empty() {
                Phase::Finished(outcome)
            } else {
                Phase::Stopping(outcome)
            };
        }
        self.force(actions);
    }

    pub(super) fn stop_elapsed(&mut self, timer: Timer, actions: &mut Actions<D>) {
        let Phase::Stopping(outcome) = self.phase else {
            return;
        };
        match timer {
            Timer::MinDrain => self.idle = IdleWatch::Due,
            Timer::Grace => self.quit_all(actions),
            Timer::Deadline => self.force(actions),
            _ if matches!(outcome, Outcome::Stopped { .. } | Outcome::Ended) => {
                self.phase = Phase::Finished(Outcome::Unkillable);
            }
            _ => self.phase = Phase::Finished(outcome),
        }
    }

    /// The one with the admin interface may finish what it writes; a signal has to do for others.
    /// Who started last has it, and while that one only starts nobody knows who would be asked.
    fn quit_all(&mut self, actions: &mut Actions<D>) {
        let alone = self.epochs.len() == 1;
        let has_admin = |epoch: &&Epoch<D>| {
            alone || (epoch.state != EpochState::Starting && !epoch.handed_over)
        };
        let newest = self.epochs.last().filter(has_admin).map(|epoch| epoch.run);
        for state in [
            EpochState::Starting,
            EpochState::Serving,
            EpochState::Healthy,
            EpochState::Draining,
        ] {
            self.each(
                state,
                |machine, run, actions| {
                    machine.set(run, EpochState::Stopping);
                    actions.push(match newest == Some(run) {
                        true => Action::Quit(run),
                        false => Action::Terminate(run),
                    });
                },
                actions,
            );
        }
    }

    fn force(&mut self, actions: &mut Actions<D>) {
        let Phase::Stopping(outcome) = self.phase else {
            return;
        };
        if let Outcome::Stopped { .. } = outcome {
            self.phase = Phase::Stopping(Outcome::Stopped { forced: true });
        }
        for state in [
            EpochState::Starting,
            EpochState::Serving,
            EpochState::Healthy,
            EpochState::Draining,
            EpochState::Stopping,
        ] {
            self.each(state, Self::kill, actions);
        }
        actions.push(Action::Arm(Timer::Last, REAP_WAIT));
    }

    fn each(
        &mut self,
        state: EpochState,
        mut what: impl FnMut(&mut Self, Run, &mut Actions<D>),
        actions: &mut Actions<D>,
    ) {
        let runs: Vec<Run> = self
            .epochs
            .iter()
            .filter(|epoch| epoch.state == state)
            .map(|epoch| epoch.run)
            .collect();
        for run in runs {
            what(self, run, actions);
        }
    }

    /// Whether the state changed.
    fn set(&mut self, run: Run, state: EpochState) -> bool {
        match self.position(run) {
            Some(index) if self.epochs[index].state != state => {
                self.epochs[index].state = state;
                true
            }
            _ => false,
        }
    }
}
