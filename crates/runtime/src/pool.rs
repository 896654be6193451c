//! A pool for long computations on a bounded number of threads, so that the threads that serve
//! connections remain responsive.
//!
//! For work that uses the CPU for at least a millisecond: the handover costs about ten microseconds.
//! The queue has no limit of its own, but each waiting caller has only one entry in it.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::{Mutex, Semaphore};

use crate::scope::Spawner;

/// Runs computations in order of arrival, a fixed number at a time. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Pool {
    spawner: Spawner,
    slots: Arc<Semaphore>,
}

/// Groups computations. Only one of a share is in the queue at a time, so that no share can fill the
/// pool alone. Clones denote the same share.
#[derive(Clone, Debug, Default)]
pub struct Share(Arc<Mutex<()>>);

impl Pool {
    /// A pool with as many threads as CPUs. Computations belong to the spawner's scope, which waits
    /// for them when it stops.
    #[must_use]
    pub fn new(spawner: Spawner) -> Self {
        Self::with(
            spawner,
            available_parallelism().unwrap_or(NonZeroUsize::MIN),
        )
    }

    /// A pool with this many threads.
    #[must_use]
    pub fn with(spawner: Spawner, threads: NonZeroUsize) -> Self {
        Self {
            spawner,
            slots: Arc::new(Semaphore::new(threads.get())),
        }
    }

    /// Runs `work` when its turn comes; `None` if the scope has ended. If the future is dropped,
    /// queued work is discarded, whereas running work continues and its result is discarded.
    ///
    /// # Panics
    ///
    /// When `work` panics, with the same payload.
    pub async fn run<T: Send + 'static>(
        &self,
        name: impl Into<Cow<'static, str>>,
        share: &Share,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turn = Arc::clone(&share.0).lock_owned().await;
        // The semaphore is never closed.
        let slot = Arc::clone(&self.slots).acquire_owned().await.ok()?;
        let entry = self.spawner.enter(name.into())?;
        let running = tokio::task::spawn_blocking(move || {
            let _held = (turn, slot, entry);
            work()
        });
        match running.await {
            Ok(value) => Some(value),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
