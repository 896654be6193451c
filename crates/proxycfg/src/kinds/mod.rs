//! Computes a proxy's snapshot by the kind of its registration, with one pure function per kind.
//!
//! A kind reads its inputs in the order in which it needs them. The reads themselves are recorded
//! as the snapshot's dependencies, so there is no separate list of them. A new kind is a file with
//! its values, `check`, `snapshot` and `Parts`, and a line in `kinds!`.

mod api_gateway;
mod ingress_gateway;
mod kept_list;
pub(crate) mod leaves;
mod mesh_gateway;
mod proxy;
mod sidecar;
mod terminating_gateway;
#[cfg(test)]
pub(crate) mod test_store;

use std::sync::Arc;

use legate_ca::{Leaf, LeafId};
use legate_model::{CheckServiceNode, ServiceInstance, ServiceKind};
use legate_store::{Follower, Kept, ReadTxn};

pub use self::api_gateway::{ApiGateway, BackendSnapshot};
pub use self::ingress_gateway::IngressGateway;
use self::leaves::Leaves;
pub use self::mesh_gateway::{MeshGateway, PeerExports};
pub use self::sidecar::Sidecar;
pub use self::terminating_gateway::{Represented, TerminatingGateway};
use crate::config::ManagerConfig;
use crate::error::WatchError;
use crate::same::Compare;
use crate::snapshot::{Proxy, ProxyId, Snapshot};
use crate::value::Value;

