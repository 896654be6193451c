//! Computes a proxy's snapshot by the kind of its registration, with one pure function per kind.
//!
//! A kind reads its inputs in the order in which it needs them. The reads themselves are recorded
//! as the snapshot's dependencies, so there is no separate list of them. A new kind is a file with
//! a `check` and a `snapshot` function, and a variant of [`Kind`] that calls them.

pub(crate) mod leaves;
mod sidecar;

use std::sync::Arc;

use legate_ca::Leaf;
use legate_model::{CheckServiceNode, ServiceInstance, ServiceKind, ServiceName};
use legate_store::{Follower, Kept, ReadTxn};

use self::leaves::Leaves;
use crate::config::ManagerConfig;
use crate::error::WatchError;
use crate::snapshot::{ProxyId, Snapshot};

/// The result of computing a proxy's snapshot.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The complete snapshot.
    Ready(Box<Snapshot>),
    /// An input is missing that is expected to appear: the registration while an agent restarts, or
    /// the first certificate.
    Pending,
}

/// Values cached from one snapshot of a proxy to the next. Without a follower nothing is cached.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    follower: Option<Follower>,
    registered: Kept<Option<Arc<CheckServiceNode>>>,
    sidecar: sidecar::Parts,
}

impl Parts {
    pub(crate) fn of(follower: Follower) -> Self {
        Self {
            follower: Some(follower),
            ..Self::default()
        }
    }
}

/// The supported kinds.
enum Kind {
    Sidecar,
}

/// The kind of a proxy, if its registration is complete enough to be served.
fn kind(proxy: &ProxyId, instance: &ServiceInstance) -> Result<Kind, WatchError> {
    match instance.kind {
        ServiceKind::ConnectProxy => sidecar::check(proxy, instance).map(|()| Kind::Sidecar),
        other => Err(WatchError::NotAProxy {
            proxy: proxy.clone(),
            kind: other.as_str().to_owned(),
        }),
    }
}

/// The snapshot of a proxy in the given state, whatever tenancy the reader is in.
///
/// # Errors
///
/// When the registration cannot be served.
pub(crate) fn snapshot(
    txn: &ReadTxn<'_>,
    proxy: &ProxyId,
    config: &ManagerConfig,
    leaves: &mut dyn Leaves,
    parts: &mut Parts,
) -> Result<Outcome, WatchError> {
    txn.in_tenancy(&proxy.tenancy, |txn| {
        own_snapshot(txn, proxy, config, leaves, parts)
    })
}

/// The same for a reader in the proxy's own tenancy.
fn own_snapshot(
    txn: &ReadTxn<'_>,
    proxy: &ProxyId,
    config: &ManagerConfig,
    leaves: &mut dyn Leaves,
    parts: &mut Parts,
) -> Result<Outcome, WatchError> {
    let follower = parts.follower.as_ref();
    let registered = parts.registered.get(txn, follower, |txn| {
        txn.instance(&proxy.node, &proxy.service_id).map(Arc::new)
    });
    let Some(found) = registered else {
        return Ok(Outcome::Pending);
    };
    let snapshot = match kind(proxy, &found.service)? {
        Kind::Sidecar => {
            let parts = (follower, &mut parts.sidecar);
            sidecar::snapshot(txn, proxy, &found, config, leaves, parts)
        }
    };
    Ok(snapshot.map_or(Outcome::Pending, |snapshot| {
        Outcome::Ready(Box::new(snapshot))
    }))
}

/// The certificate of one service.
struct OneLeaf(Arc<Leaf>);

impl Leaves for OneLeaf {
    fn current(&mut self, service: &ServiceName) -> Option<Arc<Leaf>> {
        (self.0.service == *service).then(|| Arc::clone(&self.0))
    }
}

/// Computes the snapshot of a proxy from a state and a certificate, as a [`crate::Manager`] does,
/// for callers without a running manager. Returns `None` while the registration, the roots or a
/// certificate of the proxy's service is missing.
///
/// # Errors
///
/// When the registration cannot be served.
pub fn snapshot_of(
    txn: &ReadTxn<'_>,
    proxy: &ProxyId,
    config: &ManagerConfig,
    leaf: Arc<Leaf>,
) -> Result<Option<Snapshot>, WatchError> {
    let mut parts = Parts::default();
    match snapshot(txn, proxy, config, &mut OneLeaf(leaf), &mut parts)? {
        Outcome::Ready(snapshot) => Ok(Some(*snapshot)),
        Outcome::Pending => Ok(None),
    }
}

/// Whether a registration is a proxy's and can be served.
pub(crate) fn check(proxy: &ProxyId, instance: &ServiceInstance) -> Result<(), WatchError> {
    kind(proxy, instance).map(drop)
}
