//! Limits how many snapshots all proxies together publish per second.
//!
//! A change that every proxy depends on (a new root, a new `proxy-defaults`) would otherwise
//! rebuild every configuration at once and starve everything else on the machine. The limiter only
//! reserves slots; the driver waits for them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A token bucket that holds one token, shared by all proxies.
#[derive(Debug)]
pub(crate) struct Limiter {
    interval: Duration,
    next: Mutex<Option<Instant>>,
}

impl Limiter {
    /// At most `per_second` slots per second; 0 means no limit.
    pub(crate) fn new(per_second: u32) -> Self {
        let interval = match per_second {
            0 => Duration::ZERO,
            rate => Duration::from_secs(1) / rate,
        };
        Self {
            interval,
            next: Mutex::new(None),
        }
    }

    /// Reserves the next free slot, not before `now`. A slot is never returned.
    pub(crate) fn reserve(&self, now: Instant) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = next.map_or(now, |next| next.max(now));
        *next = Some(slot + self.interval);
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_proxy_is_not_delayed() {
        let limiter = Limiter::new(250);
        let start = Instant::now();
        assert_eq!(limiter.reserve(start), start);
        let later = start + Duration::from_millis(4);
        assert_eq!(limiter.reserve(later), later);
    }

    #[test]
    fn many_proxies_are_spread_over_a_second() {
        let limiter = Limiter::new(250);
        let start = Instant::now();
        let slots: Vec<_> = (0..250).map(|_| limiter.reserve(start)).collect();
        assert!(slots.is_sorted());
        assert_eq!(slots[249] - start, Duration::from_millis(4) * 249);
    }

    #[test]
    fn zero_disables_the_limit() {
        let limiter = Limiter::new(0);
        let start = Instant::now();
        assert!((0..1000).all(|_| limiter.reserve(start) == start));
    }
}
