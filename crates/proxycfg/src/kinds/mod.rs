//! What a proxy's snapshot is, by the kind of its registration: one pure function a kind, from a
//! look at the store to the snapshot.
//!
//! A kind reads what it needs in the order in which it needs it. What it reads is what it is
//! computed from again; nothing is listed a second time. A new kind is a file with such a function
//! and an arm in [`snapshot`].

mod sidecar;

use std::sync::Arc;

use legate_ca::Leaf;
use legate_model::{ServiceInstance, ServiceKind};
use legate_store::ReadTxn;

use crate::error::WatchError;
use crate::manager::ManagerConfig;
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

/// The certificate of a service, when there is one already.
pub(crate) trait Leaves {
    fn current(&mut self, service: &str) -> Option<Arc<Leaf>>;
}

/// The snapshot of a proxy as of the state that is read.
///
/// # Errors
///
/// When the registration is not one that can be served.
pub(crate) fn snapshot(
    txn: &ReadTxn<'_>,
    proxy: &ProxyId,
    config: &ManagerConfig,
    leaves: &mut dyn Leaves,
) -> Result<Outcome, WatchError> {
    let Some(found) = txn.instance(&proxy.node, &proxy.service_id) else {
        return Ok(Outcome::Pending);
    };
    check(proxy, &found.service)?;
    let snapshot = sidecar::snapshot(txn, proxy, &found, config, leaves);
    Ok(snapshot.map_or(Outcome::Pending, |snapshot| {
        Outcome::Ready(Box::new(snapshot))
    }))
}

/// Whether a registration is that of a proxy that can be served.
pub(crate) fn check(proxy: &ProxyId, instance: &ServiceInstance) -> Result<(), WatchError> {
    if instance.kind != ServiceKind::ConnectProxy {
        return Err(WatchError::NotAProxy {
            proxy: proxy.clone(),
            kind: instance.kind.as_str().to_owned(),
        });
    }
    if instance.proxy.destination_service_name.is_empty() {
        return Err(WatchError::NoDestination(proxy.clone()));
    }
    Ok(())
}
