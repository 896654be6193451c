//! Waits for what has no event to wait for, such as what a server has read from a connection. What
//! has one (a blocking query, a watch, a channel) is waited for by that.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(30);
/// The first pause between two looks; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Looks again and again until there is a value, and returns it.
///
/// # Panics
///
/// After 30 seconds, with what the last look saw instead.
pub async fn until<T>(mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + LIMIT;
    let mut pause = FIRST_PAUSE;
    loop {
        match look().await {
            Ok(value) => return value,
            Err(seen) => assert!(Instant::now() < end, "not within {LIMIT:?}: {seen}"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
