//! The inputs of a proxy's Envoy configuration at one point in time.
//!
//! Parts are shared by `Arc`, so that a thousand proxies of one service hold one leaf, one list of
//! instances and one set of roots. A published snapshot is immutable. A part that did not change
//! since the previous snapshot is the same `Arc` as there.

use std::fmt;
use std::sync::Arc;

use legate_ca::Leaf;
use legate_intentions::Action;
use legate_model::{CaRoots, Intention, Mesh, Protocol, ServiceInstance, Tenancy, TrustDomain};

use crate::egress::Destinations;
use crate::queries::JwtProviders;
use crate::same::{self, Compare};
use crate::transparent::ImplicitUpstreams;
use crate::upstream::UpstreamSnapshot;

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

/// Everything that one proxy's Envoy configuration depends on.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The proxy this is for.
    pub proxy: ProxyId,
    /// The datacenter of the control plane and the proxy.
    pub datacenter: Arc<str>,
    /// The trust domain of the mesh, from the roots.
    pub trust_domain: TrustDomain,
    /// The proxy's registration, merged with `proxy-defaults` and `service-defaults`. Its locality
    /// defaults to that of its node.
    pub instance: Arc<ServiceInstance>,
    /// Address of the node the proxy is registered on.
    pub node_address: Arc<str>,
    /// Whether the agent's machine, which is that of the control plane, has IPv6. Proxies whose
    /// checks an agent runs are on that machine, too.
    pub agent_ipv6: bool,
    /// The protocol of the destination service, `tcp` by default.
    pub protocol: Protocol,
    /// The roots that peers' certificates are verified against.
    pub roots: Arc<CaRoots>,
    /// The destination service's certificate and key.
    pub leaf: Arc<Leaf>,
    /// The intentions that have the service as their destination, in order of precedence.
    pub intentions: Arc<Vec<Arc<Intention>>>,
    /// The JWT providers that the intentions name. Providers that do not exist are left out.
    pub jwt_providers: Arc<JwtProviders>,
    /// The action if no intention matches.
    pub default_intention: Action,
    /// The `mesh` config entry, if there is one.
    pub mesh: Arc<Option<Mesh>>,
    /// The explicit upstreams, in the order of the registration.
    pub upstreams: Vec<UpstreamSnapshot>,
    /// In transparent mode: the services that intentions allow the proxy's service to call,
    /// including explicit upstreams. `None` in any other mode.
    pub implicit: Option<Arc<ImplicitUpstreams>>,
    /// In transparent mode: the services outside the mesh that intentions allow the proxy's service
    /// to call.
    pub destinations: Arc<Destinations>,
}

impl Snapshot {
    /// About how many values the proxy's resources are made from, not counting what every proxy
    /// has: the upstreams with their instances, the intentions with their permissions, and the
    /// lists of the registration. The cost of making the resources grows with it.
    pub fn size(&self) -> usize {
        let implicit = self.implicit.iter().flat_map(|implicit| &implicit.0);
        let implicit = implicit.map(|one| &one.upstream);
        let upstreams = self.upstreams.iter().chain(implicit);
        let values = upstreams.map(|one| 1 + one.resolved.size());
        let destinations = self.destinations.iter();
        let outside = destinations.map(|one| one.addresses.len() * (1 + one.gateways.len()));
        let intentions = self.intentions.iter();
        let intentions = intentions.map(|one| 1 + one.permissions.len());
        let proxy = &self.instance.proxy;
        let limits = proxy.rate_limits.as_ref();
        let listed = proxy.expose.paths.len() + limits.map_or(0, |limits| limits.routes.len());
        values.sum::<usize>()
            + outside.sum::<usize>()
            + intentions.sum::<usize>()
            + self.jwt_providers.len()
            + listed
    }

    /// Whether two snapshots of a proxy give it the same configuration.
    pub(crate) fn is_same(&self, other: &Self, by: Compare) -> bool {
        self.trust_domain == other.trust_domain
            && self.node_address == other.node_address
            && (Arc::ptr_eq(&self.instance, &other.instance)
                || same::registration(&self.instance, &other.instance))
            && same::shared(&self.roots, &other.roots)
            && same::leaf(&self.leaf, &other.leaf)
            && by.same(&self.intentions, &other.intentions)
            && by.same(&self.jwt_providers, &other.jwt_providers)
            && by.same(&self.mesh, &other.mesh)
            && self.upstreams.len() == other.upstreams.len()
            && self
                .upstreams
                .iter()
                .zip(&other.upstreams)
                .all(|(a, b)| a.is_same(b, by))
            && by.same(&self.destinations, &other.destinations)
            && match (&self.implicit, &other.implicit) {
                (Some(a), Some(b)) => by.same(a, b),
                (None, None) => true,
                _ => false,
            }
    }

    /// Replaces parts that have not changed by those of the proxy's last snapshot, so that they are
    /// the same `Arc`s and later stages detect changes by comparing addresses.
    pub(crate) fn adopt(&mut self, last: &Self, by: Compare) {
        let (instance, now) = (&last.instance, &self.instance);
        if Arc::ptr_eq(instance, now) || same::registration(instance, now) {
            self.instance = Arc::clone(instance);
        }
        if same::leaf(&last.leaf, &self.leaf) {
            self.leaf = Arc::clone(&last.leaf);
        }
        if same::shared(&last.roots, &self.roots) {
            self.roots = Arc::clone(&last.roots);
        }
        by.adopt(&last.intentions, &mut self.intentions);
        by.adopt(&last.jwt_providers, &mut self.jwt_providers);
        by.adopt(&last.mesh, &mut self.mesh);
        by.adopt(&last.destinations, &mut self.destinations);
        if let (Some(last), Some(now)) = (&last.implicit, &mut self.implicit) {
            by.adopt(last, now);
        }
        for (place, upstream) in self.upstreams.iter_mut().enumerate() {
            let is =
                |before: &&UpstreamSnapshot| same::shared(&before.upstream, &upstream.upstream);
            let in_place = last.upstreams.get(place).filter(is);
            let Some(before) = in_place.or_else(|| last.upstreams.iter().find(is)) else {
                continue;
            };
            upstream.upstream = Arc::clone(&before.upstream);
            by.adopt(&before.resolved, &mut upstream.resolved);
        }
    }
}
