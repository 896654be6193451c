//! What it means that a timer runs out, and which timers still mean something.

use std::time::Duration;

use super::{Action, Actions, EpochState, Machine, Phase, Run, Timer};

impl<D: Clone + PartialEq> Machine<D> {
    /// Whether anything would come of it if this timer ran out. One of which nothing would come now
    /// will not mean anything later either, unless it is armed again.
    pub(crate) fn waits_for(&self, timer: Timer) -> bool {
        let state = |run| self.state(run);
        match timer {
            Timer::Healthy(run) => self.position(run).is_some_and(|at| !self.epochs[at].aged),
            Timer::Overdue(run) => state(run) == Some(EpochState::Starting),
            Timer::Drained(run) => self.drains_by_itself(run),
            Timer::Patience(run) => state(run) == Some(EpochState::Stopping),
            Timer::Reap(run) => state(run) == Some(EpochState::Killed),
            // Nothing is started again once everything comes to its end.
            Timer::Crash(number) => self.phase == Phase::Running && self.pause == Some(number),
            Timer::Retry(number) => {
                self.phase == Phase::Running && self.wanted.waiting == Some(number)
            }
            Timer::MinDrain | Timer::Grace | Timer::Deadline | Timer::Last => {
                matches!(self.phase, Phase::Stopping(_))
            }
        }
    }

    pub(super) fn elapsed(&mut self, timer: Timer, actions: &mut Actions<D>) {
        match timer {
            Timer::Healthy(run) => self.aged(run),
            Timer::Overdue(run) => {
                if self.state(run) == Some(EpochState::Starting) && self.phase == Phase::Running {
                    self.abandon(run, actions);
                    if self.serving().is_some() {
                        self.replacement_failed(actions);
                    }
                }
            }
            Timer::Drained(run) => {
                if self.drains_by_itself(run) {
                    self.abandon(run, actions);
                }
            }
            Timer::Patience(run) => {
                if self.state(run) == Some(EpochState::Stopping) {
                    self.kill(run, actions);
                }
            }
            Timer::Reap(run) => self.not_reaped(run),
            Timer::Crash(number) => {
                self.pause.take_if(|waiting| *waiting == number);
            }
            Timer::Retry(number) => {
                self.wanted.waiting.take_if(|waiting| *waiting == number);
            }
            Timer::MinDrain | Timer::Grace | Timer::Deadline | Timer::Last => {
                self.stop_elapsed(timer, actions);
            }
        }
    }

    /// Whether a process drains by a time of its own, and not by that of a stop.
    fn drains_by_itself(&self, run: Run) -> bool {
        self.position(run).is_some_and(|at| {
            let epoch = &self.epochs[at];
            epoch.state == EpochState::Draining
                && (epoch.handed_over || self.phase == Phase::Running)
        })
    }

    fn aged(&mut self, run: Run) {
        let alone = self.serving().is_none();
        let Some(index) = self.position(run) else {
            return;
        };
        let epoch = &mut self.epochs[index];
        epoch.aged = true;
        match epoch.state {
            EpochState::Serving => epoch.state = EpochState::Healthy,
            // It may wait for its configuration for as long as servers are down.
            EpochState::Starting if alone => {}
            _ => return,
        }
        self.forget_failures();
    }

    pub(super) fn arm(
        &mut self,
        timer: fn(u64) -> Timer,
        wait: Duration,
        actions: &mut Actions<D>,
    ) -> u64 {
        self.last_timer += 1;
        actions.push(Action::Arm(timer(self.last_timer), wait));
        self.last_timer
    }
}
