//! What a proxy's snapshot is, by the kind of its registration: one pure function a kind, from a
//! look at the store to the snapshot.
//!
//! A kind reads what it needs in the order in which it needs it. What it reads is what it is
//! computed from again; nothing is listed a second time. A new kind is a file with its `check` and its
//! `snapshot`, and a [`Kind`] that leads to them.

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

/// What can be said about a proxy now.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Everything that its configuration depends on.
    Ready(Box<Snapshot>),
    /// Something is missing that will come: the registration of an agent that restarts, the first
    /// certificate.
    Pending,
}

/// What is kept from one snapshot of a proxy for the next one. Without a follower nothing is.
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

/// The kinds that are served.
enum Kind {
    Sidecar,
}

/// The kind of a proxy whose registration says enough to be served.
fn kind(proxy: &ProxyId, instance: &ServiceInstance) -> Result<Kind, WatchError> {
    match instance.kind {
        ServiceKind::ConnectProxy => sidecar::check(proxy, instance).map(|()| Kind::Sidecar),
        other => Err(WatchError::NotAProxy {
            proxy: proxy.clone(),
            kind: other.as_str().to_owned(),
        }),
    }
}

/// The snapshot of a proxy as of the state that is read, whosever rows the reader looks at.
///
/// # Errors
///
/// When the registration is not one that can be served.
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

/// The same for a reader of the proxy's own tenancy.
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

/// The snapshot of a proxy as of the state that is read, with this certificate: what a
/// [`crate::Manager`] publishes, for those who have a state and nothing that runs. `None` while
/// something is missing: the registration, the roots, or a certificate of the proxy's service.
///
/// # Errors
///
/// When the registration is not one that can be served.
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

/// Whether a registration is that of a proxy that can be served.
pub(crate) fn check(proxy: &ProxyId, instance: &ServiceInstance) -> Result<(), WatchError> {
    kind(proxy, instance).map(drop)
}
