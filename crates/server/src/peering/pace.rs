//! When a stream compares the state with what the peer was sent: at once after a change, but not more often than it
//! should. Further changes until then are combined.
//!
//! Reads no clock and sends nothing.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two comparisons.
const APART: Duration = Duration::from_millis(20);
/// The same for each exported service, of which each is looked at.
const APART_EACH: Duration = Duration::from_micros(10);

/// The times of the comparisons of one stream.
#[derive(Debug)]
pub(super) struct Pace {
    /// From when on there may be another one.
    from: Instant,
    has_changed: bool,
}

impl Pace {
    /// The first comparison may be made at once.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            from: now,
            has_changed: false,
        }
    }

    /// Something has changed that is not compared yet.
    pub(super) fn changed(&mut self) {
        self.has_changed = true;
    }

    /// When to compare. `None`: nothing has changed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.has_changed.then_some(self.from)
    }

    /// A comparison that looked at this many services has ended.
    pub(super) fn done(&mut self, now: Instant, services: usize) {
        let services = u32::try_from(services).unwrap_or(u32::MAX);
        self.from = now + APART + APART_EACH.saturating_mul(services);
        self.has_changed = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Change,
        Pass(Duration),
    }

    fn step() -> impl Strategy<Value = Step> {
        let pass = (0..200_u64).prop_map(|ms| Step::Pass(Duration::from_millis(ms)));
        prop_oneof![Just(Step::Change), pass]
    }

    proptest! {
        #[test]
        fn a_change_is_compared_at_once_or_as_soon_as_the_last_comparison_is_old_enough(
            steps in prop::collection::vec(step(), 1..50),
            services in 0..10_000_usize,
        ) {
            let apart = APART + APART_EACH * u32::try_from(services).unwrap();
            let mut now = Instant::now();
            let mut pace = Pace::new(now);
            let (mut last, mut changed) = (None, None);
            for step in steps {
                match step {
                    Step::Change => {
                        pace.changed();
                        changed.get_or_insert(now);
                    }
                    Step::Pass(time) => now += time,
                }
                // The caller waits until it is due.
                prop_assert_eq!(pace.due().is_some(), changed.is_some());
                let Some(due) = pace.due().filter(|due| *due <= now) else {
                    continue;
                };
                let soonest = last.map(|last| last + apart).into_iter().chain(changed).max();
                prop_assert_eq!(Some(due.max(changed.unwrap())), soonest);
                last = Some(now);
                changed = None;
                pace.done(now, services);
                prop_assert_eq!(pace.due(), None);
            }
        }

        #[test]
        fn many_services_are_compared_less_often(services in 0..10_000_usize) {
            let now = Instant::now();
            let mut pace = Pace::new(now);
            pace.done(now, services);
            pace.changed();
            let few = pace.due().unwrap();
            pace.done(now, services + 1);
            pace.changed();
            prop_assert!(pace.due().unwrap() > few);
            pace.done(now, usize::MAX);
        }
    }
}
