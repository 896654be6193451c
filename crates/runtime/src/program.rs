//! How a program runs: its main future, and an end that nothing holds up.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Runtime;

/// How long threads may still take when the main future is done. What matters has been waited for
/// by then; what is left is the look-up of a name whose server does not answer, which can take
/// minutes and cannot be interrupted.
const THREADS: Duration = Duration::from_millis(100);

/// Runs a program's main future to its end, and returns a tenth of a second later at most.
///
/// Dropping a runtime waits for its blocking threads without a bound. Tasks are dropped as then.
///
/// # Panics
///
/// When `main` does.
pub fn block_on<F: Future>(runtime: Runtime, main: F) -> F::Output {
    let output = runtime.block_on(main);
    runtime.shutdown_timeout(THREADS);
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_end_holds_up_nothing() {
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
