//! The plan of an upstream's resources: a cluster for each resolver of its chain, and its target.
//!
//! A resolver of the chain becomes one cluster. A resolver with failover becomes a cluster for each
//! target, and one that selects among them in order. As in Consul, that is Envoy's aggregate
//! cluster with the default overprovisioning of 1.4: once fewer than about 72 % of the instances of
//! a target are healthy, part of the traffic goes to the next one.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use legate_discovery_chain::{Chain, Node, NodeKind, Resolver, Target};
use legate_model::{LoadBalancer, MeshGatewayMode, Protocol, Upstream};
use legate_proxycfg::{Proxy, UpstreamSnapshot, opaque};

use crate::balancing;
use crate::custom;
use crate::error::GenerateError;
use crate::memo::{Memo, WrittenCluster};
use crate::names;
use crate::settings::{CLUSTER_JSON, LISTENER_JSON, UpstreamSettings};

/// One upstream with the inputs that its resources share.
pub(crate) struct UpstreamPlan<'a> {
    /// The proxy that calls it.
    pub(crate) proxy: &'a Proxy,
    pub(crate) upstream: &'a UpstreamSnapshot,
    /// Its id in the registration, the name of its listener and routes.
    pub(crate) id: String,
    pub(crate) settings: UpstreamSettings,
    pub(crate) warnings: Vec<String>,
}

/// One cluster of an upstream.
pub(crate) struct ClusterPlan<'a> {
    pub(crate) name: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) kind: ClusterKind<'a>,
}

pub(crate) enum ClusterKind<'a> {
    /// The instances of a target.
    Target(&'a Target, Option<&'a LoadBalancer>),
    /// The member clusters: each receives as much as its healthy instances can take, the rest goes
    /// to the next one.
    Failover(Vec<String>),
}

/// The target of an upstream's traffic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UpstreamTarget {
    /// A single cluster.
    Cluster(String),
    /// The routes of this name.
    Routes(String),
}

impl UpstreamTarget {
    /// The name of its routes, if it has any.
    pub(crate) fn routes(&self) -> Option<&str> {
        match self {
            Self::Cluster(_) => None,
            Self::Routes(name) => Some(name),
        }
    }
}

impl<'a> UpstreamPlan<'a> {
    pub(crate) fn new(proxy: &'a Proxy, upstream: &'a UpstreamSnapshot) -> Self {
        let mut warnings = Vec::new();
        let mut settings = UpstreamSettings::read(&upstream.upstream, &mut warnings);
        let id = upstream.upstream.id().to_string();
        // A user-written resource for one cluster cannot represent a router or a failover.
        if !chain(upstream).is_ok_and(|chain| chain.default) {
            for (key, written) in [
                (LISTENER_JSON, settings.listener.take()),
                (CLUSTER_JSON, settings.cluster.take()),
            ] {
                let warning = written.map(|_| {
                    format!(
                        "Config of upstream {id}: {key} has no effect, because config entries \
                         route its traffic"
                    )
                });
                warnings.extend(warning);
            }
        }
        let definition = &upstream.upstream;
        let is_direct = definition.mesh_gateway.mode == MeshGatewayMode::None;
        if !definition.destination_peer.is_empty() && is_direct {
            warnings.push(format!(
                "MeshGateway.Mode none of upstream {id} means remote: a peer is reached by its gateways only"
            ));
        }
        let is_bytes = !upstream.resolved.protocol().is_http();
        if is_bytes && balancer(upstream).is_some_and(balancing::hashes_requests) {
            warnings.push(format!(
                "HashPolicies of upstream {id}: only SourceIP has an effect, because its protocol is tcp"
            ));
        }
        Self {
            proxy,
            upstream,
            id,
            settings,
            warnings,
        }
    }

    /// Whether TCP connections from one address use the same instance. Consul sets no such hash for
    /// them and balances them over all instances.
    pub(crate) fn hashes_source_ip(&self) -> bool {
        balancer(self.upstream).is_some_and(balancing::hashes_source_ip)
    }

    /// # Errors
    /// When the stored entries do not form a chain.
    pub(crate) fn chain(&self) -> Result<&'a Chain, GenerateError> {
        chain(self.upstream)
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.upstream.resolved.protocol()
    }

    /// # Errors
    /// As [`UpstreamPlan::chain`].
    pub(crate) fn target(&self, memo: &Memo) -> Result<UpstreamTarget, GenerateError> {
        let chain = self.chain()?;
        Ok(match only_cluster(memo, self.upstream) {
            Some(cluster) if !has_routes(chain) => UpstreamTarget::Cluster(cluster),
            _ => UpstreamTarget::Routes(self.id.clone()),
        })
    }
}

