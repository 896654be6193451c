//! Values that one reader needs repeatedly. Each is cached until one of its inputs has changed, and
//! only then read again.
//!
//! For values that many readers share, see [`ReadTxn::shared`].

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::read::ReadTxn;
use crate::watch::{Mark, WatchGuard};

/// Waits for changes of the cached values of one reader.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    notify: Arc<Notify>,
}

impl Follower {
    /// Returns when a cached value has become stale, once for all of them. Cancel-safe.
    pub async fn changed(&self) {
        self.notify.notified().await;
    }

    /// Discards earlier notifications. To be called before a state is read that includes those
    /// changes.
    pub fn forget(&self) {
        pin!(self.notify.notified()).enable();
    }
}

/// A cached value. Dropping it ends its watch.
pub struct Kept<T> {
    held: Option<Cached<T>>,
}

struct Cached<T> {
    value: T,
    mark: Arc<Mark>,
    /// Whether something that it was read from is not known yet.
    is_pending: bool,
    _place: WatchGuard,
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
    /// The cached value, or that of `read` if there is none or it is stale. `read` must depend only
    /// on the store. Without a follower, and in a transaction that is not committed, nothing is
    /// cached, and the reads are recorded in `txn`.
    pub fn get<'s>(
        &mut self,
        txn: &ReadTxn<'s>,
        follower: Option<&Follower>,
        read: impl FnOnce(&ReadTxn<'s>) -> T,
    ) -> T {
        let Some(follower) = follower.filter(|_| txn.committed) else {
            return read(txn);
        };
        let fresh = |held: &&Cached<T>| !held.mark.is_set();
        if let Some(held) = self.held.as_ref().filter(fresh) {
            if held.is_pending {
                txn.set_pending();
            }
            return held.value.clone();
        }
        let inner = txn.apart();
        let value = read(&inner);
        let is_pending = inner.is_pending();
        if is_pending {
            txn.set_pending();
        }
        let mark = Arc::new(Mark::new(&follower.notify));
        let registry = &txn.state.queries.registry;
        // The new watch starts before the old one is dropped, so that shared results are held
        // throughout.
        let place = registry.watch_kept(&inner.into_reads(), &mark);
        self.held = Some(Cached {
            value: value.clone(),
            mark,
            is_pending,
            _place: place,
        });
        value
    }
}
