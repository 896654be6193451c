//! Wall-clock time as a parameter, so that tests can control it.
//!
//! Waits and measurements use `tokio::time`. This clock is for recorded times, such as the validity
//! of certificates and the expiry of tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Source of the current time. Clones share the same time.
#[derive(Clone, Debug)]
pub struct Clock {
    test: Option<TestClock>,
}

#[derive(Clone, Debug)]
struct TestClock {
    start: SystemTime,
    since: Instant,
    /// Seconds that were skipped independently of tokio's time.
    skipped: Arc<AtomicU64>,
}

impl Clock {
    /// The system clock.
    #[must_use]
    pub fn system() -> Clock {
        Clock { test: None }
    }

    /// A clock that starts at `start` and advances with tokio's time, which tests can pause.
    #[must_use]
    pub fn at(start: SystemTime) -> Clock {
        Clock {
            test: Some(TestClock {
                start,
                since: Instant::now(),
                skipped: Arc::default(),
            }),
        }
    }

    /// Advances a clock of [`Clock::at`] and its clones by whole seconds without advancing tokio's
    /// time, like a machine that was suspended. No effect on the system clock.
    pub fn skip(&self, time: Duration) {
        if let Some(test) = &self.test {
            test.skipped.fetch_add(time.as_secs(), Ordering::Relaxed);
        }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        match &self.test {
            None => SystemTime::now(),
            Some(test) => {
                let skipped = Duration::from_secs(test.skipped.load(Ordering::Relaxed));
                test.start + test.since.elapsed() + skipped
            }
        }
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::system()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn advances_with_the_time_of_tokio() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let clock = Clock::at(start);
        let copy = clock.clone();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(copy.now(), start + Duration::from_secs(3600));
        assert_eq!(clock.now(), copy.now());
        copy.skip(Duration::from_secs(60));
        assert_eq!(clock.now(), start + Duration::from_secs(3660));
    }
}
