//! Delays between attempts: exponential, with jitter, bounded.
//!
//! Pure arithmetic: it neither waits nor draws random numbers.

use std::time::Duration;

/// How delays grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackoffPolicy {
    /// Middle of the first delay.
    pub initial: Duration,
    /// Factor from one delay to the next, at least 1.
    pub multiplier: f64,
    /// Share of a delay by which it may be shorter or longer, 0 to 1.
    pub jitter: f64,
    /// Middle of the longest delay; with jitter a delay reaches `cap * (1 + jitter)`.
    ///
    /// The jitter stays on top so that many clients at the cap do not come in step.
    pub cap: Duration,
}

impl BackoffPolicy {
    /// For connections to servers: 500 ms growing by half, jitter one half, up to a minute.
    /// The values are those that Consul's own dataplane uses.
    pub const SERVER: BackoffPolicy = BackoffPolicy {
        initial: Duration::from_millis(500),
        multiplier: 1.5,
        jitter: 0.5,
        cap: Duration::from_secs(60),
    };

    /// The same until a proxy has its configuration: it serves nobody until then, so that a delay
    /// is 4.5 s at most.
    pub const UNCONFIGURED: BackoffPolicy = BackoffPolicy {
        cap: Duration::from_secs(3),
        ..BackoffPolicy::SERVER
    };
}

/// The state of one series of attempts.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    interval: Duration,
}

impl Backoff {
    /// A series that has not failed yet.
    #[must_use]
    pub fn new(policy: BackoffPolicy) -> Backoff {
        Backoff {
            policy,
            interval: policy.initial.min(policy.cap),
        }
    }

    /// The delay before the next attempt; `random` is drawn uniformly from 0 to 1.
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

/// Multiplies without the panic of `Duration::mul_f64` on overflow.
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
        fn no_policy_panics_or_leaves_its_bounds(
            initial_ms in 0_u64..u64::MAX / 2, cap_ms in 0_u64..u64::MAX / 2,
            multiplier in -2.0..1e300_f64, jitter in -1.0..3.0_f64,
            randoms in proptest::collection::vec(any::<f64>(), 1..40),
        ) {
            let cap = Duration::from_millis(cap_ms);
            let policy = BackoffPolicy { initial: Duration::from_millis(initial_ms), multiplier, jitter, cap };
            let mut backoff = Backoff::new(policy);
            for random in randoms {
                // Seconds as f64 lose nanoseconds of very long delays.
                prop_assert!(backoff.next(random).as_secs_f64() <= 2.0 * cap.as_secs_f64() * 1.000_001);
            }
        }
    }
}