/// The kinds of proxies: the type of its values, its module, and the kind of its registration.
macro_rules! kinds {
    ($( $(#[$about:meta])* $kind:ident, $module:ident, $registered:ident; )*) => {
        /// What only proxies of one kind have.
        #[derive(Clone, Debug)]
        pub enum Kind {
            $( $(#[$about])* $kind($kind), )*
        }

        $(
            impl $kind {
                /// The values of a proxy of this kind; `None` for another kind.
                pub fn of(snapshot: &Snapshot) -> Option<&Self> {
                    match &snapshot.kind {
                        Kind::$kind(own) => Some(own),
                        _ => None,
                    }
                }
            }
        )*

        impl Value for Kind {
            fn is_same(&self, other: &Self, by: Compare) -> bool {
                match (self, other) {
                    $( (Self::$kind(a), Self::$kind(b)) => a.is_same(b, by), )*
                    _ => false,
                }
            }

            fn adopt(&mut self, last: &Self, by: Compare) {
                match (self, last) {
                    $( (Self::$kind(now), Self::$kind(last)) => now.adopt(last, by), )*
                    _ => {}
                }
            }

            fn size(&self) -> usize {
                match self {
                    $( Self::$kind(own) => own.size(), )*
                }
            }
        }

        /// Values that a kind caches.
        #[derive(Debug, Default)]
        enum OwnParts {
            #[default]
            None,
            $( $kind($module::Parts), )*
        }

        /// Whether a registration is a proxy's and can be served.
        pub(crate) fn check(proxy: &ProxyId, instance: &ServiceInstance) -> Result<(), WatchError> {
            match instance.kind {
                $( ServiceKind::$registered => $module::check(proxy, instance), )*
                other => Err(WatchError::NotAProxy {
                    proxy: proxy.clone(),
                    kind: other.as_str().to_owned(),
                }),
            }
        }

        /// The `Kind` of the registrations that are served, for messages.
        pub(crate) fn served() -> String {
            let kinds = [$( ServiceKind::$registered ),*];
            let quoted = kinds.iter().map(|kind| format!("{:?}", kind.as_str()));
            quoted.collect::<Vec<_>>().join(" or ")
        }

        /// The values of a proxy's own kind, `None` while one of them is missing.
        fn own(kind: ServiceKind, read: &mut Reading<'_, '_>, parts: &mut OwnParts) -> Option<Kind> {
            match kind {
                $(
                    ServiceKind::$registered => {
                        if !matches!(parts, OwnParts::$kind(_)) {
                            *parts = OwnParts::$kind($module::Parts::default());
                        }
                        match parts {
                            OwnParts::$kind(parts) => $module::snapshot(read, parts).map(Kind::$kind),
                            _ => None,
                        }
                    }
                )*
                _ => None,
            }
        }
    };
}

kinds! {
    /// The sidecar of a service.
    Sidecar, sidecar, ConnectProxy;
    /// A gateway for clients outside the mesh.
    IngressGateway, ingress_gateway, IngressGateway;
    /// A gateway whose routes are config entries of their own.
    ApiGateway, api_gateway, ApiGateway;
    /// A gateway between networks.
    MeshGateway, mesh_gateway, MeshGateway;
    /// A gateway to services outside the mesh.
    TerminatingGateway, terminating_gateway, TerminatingGateway;
}

/// What a kind computes its values from.
pub(crate) struct Reading<'a, 's> {
    /// The state, in the proxy's tenancy.
    pub(crate) txn: &'a ReadTxn<'s>,
    /// Caches values, if there is one.
    pub(crate) follower: Option<&'a Follower>,
    pub(crate) config: &'a ManagerConfig,
    /// What every proxy has. A kind's cached values are dropped when it changes.
    pub(crate) proxy: &'a Proxy,
    pub(crate) leaves: &'a mut dyn Leaves,
}

impl<'s> Reading<'_, 's> {
    /// A value that is cached until one of its inputs changes. `read` must depend only on the store
    /// and on what the proxy has.
    pub(crate) fn kept<T: Clone>(
        &self,
        kept: &mut Kept<T>,
        read: impl FnOnce(&ReadTxn<'s>) -> T,
    ) -> T {
        kept.get(self.txn, self.follower, read)
    }
}

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
    /// The registration that `proxy` was computed from.
    last_registered: Option<Arc<CheckServiceNode>>,
    proxy: Kept<Option<Arc<Proxy>>>,
    /// The value of `proxy` that `own` was computed from.
    last_proxy: Option<Arc<Proxy>>,
    own: OwnParts,
}

impl Parts {
    pub(crate) fn of(follower: Follower) -> Self {
        Self {
            follower: Some(follower),
            ..Self::default()
        }
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
        let snapshot = own_snapshot(txn, proxy, config, leaves, parts)?;
        Ok(snapshot.map_or(Outcome::Pending, |snapshot| {
            Outcome::Ready(Box::new(snapshot))
        }))
    })
}

/// The same for a reader in the proxy's own tenancy.
fn own_snapshot(
    txn: &ReadTxn<'_>,
    id: &ProxyId,
    config: &ManagerConfig,
    leaves: &mut dyn Leaves,
    parts: &mut Parts,
) -> Result<Option<Snapshot>, WatchError> {
    let follower = parts.follower.as_ref();
    let registered = parts.registered.get(txn, follower, |txn| {
        txn.instance(&id.node, &id.service_id).map(Arc::new)
    });
    let Some(registered) = registered else {
        return Ok(None);
    };
    check(id, &registered.service)?;
    if !is_same(parts.last_registered.as_ref(), &registered) {
        parts.last_registered = Some(Arc::clone(&registered));
        parts.proxy = Kept::default();
        parts.last_proxy = None;
    }
    let read = |txn: &_| proxy::read(txn, id, &registered, config).map(Arc::new);
    let Some(proxy) = parts.proxy.get(txn, follower, read) else {
        return Ok(None);
    };
    if !is_same(parts.last_proxy.as_ref(), &proxy) {
        parts.last_proxy = Some(Arc::clone(&proxy));
        parts.own = OwnParts::None;
    }
    let mut reading = Reading {
        txn,
        follower,
        config,
        proxy: &proxy,
        leaves,
    };
    let kind = own(registered.service.kind, &mut reading, &mut parts.own);
    Ok(kind.map(|kind| Snapshot {
        proxy: Proxy::clone(&proxy),
        kind,
    }))
}

fn is_same<T>(last: Option<&Arc<T>>, now: &Arc<T>) -> bool {
    last.is_some_and(|last| Arc::ptr_eq(last, now))
}

/// Computes the snapshot of a proxy from a state, as a [`crate::Manager`] does, for callers without
/// a running manager. `leaves` gives the certificates that the proxy needs. Returns `None` while the
/// registration, the roots or a certificate is missing.
///
/// # Errors
///
/// When the registration cannot be served.
pub fn snapshot_of(
    txn: &ReadTxn<'_>,
    proxy: &ProxyId,
    config: &ManagerConfig,
    mut leaves: impl FnMut(&LeafId) -> Option<Arc<Leaf>>,
) -> Result<Option<Snapshot>, WatchError> {
    let mut parts = Parts::default();
    match snapshot(txn, proxy, config, &mut leaves, &mut parts)? {
        Outcome::Ready(snapshot) => Ok(Some(*snapshot)),
        Outcome::Pending => Ok(None),
    }
}
