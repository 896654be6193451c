//! Wall-clock time as a value that is passed in, so that tests can choose it.
//!
//! For waiting and measuring, `tokio::time` is the clock; this one is for what is written down:
//! validity of certificates, expiry of tokens.

use std::time::SystemTime;

use tokio::time::Instant;

/// Source of the current time. Copies share it.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Option<(SystemTime, Instant)>,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Clock {
        Clock { start: None }
    }

    /// A clock that shows `start` now and advances with tokio's time, which tests can pause.
    #[must_use]
    pub fn at(start: SystemTime) -> Clock {
        Clock {
            start: Some((start, Instant::now())),
        }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        match self.start {
            None => SystemTime::now(),
            Some((time, since)) => time + since.elapsed(),
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
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn advances_with_the_time_of_tokio() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let clock = Clock::at(start);
        let copy = clock.clone();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(copy.now(), start + Duration::from_secs(3600));
        assert_eq!(clock.now(), copy.now());
    }
}
