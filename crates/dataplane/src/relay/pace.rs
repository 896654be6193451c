//! Delay before a lost stream to a server is reopened. Pure: time and randomness are passed in.

use std::time::Duration;

use legate_runtime::{Backoff, BackoffPolicy};

/// A stream that lives this long ends a series of failures.
const STABLE: Duration = Duration::from_secs(5);

/// Number of consecutive refusals that may come from a server with stale state.
pub(super) const PATIENCE: u32 = 3;

/// Backoff for refusals that need an operator: from 5 s to 2 minutes.
const REFUSED: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_secs(5),
    multiplier: 2.0,
    jitter: 0.5,
    cap: Duration::from_secs(120),
};

/// A series of failures.
#[derive(Debug)]
pub(super) struct Pace {
    usual: Backoff,
    refused: Backoff,
    configured: bool,
    failures: u32,
    refusals: u32,
}

impl Pace {
    pub(super) fn new() -> Pace {
        Pace {
            usual: Backoff::new(BackoffPolicy::UNCONFIGURED),
            refused: Backoff::new(REFUSED),
            configured: false,
            failures: 0,
            refusals: 0,
        }
    }

    /// The delay after the loss of a stream that lived for `lived`. It stays short until Envoy is
    /// `configured`, unless an operator has to act. `random` is between 0 and 1.
    pub(super) fn lost(
        &mut self,
        refused: bool,
        lived: Duration,
        configured: bool,
        random: f64,
    ) -> Duration {
        if lived >= STABLE {
            *self = Pace::new();
        }
        if configured && !self.configured {
            self.configured = true;
            self.usual = Backoff::new(BackoffPolicy::SERVER);
        }
        self.failures += 1;
        self.refusals = if refused { self.refusals + 1 } else { 0 };
        if self.refusals < PATIENCE {
            self.usual.next(random)
        } else {
            self.refused.next(random)
        }
    }

    /// Whether this was the first failure of its series, so that another server can be tried at
    /// once.
    pub(super) fn is_first(&self) -> bool {
        self.failures <= 1
    }

    /// Consecutive refusals.
    pub(super) fn refusals(&self) -> u32 {
        self.refusals
    }

    /// A server has responded, so earlier refusals no longer count.
    pub(super) fn answered(&mut self) {
        self.refusals = 0;
        self.refused.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);

    #[test]
    fn refusals_slow_down_after_some_patience() {
        let mut pace = Pace::new();
        let delays: Vec<u64> = (0..5)
            .map(|_| pace.lost(true, SHORT, true, 0.5).as_secs())
            .collect();
        assert_eq!(delays, [0, 0, 5, 10, 20]);
        pace.answered();
        assert!(pace.lost(true, SHORT, true, 0.5) < Duration::from_secs(5));
    }

    #[test]
    fn an_envoy_without_a_configuration_waits_seconds_only() {
        let longest = |configured| {
            let mut pace = Pace::new();
            let delays = (0..40).map(|_| pace.lost(false, SHORT, configured, 1.0));
            delays.max().unwrap()
        };
        assert_eq!(longest(false), Duration::from_millis(4_500));
        assert_eq!(longest(true), Duration::from_secs(90));
    }

    #[test]
    fn a_stable_stream_starts_a_new_series() {
        let mut pace = Pace::new();
        let first = pace.lost(false, SHORT, true, 0.5);
        assert!(pace.is_first());
        assert!(pace.lost(false, SHORT, true, 0.5) > first);
        assert!(!pace.is_first());
        assert_eq!(pace.lost(false, STABLE, true, 0.5), first);
        assert!(pace.is_first());
    }
}
