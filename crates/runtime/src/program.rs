//! Runs a program's main future, and ends the process without delay.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Runtime;

/// How long blocking threads may take after the main future has ended. Everything important has been
/// awaited by then. What remains is name resolution with unresponsive servers, which can take minutes
/// and cannot be interrupted.
const THREAD_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs a program's main future to completion, and returns at most 100 ms later.
///
/// Dropping a runtime instead would wait for its blocking threads indefinitely. Tasks are dropped in
/// both cases.
///
/// # Panics
///
/// When `main` panics.
pub fn block_on<F: Future>(runtime: Runtime, main: F) -> F::Output {
    let output = runtime.block_on(main);
    runtime.shutdown_timeout(THREAD_TIMEOUT);
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_thread_does_not_delay_the_end() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let output = block_on(runtime, async {
            let (started, start) = tokio::sync::oneshot::channel();
            drop(tokio::task::spawn_blocking(move || {
                started.send(()).unwrap();
                held.recv()
            }));
            start.await.unwrap();
            7
        });
        assert_eq!(output, 7);
        drop(release);
    }
}
