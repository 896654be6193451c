//! Retries with a time limit. `cargo xtask kind` includes this module as well.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

/// Retries until success; returns the last error after `limit`.
pub(crate) fn retry<T>(
    limit: Duration,
    what: &str,
    mut attempt: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let start = SystemTime::now();
    loop {
        let error = match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if start.elapsed().unwrap_or_default() >= limit {
            return Err(error.context(format!("{what}: not within {} s", limit.as_secs())));
        }
        sleep(Duration::from_millis(200));
    }
}
