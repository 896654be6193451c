//! Values that one reader reads again and again. It keeps each of them until something that it was
//! read from has changed, and reads nothing else again.
//!
//! What many readers need alike is a shared result, see [`ReadTxn::shared`].

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::read::ReadTxn;
use crate::watch::{Mark, Place};

/// Waits for changes of the values that are kept for it.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    bell: Arc<Notify>,
}

impl Follower {
    /// Returns when a kept value has to be read again, once for all of them. Cancel safe.
    pub async fn changed(&self) {
        self.bell.notified().await;
    }

    /// Forgets changes until now, for who is about to read a state that has them all.
    pub fn forget(&self) {
        pin!(self.bell.notified()).enable();
    }
}

/// A value that is kept. Dropping it gives up its place on the waiting list.
pub struct Kept<T> {
    held: Option<Held<T>>,
}

struct Held<T> {
    value: T,
    mark: Arc<Mark>,
    _place: Place,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { held: None }
    }
}

impl<T> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

impl<T: Clone> Kept<T> {
    /// The value, by `read` when there is none yet or something that it was read from has changed.
    /// `read` must depend on nothing but the store. Without a follower, and in a transaction that
    /// others do not see, nothing is kept, and the reads are those of the transaction.
    pub fn get<'s>(
        &mut self,
        txn: &ReadTxn<'s>,
        follower: Option<&Follower>,
        read: impl FnOnce(&ReadTxn<'s>) -> T,
    ) -> T {
        let Some(follower) = follower.filter(|_| txn.committed) else {
            return read(txn);
        };
        let fresh = |held: &&Held<T>| !held.mark.is_set();
        if let Some(held) = self.held.as_ref().filter(fresh) {
            return held.value.clone();
        }
        let inner = txn.apart();
        let value = read(&inner);
        let mark = Arc::new(Mark::new(&follower.bell));
        let registry = &txn.state.queries.registry;
        // The new place is taken before the old one is given up: nobody else sees a result without
        // anyone who holds it.
        let place = registry.watch_kept(&inner.into_reads(), &mark);
        self.held = Some(Held {
            value: value.clone(),
            mark,
            _place: place,
        });
        value
    }
}
