//! When one proxy's snapshot is published: at once after a quiet time, coalesced after a recent
//! one. A snapshot that lacks what other datacenters were asked for is pending: it waits for them, but not for ever, since
//! changes may go on asking for more.
//!
//! Pure: it takes the time as an argument and returns when to call it again. It publishes nothing
//! itself.

use std::time::Duration;

use tokio::time::Instant;

/// How long the first snapshot is pending at most. Where a server has just started, its proxies have the endpoints that
/// it is asking for, and it may ask for thousands of them.
const LONGEST_FIRST: Duration = Duration::from_secs(30);
/// How long another one is. Twice the time for an answer of another datacenter.
const LONGEST: Duration = Duration::from_secs(10);

/// Decides when the snapshots of one proxy are published.
#[derive(Debug)]
pub(crate) struct Schedule {
    coalesce: Duration,
    last: Option<Instant>,
    phase: Phase,
    pending: Option<Pending>,
}

/// What is computed is pending.
#[derive(Debug, Clone, Copy)]
struct Pending {
    since: Instant,
    /// When it was computed last.
    computed: Instant,
    /// Whether it is to be computed when it has been pending for too long.
    is_timed: bool,
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
            pending: None,
        }
    }

    /// Records a change. Changes while a publication is due are published with it.
    pub(crate) fn changed(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Idle) {
            let computed = self.pending.map(|pending| pending.computed);
            let last = self.last.max(computed);
            let until = last.map_or(now, |last| now.max(last + self.coalesce));
            self.phase = Phase::Folding { until };
        }
    }

    /// Records a publication. Computing a snapshot without a difference is not one.
    pub(crate) fn published(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Records that the snapshot that was computed now is pending. Returns whether it is to be published nevertheless,
    /// because this has lasted too long. The next one that is pending may last as long.
    pub(crate) fn pending(&mut self, now: Instant) -> bool {
        let since = self.pending.map_or(now, |pending| pending.since);
        let pending = Pending {
            since,
            computed: now,
            is_timed: true,
        };
        self.pending = (now < self.end(pending)).then_some(pending);
        self.pending.is_none()
    }

    /// Records that the snapshot that was computed is not pending.
    pub(crate) fn complete(&mut self) {
        self.pending = None;
    }

    fn end(&self, pending: Pending) -> Instant {
        let longest = match self.last {
            None => LONGEST_FIRST,
            Some(_) => LONGEST,
        };
        pending.since + longest
    }

    /// When a pending snapshot has been so for too long.
    fn overdue_at(&self) -> Option<Instant> {
        let timed = self.pending.filter(|pending| pending.is_timed);
        timed.map(|pending| self.end(pending))
    }

    /// When to call [`Schedule::due`] next, `None` while there is nothing to publish.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle => self.overdue_at(),
            Phase::Folding { until } => Some(until),
            Phase::Reserved { at } => Some(at),
        }
    }

    /// Whether to compute a snapshot now. `reserve` takes a slot of the shared limiter. It is
    /// called once for each publication and only after the coalescing interval, so that no slot is
    /// held unused.
    pub(crate) fn due(&mut self, now: Instant, reserve: impl FnOnce(Instant) -> Instant) -> bool {
        if matches!(self.phase, Phase::Idle) && self.overdue_at().is_some_and(|at| at <= now) {
            self.phase = Phase::Folding { until: now };
        }
        if let Phase::Folding { until } = self.phase
            && until <= now
        {
            self.phase = Phase::Reserved { at: reserve(now) };
        }
        if let Phase::Reserved { at } = self.phase
            && at <= now
        {
            self.phase = Phase::Idle;
            if let Some(pending) = &mut self.pending {
                pending.is_timed = false;
            }
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

    /// Computes a pending snapshot at once.
    fn is_pending(schedule: &mut Schedule, now: Instant) -> bool {
        assert!(schedule.due(now, |now| now));
        !schedule.pending(now)
    }

    #[test]
    fn a_pending_snapshot_is_published_after_a_limited_time_whatever_changes() {
        let start = Instant::now();
        let mut schedule = Schedule::new(COALESCE);
        schedule.changed(start);
        assert!(is_pending(&mut schedule, start));
        assert_eq!(schedule.wake_at(), Some(at(start, 30_000)), "the first one");
        schedule.changed(at(start, 29_000));
        assert!(is_pending(&mut schedule, at(start, 29_000)));
        assert!(!is_pending(&mut schedule, at(start, 30_000)));
        schedule.published(at(start, 30_000));
        assert_eq!(schedule.wake_at(), None);

        let later = at(start, 60_000);
        for second in 0..10 {
            schedule.changed(at(later, second * 1000));
            assert!(is_pending(&mut schedule, at(later, second * 1000)));
            assert_eq!(schedule.wake_at(), Some(at(later, 10_000)));
        }
        assert!(!is_pending(&mut schedule, at(later, 10_000)));
        // It may be the same as the one before: then nothing is published.
        assert_eq!(schedule.wake_at(), None);
        schedule.changed(at(later, 10_001));
        assert!(is_pending(&mut schedule, at(later, 10_001)));
        assert_eq!(schedule.wake_at(), Some(at(later, 20_001)));
        schedule.changed(at(later, 11_000));
        assert!(schedule.due(at(later, 11_000), |now| now));
        schedule.complete();
        assert_eq!(schedule.wake_at(), None);
    }

    #[test]
    fn changes_while_a_snapshot_is_pending_are_folded() {
        let start = Instant::now();
        let mut schedule = Schedule::new(COALESCE);
        schedule.changed(start);
        assert!(is_pending(&mut schedule, start));
        schedule.changed(at(start, 10));
        schedule.changed(at(start, 100));
        assert_eq!(schedule.wake_at(), Some(at(start, 200)));
        assert!(is_pending(&mut schedule, at(start, 200)));
        schedule.changed(at(start, 300));
        assert_eq!(schedule.wake_at(), Some(at(start, 400)));
        assert!(schedule.due(at(start, 400), |now| now));
        schedule.complete();
        schedule.published(at(start, 400));
        schedule.changed(at(start, 1000));
        assert_eq!(schedule.wake_at(), Some(at(start, 1000)));
    }

    #[test]
    fn a_snapshot_that_was_pending_and_cannot_be_computed_any_more_is_not_tried_for_ever() {
        let start = Instant::now();
        let mut schedule = Schedule::new(COALESCE);
        schedule.changed(start);
        assert!(is_pending(&mut schedule, start));
        assert!(schedule.due(at(start, 30_000), |now| now));
        assert_eq!(schedule.wake_at(), None);
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
