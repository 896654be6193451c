//! The inputs of a proxy's Envoy configuration at one point in time.
//!
//! Parts are shared by `Arc`, so that a thousand proxies of one service hold one leaf, one list of
//! instances and one set of roots. A published snapshot is immutable. A part that did not change
//! since the previous snapshot is the same `Arc` as there.

use std::fmt;
use std::sync::Arc;

use legate_intentions::Action;
use legate_model::{CaRoots, Mesh, ServiceInstance, ServiceName, Tenancy, TrustDomain};

use crate::kinds::Kind;
use crate::value::{Value, values};

/// The id of a proxy: its tenancy, the node it is registered on, and the ID of its registration
/// there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProxyId {
    /// Its partition and namespace.
    pub tenancy: Tenancy,
    /// Name of the catalog node.
    pub node: Arc<str>,
    /// ID of the proxy's own registration on that node, as in `web-sidecar-proxy`.
    pub service_id: Arc<str>,
}

impl fmt::Display for ProxyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on node {}", self.service_id, self.node)?;
        match self.tenancy.is_default() {
            true => Ok(()),
            false => write!(
                f,
                " in namespace {} of partition {}",
                self.tenancy.namespace, self.tenancy.partition
            ),
        }
    }
}

values! {
    /// Everything that one proxy's Envoy configuration depends on.
    #[derive(Clone, Debug)]
    pub struct Snapshot {
        /// What every proxy has.
        pub proxy: Proxy,
        /// What only proxies of its kind have.
        pub kind: Kind,
    }

    /// What every proxy has.
    #[derive(Clone, Debug)]
    pub struct Proxy {
        /// The proxy this is for.
        pub id: ProxyId,
        /// The datacenter of the control plane and the proxy.
        pub datacenter: Arc<str>,
        /// The trust domain of the mesh, from the roots.
        pub trust_domain: TrustDomain,
        /// The proxy's registration, merged with `proxy-defaults` and `service-defaults`. Its
        /// locality defaults to that of its node.
        pub instance: Arc<ServiceInstance>,
        /// Address of the node the proxy is registered on.
        pub node_address: Arc<str>,
        /// Whether the agent's machine, which is that of the control plane, has IPv6. Proxies whose
        /// checks an agent runs are on that machine, too.
        pub agent_ipv6: bool,
        /// The roots that peers' certificates are verified against.
        pub roots: Arc<CaRoots>,
        /// The `mesh` config entry, if there is one.
        pub mesh: Arc<Option<Mesh>>,
        /// The action if no intention matches.
        pub default_intention: Action,
    }
}

impl Snapshot {
    /// The snapshot of a terminating gateway without the services for which `may` is false; `None`
    /// if nothing is left out. Each of its services has its own certificate.
    #[must_use]
    pub fn restricted(&self, may: impl Fn(&ServiceName) -> bool) -> Option<Self> {
        let Kind::TerminatingGateway(own) = &self.kind else {
            return None;
        };
        Some(Self {
            proxy: self.proxy.clone(),
            kind: Kind::TerminatingGateway(own.restricted(may)?),
        })
    }

    /// Whether terminating gateways represent the same services. True for other proxies.
    #[must_use]
    pub fn has_same_services(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (Kind::TerminatingGateway(own), Kind::TerminatingGateway(other)) => {
                own.has_same_services(other)
            }
            _ => true,
        }
    }

    /// About how many values the proxy's resources are made from, not counting what every proxy
    /// has: for a sidecar the upstreams with their instances, the intentions with their
    /// permissions, and the lists of the registration. The cost of making the resources grows with
    /// it.
    pub fn size(&self) -> usize {
        Value::size(self)
    }
}
