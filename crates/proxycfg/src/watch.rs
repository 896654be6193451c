//! The receiving end: the latest snapshot of one proxy, and why there are no more.
//!
//! It never queues. Who is slow misses what was overtaken in the meantime, and nothing else.

use std::sync::Arc;

use legate_runtime::Share;
use tokio::sync::watch;

use crate::error::Ended;
use crate::lease::{Lease, Published};
use crate::snapshot::{ProxyId, Snapshot};

/// Watches one proxy's snapshots. The source runs for as long as somebody holds one of these.
#[derive(Debug)]
pub struct SnapshotWatch {
    receiver: watch::Receiver<Published>,
    reason: Option<Ended>,
    lease: Arc<Lease>,
}

impl SnapshotWatch {
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        let mut receiver = lease.receiver();
        // What was published before this watch began is news to it.
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

    /// The share of a pool under which work for the proxy is done, whoever watches it.
    pub fn share(&self) -> &Share {
        self.lease.share()
    }

    /// Waits for a snapshot newer than the one given last, and gives the latest.
    ///
    /// The first call gives what is there already. `None` means that the source is gone, and
    /// [`SnapshotWatch::reason`] tells why. Dropping the future loses nothing.
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

    /// Why [`SnapshotWatch::next`] gave `None`.
    pub fn reason(&self) -> Option<&Ended> {
        self.reason.as_ref()
    }
}
