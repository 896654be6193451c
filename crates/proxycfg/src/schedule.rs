//! When one proxy's snapshot is published: at once after a quiet time, coalesced after a recent
//! one.
//!
//! Pure: it takes the time as an argument and returns when to call it again. It publishes nothing
//! itself.

use std::time::Duration;

use tokio::time::Instant;

/// Decides when the snapshots of one proxy are published.
#[derive(Debug)]
pub(crate) struct Schedule {
    coalesce: Duration,
    last: Option<Instant>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Nothing to publish.
    Idle,
    /// Changes are coalesced until this time.
    Folding { until: Instant },
    /// The slot of the shared limiter.
    Reserved { at: Instant },
}

impl Schedule {
    /// Publications of one proxy are at least `coalesce` apart.
    pub(crate) fn new(coalesce: Duration) -> Self {
        Self {
            coalesce,
            last: None,
            phase: Phase::Idle,
        }
    }

    /// Records a change. Changes while a publication is pending are published with it.
    pub(crate) fn changed(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Idle) {
            let until = self.last.map_or(now, |last| now.max(last + self.coalesce));
            self.phase = Phase::Folding { until };
        }
    }

    /// Records a publication. Computing a snapshot without a difference is not one.
    pub(crate) fn published(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// When to call [`Schedule::due`] next, `None` while nothing is pending.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle => None,
            Phase::Folding { until } => Some(until),
            Phase::Reserved { at } => Some(at),
        }
    }

    /// Whether to compute a snapshot now. `reserve` takes a slot of the shared limiter. It is
    /// called once for each publication and only after the coalescing interval, so that no slot is
    /// held unused.
    pub(crate) fn due(&mut self, now: Instant, reserve: impl FnOnce(Instant) -> Instant) -> bool {
        if let Phase::Folding { until } = self.phase
            && until <= now
        {
            self.phase = Phase::Reserved { at: reserve(now) };
        }
        if let Phase::Reserved { at } = self.phase
            && at <= now
        {
            self.phase = Phase::Idle;
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COALESCE: Duration = Duration::from_millis(200);

    fn at(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn the_first_change_and_one_after_a_quiet_time_are_published_at_once() {
        let start = Instant::now();
        let mut schedule = Schedule::new(COALESCE);
        assert_eq!(schedule.wake_at(), None);
        schedule.changed(start);
        assert!(schedule.due(start, |now| now));
        schedule.published(start);
        assert_eq!(schedule.wake_at(), None);

        schedule.changed(at(start, 200));
        assert!(schedule.due(at(start, 200), |now| now));
    }

    #[test]
    fn changes_soon_after_a_publication_are_folded_into_one() {
        let start = Instant::now();
        let mut schedule = Schedule::new(COALESCE);
        schedule.changed(start);
        assert!(schedule.due(start, |now| now));
        schedule.published(start);
        schedule.changed(at(start, 10));
        schedule.changed(at(start, 150));
        assert_eq!(schedule.wake_at(), Some(at(start, 200)));
        assert!(!schedule.due(at(start, 199), |_| panic!("asked too early")));
        assert!(schedule.due(at(start, 200), |now| now));
        assert!(!schedule.due(at(start, 500), |now| now));
    }

    #[test]
    fn the_limiter_is_called_once_per_publication() {
        let start = Instant::now();
        let mut schedule = Schedule::new(COALESCE);
        schedule.changed(start);
        assert!(!schedule.due(start, |now| now + Duration::from_millis(8)));
        schedule.changed(at(start, 4));
        assert_eq!(schedule.wake_at(), Some(at(start, 8)));
        assert!(!schedule.due(at(start, 4), |_| panic!("asked twice")));
        assert!(schedule.due(at(start, 8), |_| panic!("asked twice")));
    }

    #[test]
    fn an_unchanged_snapshot_delays_nothing() {
        let start = Instant::now();
        let mut schedule = Schedule::new(COALESCE);
        schedule.changed(start);
        assert!(schedule.due(start, |now| now));
        schedule.changed(at(start, 1));
        assert!(schedule.due(at(start, 1), |now| now));
        assert_eq!(schedule.wake_at(), None);
    }
}
