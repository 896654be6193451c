//! Why a proxy cannot be watched, or why its watch ended.

use crate::kinds;
use crate::snapshot::ProxyId;

/// A watch was refused and nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The catalog has no node of that name.
    #[error(
        "node {:?} is not in the catalog, so it has no proxy {:?}; register the proxy first, or correct the node name \
         the dataplane sends (its setting proxy-node-name)",
        .0.node, .0.service_id
    )]
    UnknownNode(ProxyId),
    /// The node has no registration with that ID.
    #[error(
        "no service with ID {:?} is registered on node {:?}; register the proxy first, or correct the ID the dataplane \
         sends (its setting proxy-id)",
        .0.service_id, .0.node
    )]
    UnknownProxy(ProxyId),
    /// The registration is not that of a proxy of a served kind.
    #[error(
        "service {:?} on node {:?} is not a proxy: its Kind is {kind:?} and must be {}; name the proxy's ID instead \
         of the service's (the dataplane's setting proxy-id)",
        .proxy.service_id, .proxy.node, kinds::served()
    )]
    NotAProxy {
        /// The registration.
        proxy: ProxyId,
        /// Its kind, empty for an ordinary service.
        kind: String,
    },
    /// The registration does not name the proxy's service.
    #[error(
        "proxy {:?} on node {:?} has no destination; set Proxy.DestinationServiceName in its registration",
        .0.service_id, .0.node
    )]
    NoDestination(ProxyId),
    /// The control plane is stopping.
    #[error("the control plane is stopping and watches no more proxies; connect to another server")]
    Stopping,
}

/// Why a watch ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The control plane is stopping.
    #[error("the control plane is stopping")]
    Stopping,
    /// The proxy was registered again in a form that cannot be served.
    #[error("the proxy's registration has changed: {0}")]
    Registration(WatchError),
    /// The CA ended the watch of the leaf certificate.
    #[error("the service's certificate is no longer renewed: {reason}")]
    Leaf {
        /// The CA's error.
        reason: String,
    },
    /// The task that computes the proxy's snapshots panicked.
    #[error(
        "the task that computes the proxy's snapshots ended unexpectedly; the log has its panic"
    )]
    Broken,
}
