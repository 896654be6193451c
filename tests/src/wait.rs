//! Polls until a condition is met, with a timeout.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

/// The timeout of a scenario step, with a wide margin for slow machines.
pub const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Polls until `accept` returns true for the result, and returns it.
///
/// # Panics
///
/// After [`LIMIT`], with the last result.
pub async fn eventually<T, P>(
    what: &str,
    probe: impl FnMut() -> P,
    accept: impl Fn(&T) -> bool,
) -> T
where
    T: Debug,
    P: Future<Output = T>,
{
    eventually_within(LIMIT, what, probe, accept).await
}

/// The same with another timeout.
///
/// # Panics
///
/// After `limit`, with the last result.
pub async fn eventually_within<T, P>(
    limit: Duration,
    what: &str,
    mut probe: impl FnMut() -> P,
    accept: impl Fn(&T) -> bool,
) -> T
where
    T: Debug,
    P: Future<Output = T>,
{
    let start = Instant::now();
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = probe().await;
        if accept(&answer) {
            return answer;
        }
        assert!(
            start.elapsed() < limit,
            "{what}: still {answer:?} after {limit:?}"
        );
    }
}
