//! What an upstream is made into: a cluster for each place where its chain ends, and what leads
//! there.
//!
//! A resolver of the chain is one cluster. Where others answer when its target cannot, it is a
//! cluster for each of these, and one that prefers them in their order. As in Consul, that is Envoy's
//! aggregate with its usual overprovisioning of 1.4: once fewer than about 72 % of the instances of a
//! target are healthy, a part of the traffic goes to the next one.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use legate_discovery_chain::{Chain, Node, NodeKind, Resolver, Target};
use legate_model::{LoadBalancer, Protocol, Upstream};
use legate_proxycfg::{Snapshot, UpstreamSnapshot, opaque};

use crate::balancing;
use crate::custom;
use crate::error::GenerateError;
use crate::memo::{Memo, WrittenCluster};
use crate::names;
use crate::settings::{CLUSTER_JSON, LISTENER_JSON, UpstreamSettings};

/// One upstream with what its resources have in common.
pub(crate) struct UpstreamPlan<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) upstream: &'a UpstreamSnapshot,
    /// Its name in the registration, by which its listener and routes are named.
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
    /// These clusters: as much to each as its healthy instances can take, the rest to the next.
    Failover(Vec<String>),
}

/// Where what is sent to an upstream goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Leads {
    /// All to one cluster.
    Cluster(String),
    /// Wherever the routes of this name say.
    Routes(String),
}

impl Leads {
    /// The names of its routes.
    pub(crate) fn routes(&self) -> Option<&str> {
        match self {
            Self::Cluster(_) => None,
            Self::Routes(name) => Some(name),
        }
    }
}

impl<'a> UpstreamPlan<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot, upstream: &'a UpstreamSnapshot) -> Self {
        let mut warnings = Vec::new();
        let mut settings = UpstreamSettings::read(&upstream.upstream, &mut warnings);
        let id = upstream.upstream.id().to_string();
        // What is written for one cluster cannot stand for a router, or for others that take over.
        if !chain(upstream).is_ok_and(|chain| chain.default) {
            for (key, written) in [
                (LISTENER_JSON, settings.listener.take()),
                (CLUSTER_JSON, settings.cluster.take()),
            ] {
                let warning = written.map(|_| {
                    format!(
                        "Config of upstream {id}: {key} has no effect, because config entries say \
                         where what is sent to it goes"
                    )
                });
                warnings.extend(warning);
            }
        }
        let is_bytes = !upstream.resolved.protocol().is_http();
        if is_bytes && balancer(upstream).is_some_and(balancing::hashes_requests) {
            warnings.push(format!(
                "HashPolicies of upstream {id}: only SourceIP has an effect, because its protocol is tcp"
            ));
        }
        Self {
            snapshot,
            upstream,
            id,
            settings,
            warnings,
        }
    }

    /// Whether connections that are not HTTP go to one instance from one address. Consul has no such
    /// hash for them, and sends them to any instance.
    pub(crate) fn hashes_source_ip(&self) -> bool {
        balancer(self.upstream).is_some_and(balancing::hashes_source_ip)
    }

    /// # Errors
    /// When the entries that are stored do not make a chain.
    pub(crate) fn chain(&self) -> Result<&'a Chain, GenerateError> {
        chain(self.upstream)
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.upstream.resolved.protocol()
    }

    /// # Errors
    /// As [`UpstreamPlan::chain`].
    pub(crate) fn leads(&self, memo: &Memo) -> Result<Leads, GenerateError> {
        let chain = self.chain()?;
        Ok(match only_cluster(memo, self.upstream) {
            Some(cluster) if !has_routes(chain) => Leads::Cluster(cluster),
            _ => Leads::Routes(self.id.clone()),
        })
    }
}

/// # Errors
/// When the entries that are stored do not make a chain.
pub(crate) fn chain(upstream: &UpstreamSnapshot) -> Result<&Chain, GenerateError> {
    match &upstream.resolved.chain {
        Ok(chain) => Ok(chain),
        Err(error) => Err(GenerateError::Chain(error.clone())),
    }
}

/// How the instances of an upstream are chosen whose requests all go to one target.
fn balancer(upstream: &UpstreamSnapshot) -> Option<&LoadBalancer> {
    chain(upstream).ok()?.start()?.load_balancer.as_ref()
}

/// The cluster that everything goes to which is sent to an upstream, where there is just one.
pub(crate) fn only_cluster(memo: &Memo, upstream: &UpstreamSnapshot) -> Option<String> {
    let chain = chain(upstream).ok()?;
    let resolver = chain.start().and_then(resolver)?;
    let written = written_name(memo, upstream, chain);
    Some(written.unwrap_or_else(|| cluster_name(chain, resolver)))
}

/// The name of the cluster that a user wrote for an upstream. Where it cannot be read the cluster
/// fails, which says why.
fn written_name(memo: &Memo, upstream: &UpstreamSnapshot, chain: &Chain) -> Option<String> {
    let config = &upstream.upstream.config;
    let text = opaque::text(config, CLUSTER_JSON).ok().flatten()?;
    let is_written = chain.default && !text.is_empty();
    let written = is_written.then(|| written(memo, &upstream.upstream, &text))?;
    let name = |cluster: &Cluster| cluster.name.clone();
    (*written).as_ref().ok().map(name)
}

/// The cluster that a user wrote for an upstream, from its `Config`. It is read once.
pub(crate) fn written(memo: &Memo, upstream: &Arc<Upstream>, text: &str) -> Arc<WrittenCluster> {
    memo.written(upstream, || custom::read(CLUSTER_JSON, text))
}

/// Whether requests go where routes of their own say.
pub(crate) fn has_routes(chain: &Chain) -> bool {
    chain.protocol.is_http() && !chain.default
}

/// The resolver of a node that is one.
fn resolver(node: &Node) -> Option<&Resolver> {
    match &node.kind {
        NodeKind::Resolver(resolver) => Some(resolver),
        NodeKind::Router(_) | NodeKind::Splitter(_) => None,
    }
}

/// The clusters of an upstream, each after those that it takes instances from. None where the entries
/// that are stored do not make a chain.
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

/// The name of the cluster that a resolver is: that of its target, kept apart where the proxy wants
/// something otherwise than everybody else.
pub(crate) fn cluster_name(chain: &Chain, resolver: &Resolver) -> String {
    let target = chain.targets.get(&resolver.target);
    let name = target.map_or("", |target| target.name.as_str());
    match &chain.customization_hash {
        Some(hash) => format!("{hash}~{name}"),
        None => name.to_owned(),
    }
}
