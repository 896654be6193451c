//! Polls for conditions without an event, such as what a server has read from a connection.
//! Conditions with one (a blocking query, a watch, a channel) should be awaited instead.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The timeout.
const LIMIT: Duration = Duration::from_secs(30);
/// The first pause between polls; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The maximum pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Polls until there is a value, and returns it.
///
/// # Panics
///
/// After 30 seconds, with the result of the last poll.
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