/// # Errors
/// When the stored entries do not form a chain.
pub(crate) fn chain(upstream: &UpstreamSnapshot) -> Result<&Chain, GenerateError> {
    match &upstream.resolved.chain {
        Ok(chain) => Ok(chain),
        Err(error) => Err(GenerateError::Chain(error.clone())),
    }
}

/// The load balancer of an upstream whose traffic goes to one target.
fn balancer(upstream: &UpstreamSnapshot) -> Option<&LoadBalancer> {
    chain(upstream).ok()?.start()?.load_balancer.as_ref()
}

/// The cluster of an upstream, if there is only one.
pub(crate) fn only_cluster(memo: &Memo, upstream: &UpstreamSnapshot) -> Option<String> {
    let chain = chain(upstream).ok()?;
    let resolver = chain.start().and_then(resolver)?;
    let written = written_name(memo, upstream, chain);
    Some(written.unwrap_or_else(|| cluster_name(chain, resolver)))
}

/// The name of the cluster that a user wrote for an upstream. `None` if it cannot be parsed; the
/// cluster's part reports the error.
fn written_name(memo: &Memo, upstream: &UpstreamSnapshot, chain: &Chain) -> Option<String> {
    let config = &upstream.upstream.config;
    let text = opaque::text(config, CLUSTER_JSON).ok().flatten()?;
    let is_written = chain.default && !text.is_empty();
    let written = is_written.then(|| written(memo, &upstream.upstream, &text))?;
    let name = |cluster: &Cluster| cluster.name.clone();
    (*written).as_ref().ok().map(name)
}

/// The cluster that a user wrote for an upstream, from its `Config`. Parsed once.
pub(crate) fn written(memo: &Memo, upstream: &Arc<Upstream>, text: &str) -> Arc<WrittenCluster> {
    memo.written(upstream, || custom::read(CLUSTER_JSON, text))
}

/// Whether the upstream has separate routes.
pub(crate) fn has_routes(chain: &Chain) -> bool {
    chain.protocol.is_http() && !chain.default
}

/// The resolver of a node, if it is one.
fn resolver(node: &Node) -> Option<&Resolver> {
    match &node.kind {
        NodeKind::Resolver(resolver) => Some(resolver),
        NodeKind::Router(_) | NodeKind::Splitter(_) => None,
    }
}

/// The clusters of an upstream, each after its members. Empty if the stored entries do not form a
/// chain.
pub(crate) fn clusters<'a>(memo: &Memo, upstream: &'a UpstreamSnapshot) -> Vec<ClusterPlan<'a>> {
    let mut clusters = Vec::new();
    let Ok(chain) = chain(upstream) else {
        return clusters;
    };
    for node in chain.nodes.values() {
        if let Some(resolver) = resolver(node) {
            add_clusters(&mut clusters, chain, node, resolver);
        }
    }
    if let Some(name) = written_name(memo, upstream, chain)
        && let [only] = clusters.as_mut_slice()
    {
        only.name = name;
    }
    clusters
}

fn add_clusters<'a>(
    clusters: &mut Vec<ClusterPlan<'a>>,
    chain: &'a Chain,
    node: &'a Node,
    resolver: &'a Resolver,
) {
    let name = cluster_name(chain, resolver);
    let balancer = node.load_balancer.as_ref();
    let of_target = |name: String, id: &String| {
        let target = chain.targets.get(id)?;
        Some(ClusterPlan {
            name,
            connect_timeout: resolver.connect_timeout,
            kind: ClusterKind::Target(target, balancer),
        })
    };
    let Some(failover) = &resolver.failover else {
        clusters.extend(of_target(name, &resolver.target));
        return;
    };
    let first = clusters.len();
    let targets = [&resolver.target].into_iter().chain(&failover.targets);
    let members = targets.enumerate();
    clusters
        .extend(members.filter_map(|(at, id)| of_target(names::failover_member(at, &name), id)));
    let members = clusters[first..].iter().map(|one| one.name.clone());
    clusters.push(ClusterPlan {
        kind: ClusterKind::Failover(members.collect()),
        name,
        connect_timeout: resolver.connect_timeout,
    });
}

/// The name of a resolver's cluster: that of its target, with a hash if the proxy has overrides.
pub(crate) fn cluster_name(chain: &Chain, resolver: &Resolver) -> String {
    let target = chain.targets.get(&resolver.target);
    let name = target.map_or("", |target| target.name.as_str());
    match &chain.customization_hash {
        Some(hash) => format!("{hash}~{name}"),
        None => name.to_owned(),
    }
}
