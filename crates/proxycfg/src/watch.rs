//! The receiving end: the latest snapshot of one proxy, and the reason why a watch ended.
//!
//! Nothing is queued: a slow watcher skips superseded snapshots.

use std::sync::Arc;

use legate_runtime::Share;
use tokio::sync::watch;

use crate::error::Ended;
use crate::lease::{Lease, Published};
use crate::snapshot::{ProxyId, Snapshot};

/// Watches one proxy's snapshots. The source runs while at least one watch exists.
#[derive(Debug)]
pub struct SnapshotWatch {
    receiver: watch::Receiver<Published>,
    reason: Option<Ended>,
    lease: Arc<Lease>,
}

impl SnapshotWatch {
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        let mut receiver = lease.receiver();
        // Snapshots that were published before this watch began are new to it.
        receiver.mark_changed();
        Self {
            receiver,
            reason: None,
            lease,
        }
    }

    /// The proxy that is watched.
    pub fn proxy(&self) -> &ProxyId {
        self.lease.proxy()
    }

    /// The pool share for work on behalf of the proxy, common to all of its watches.
    pub fn share(&self) -> &Share {
        self.lease.share()
    }

    /// Waits for a snapshot newer than the last one returned, and returns the latest.
    ///
    /// The first call returns the current snapshot, if there is one. `None` means that the source
    /// has ended, and [`SnapshotWatch::reason`] gives the reason. Cancel-safe.
    pub async fn next(&mut self) -> Option<Arc<Snapshot>> {
        loop {
            if self.receiver.changed().await.is_err() {
                let last = self.receiver.borrow().ended.clone();
                self.reason = Some(last.unwrap_or(Ended::Broken));
                return None;
            }
            let published = self.receiver.borrow_and_update().clone();
            if published.ended.is_some() {
                self.reason = published.ended;
                return None;
            }
            if published.snapshot.is_some() {
                return published.snapshot;
            }
        }
    }

    /// Why [`SnapshotWatch::next`] returned `None`.
    pub fn reason(&self) -> Option<&Ended> {
        self.reason.as_ref()
    }
}
