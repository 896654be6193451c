//! The lease that the watchers of one proxy share, and the registry of leases. A source runs while
//! its lease is held. This file starts no sources.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use legate_runtime::Share;
use tokio::sync::{oneshot, watch};

use crate::error::Ended;
use crate::snapshot::{ProxyId, Snapshot};

/// The state that a source publishes to its watchers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    /// The latest snapshot, `None` until the first one is complete.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    /// Set when there will be no more snapshots.
    pub(crate) ended: Option<Ended>,
}

/// The running sources by proxy. Weak: the watchers own them.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<ProxyId, Weak<Lease>>>,
}

impl Leases {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<ProxyId, Weak<Lease>>> {
        // Every change of the map is complete before anything can panic.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shared handle of all watchers of one source. Dropping it ends the source.
#[derive(Debug)]
pub(crate) struct Lease {
    proxy: ProxyId,
    receiver: watch::Receiver<Published>,
    leases: Arc<Leases>,
    share: Share,
    /// Dropping it completes the task's `abandoned` receiver.
    _in_use: oneshot::Sender<()>,
}

impl Lease {
    /// A lease that is not registered yet. Dropping it drops `in_use`.
    pub(crate) fn new(
        proxy: ProxyId,
        receiver: watch::Receiver<Published>,
        leases: Arc<Leases>,
        in_use: oneshot::Sender<()>,
    ) -> Self {
        Self {
            proxy,
            receiver,
            leases,
            share: Share::default(),
            _in_use: in_use,
        }
    }

    pub(crate) fn proxy(&self) -> &ProxyId {
        &self.proxy
    }

    pub(crate) fn receiver(&self) -> watch::Receiver<Published> {
        self.receiver.clone()
    }

    /// The snapshot that was published last.
    pub(crate) fn latest(&self) -> Option<Arc<Snapshot>> {
        self.receiver.borrow().snapshot.clone()
    }

    pub(crate) fn share(&self) -> &Share {
        &self.share
    }

    /// Whether the task still runs and has not announced its end.
    pub(crate) fn is_live(&self) -> bool {
        self.receiver.has_changed().is_ok() && self.receiver.borrow().ended.is_none()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut held = self.leases.lock();
        // A new source may have replaced this one by now; its entry stays.
        if held
            .get(&self.proxy)
            .is_some_and(|lease| lease.strong_count() == 0)
        {
            held.remove(&self.proxy);
        }
    }
}
