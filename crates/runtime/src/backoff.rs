//! Bounded exponential backoff with jitter.
//!
//! Pure arithmetic: neither waits nor generates random numbers.

use std::time::Duration;

/// Parameters of a backoff.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackoffPolicy {
    /// Mean of the first delay.
    pub initial: Duration,
    /// Factor between consecutive delays, at least 1.
    pub multiplier: f64,
    /// Maximum relative deviation of a delay, 0 to 1.
    pub jitter: f64,
    /// Mean of the longest delay. With jitter, a delay is at most `cap * (1 + jitter)`.
    ///
    /// Jitter applies to the cap as well, so that many clients at the cap do not synchronise.
    pub cap: Duration,
}

impl BackoffPolicy {
    /// For connections to servers: from 500 ms, growing by half, with 50 % jitter, up to one minute.
    /// These are the values of Consul's dataplane.
    pub const SERVER: BackoffPolicy = BackoffPolicy {
        initial: Duration::from_millis(500),
        multiplier: 1.5,
        jitter: 0.5,
        cap: Duration::from_secs(60),
    };

    /// For other datacenters: like [`BackoffPolicy::SERVER`], but delays are at most 22.5 s. An attempt costs nothing while
    /// a datacenter cannot be reached, and all that is late there waits for the next one.
    pub const DATACENTER: BackoffPolicy = BackoffPolicy {
        cap: Duration::from_secs(15),
        ..BackoffPolicy::SERVER
    };

    /// For a proxy without configuration, which cannot serve yet: like [`BackoffPolicy::SERVER`], but
    /// delays are at most 4.5 s.
    pub const UNCONFIGURED: BackoffPolicy = BackoffPolicy {
        cap: Duration::from_secs(3),
        ..BackoffPolicy::SERVER
    };
}

/// State of a series of attempts.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    interval: Duration,
}

impl Backoff {
    /// A series without failures so far.
    #[must_use]
    pub fn new(policy: BackoffPolicy) -> Backoff {
        Backoff {
            policy,
            interval: policy.initial.min(policy.cap),
        }
    }

    /// The delay before the next attempt; `random` is uniform between 0 and 1.
    pub fn next(&mut self, random: f64) -> Duration {
        let jitter = fraction(self.policy.jitter);
        let factor = 1.0 - jitter + 2.0 * jitter * fraction(random);
        let delay = scale(self.interval, factor);
        self.interval = scale(self.interval, self.policy.multiplier.max(1.0)).min(self.policy.cap);
        delay
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        *self = Backoff::new(self.policy);
    }
}

fn fraction(value: f64) -> f64 {
    if value.is_nan() {
        return 0.0;
    }
    value.clamp(0.0, 1.0)
}

/// Multiplies, but without the panic of `Duration::mul_f64` on overflow.
fn scale(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn grows_by_half_up_to_a_minute_and_starts_over() {
        let mut backoff = Backoff::new(BackoffPolicy::SERVER);
        let middle: Vec<u128> = (0..4).map(|_| backoff.next(0.5).as_millis()).collect();
        assert_eq!(middle, [500, 750, 1125, 1687]);
        for _ in 0..30 {
            backoff.next(0.5);
        }
        assert_eq!(backoff.next(0.5), Duration::from_secs(60));
        assert_eq!(backoff.next(1.0), Duration::from_secs(90));
        assert_eq!(backoff.next(0.0), Duration::from_secs(30));
        backoff.reset();
        assert_eq!(backoff.next(0.0), Duration::from_millis(250));
    }

    proptest! {
        #[test]
        fn delays_are_bounded_for_every_policy(
            initial_ms in 0_u64..u64::MAX / 2, cap_ms in 0_u64..u64::MAX / 2,
            multiplier in -2.0..1e300_f64, jitter in -1.0..3.0_f64,
            randoms in proptest::collection::vec(any::<f64>(), 1..40),
        ) {
            let cap = Duration::from_millis(cap_ms);
            let policy = BackoffPolicy { initial: Duration::from_millis(initial_ms), multiplier, jitter, cap };
            let mut backoff = Backoff::new(policy);
            for random in randoms {
                // Seconds as f64 lose the nanoseconds of very long delays.
                prop_assert!(backoff.next(random).as_secs_f64() <= 2.0 * cap.as_secs_f64() * 1.000_001);
            }
        }
    }
}
