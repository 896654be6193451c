//! What a proxy's Envoy configuration depends on, at one moment.
//!
//! The parts are shared by `Arc`, so that a thousand proxies of one service hold one leaf, one
//! list of instances and one set of roots. A snapshot is never changed after it was published. A
//! part that the snapshot before had in the same way is the same `Arc` as there.

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

/// Names one proxy: whose it is, the node it is registered on, and the ID of its registration there.
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
    /// The datacenter of the control plane, and so of the proxy.
    pub datacenter: Arc<str>,
    /// The mesh's trust domain, as in the roots.
    pub trust_domain: TrustDomain,
    /// The proxy's registration after `proxy-defaults` and `service-defaults` were merged into it, in the
    /// locality of its node where it has none of its own.
    pub instance: Arc<ServiceInstance>,
    /// Address of the node the proxy is registered on.
    pub node_address: Arc<str>,
    /// Whether the machine of the agent, which is the control plane's own, has IPv6. The proxies
    /// whose checks an agent runs stand on it, too.
    pub agent_ipv6: bool,
    /// What the destination service speaks. `tcp` where nothing says otherwise.
    pub protocol: Protocol,
    /// The roots that peers' certificates are verified against.
    pub roots: Arc<CaRoots>,
    /// The destination service's certificate and key.
    pub leaf: Arc<Leaf>,
    /// The intentions that have the service as their destination, in order of precedence.
    pub intentions: Arc<Vec<Arc<Intention>>>,
    /// The providers of JSON Web Tokens that the intentions name, as far as they exist.
    pub jwt_providers: Arc<JwtProviders>,
    /// What holds where no intention matches.
    pub default_intention: Action,
    /// The `mesh` config entry, where there is one.
    pub mesh: Arc<Option<Mesh>>,
    /// The explicit upstreams, in the order of the registration.
    pub upstreams: Vec<UpstreamSnapshot>,
    /// Of a proxy in transparent mode: the services that intentions let its own call, explicit
    /// upstreams among them. `None` in any other mode.
    pub implicit: Option<Arc<ImplicitUpstreams>>,
    /// Of a proxy in transparent mode: the services outside the mesh that intentions let its own call.
    pub destinations: Arc<Destinations>,
}

impl Snapshot {
    /// About how many values the proxy's resources are made from, without what every proxy has: the
    /// upstreams with their instances, the intentions with their permissions, and what the registration
    /// lists. What making them takes grows with it.
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

    /// Takes over the parts of the last snapshot of the proxy that make no difference, so that they are
    /// the same `Arc`s: who makes something of a snapshot sees what has changed without a comparison.
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
