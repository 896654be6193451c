//! Throttling of repeated log lines.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Permits one line per interval, and counts the suppressed ones.
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    /// When a line was last permitted, and how many were suppressed since then.
    state: Mutex<(Option<Instant>, u64)>,
}

impl Throttle {
    /// The first line is always permitted.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            state: Mutex::default(),
        }
    }

    /// `None` if this line is suppressed, otherwise the number of lines suppressed since the last
    /// permitted one.
    pub fn pass(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, suppressed) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < self.interval) {
            *suppressed += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn repeated_lines_are_throttled() {
        let throttle = Throttle::new(SECOND);
        assert_eq!(throttle.pass(), Some(0));
        assert_eq!(throttle.pass(), None);
        advance(SECOND / 2).await;
        assert_eq!(throttle.pass(), None);
        advance(SECOND / 2).await;
        assert_eq!(throttle.pass(), Some(2));
        advance(2 * SECOND).await;
        assert_eq!(throttle.pass(), Some(0));
    }
}
