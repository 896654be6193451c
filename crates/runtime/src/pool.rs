//! Long computations, on a bounded number of threads of their own, so that the threads that serve
//! connections stay free.
//!
//! It is for work that keeps a processor busy for a millisecond and longer: handing over costs about
//! ten microseconds. It never queues without a bound by itself: whoever waits for an answer is in
//! the queue once.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::{Mutex, Semaphore};

use crate::scope::Spawner;

/// Runs computations, a fixed number at a time and in the order in which they come. Clones are the
/// same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    spawner: Spawner,
    slots: Arc<Semaphore>,
}

/// Whose computations these are: of those with one share, the next comes into the queue when the
/// one before is done. So nobody fills the pool alone. Clones are the same share.
#[derive(Clone, Debug, Default)]
pub struct Share(Arc<Mutex<()>>);

impl Pool {
    /// As many threads as there are processors. What runs belongs to the spawner's scope, which
    /// waits for it when it stops.
    #[must_use]
    pub fn new(spawner: Spawner) -> Self {
        Self::with(
            spawner,
            available_parallelism().unwrap_or(NonZeroUsize::MIN),
        )
    }

    /// The same with this many threads.
    #[must_use]
    pub fn with(spawner: Spawner, threads: NonZeroUsize) -> Self {
        Self {
            spawner,
            slots: Arc::new(Semaphore::new(threads.get())),
        }
    }

    /// Runs `work` when its turn has come; `None` when the scope has ended. Work that waits is given
    /// up when the future is dropped; what has begun goes on, for nobody.
    ///
    /// # Panics
    ///
    /// When `work` does, with the same panic.
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
