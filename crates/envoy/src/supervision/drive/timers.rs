//! The timers of the machine. Obsolete timers are dropped at once, so there are never more than the
//! machine can wait for.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::super::machine::Timer;

/// Replaces durations beyond the range of the clock.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The armed timers, in the order in which they were armed.
#[derive(Debug, Default)]
pub(super) struct Timers(Vec<(Instant, Timer)>);

impl Timers {
    /// Arms `timer` to fire after `wait`. If it is armed already, the earlier time counts.
    pub(super) fn arm(&mut self, timer: Timer, wait: Duration) {
        let at = Instant::now() + wait.min(NEVER);
        match self.0.iter_mut().find(|(_, armed)| *armed == timer) {
            Some((earlier, _)) => *earlier = at.min(*earlier),
            None => self.0.push((at, timer)),
        }
    }

    /// Drops the timers that the machine no longer waits for.
    pub(super) fn retain(&mut self, waited_for: impl Fn(Timer) -> bool) {
        self.0.retain(|(_, timer)| waited_for(*timer));
    }

    /// The next timer to fire. Cancel safe.
    pub(super) async fn next(&mut self) -> Timer {
        let next = (0..self.0.len()).min_by_key(|&index| self.0[index].0);
        let Some(next) = next else {
            return std::future::pending().await;
        };
        sleep_until(self.0[next].0).await;
        self.0.remove(next).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn each_runs_out_once_at_its_earliest_time() {
        let (mut timers, begin) = (Timers::default(), Instant::now());
        timers.arm(Timer::Last, Duration::MAX);
        timers.arm(Timer::Grace, 3 * SECOND);
        timers.arm(Timer::Deadline, 4 * SECOND);
        timers.arm(Timer::Deadline, SECOND);
        timers.arm(Timer::Deadline, 9 * SECOND);
        timers.arm(Timer::MinDrain, 2 * SECOND);
        timers.retain(|timer| timer != Timer::MinDrain);
        assert_eq!(timers.next().await, Timer::Deadline);
        assert_eq!(begin.elapsed(), SECOND);
        assert_eq!(timers.next().await, Timer::Grace);
        assert_eq!(begin.elapsed(), 3 * SECOND);
        assert_eq!(timers.0.len(), 1);
    }
}
