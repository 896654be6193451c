//! Services that are imported from peers: how they are reached, and where. The same for upstreams that name a peer, for
//! the targets of other chains, and for prepared queries.
//!
//! What a peer exports are its mesh gateways, one instance for each, with the server name that leads to the service
//! and the identities that may answer. The roots that prove these are in the peer's trust bundle. As long as one of them
//! is not known, a target has no identities: no resource may accept a certificate for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use legate_discovery_chain::{Chain, Node, NodeKind, Resolver, Target};
use legate_model::{
    CheckServiceNode, MeshGatewayMode, PeerMeta, PeerTrustBundle, Protocol, ServiceInstance,
    ServiceName, TrustDomain,
};
use legate_store::ReadTxn;

use crate::chain::{Callers, Instances, ResolvedChain};
use crate::remote;

/// The default connect timeout, as in Consul.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How a service of a peer is reached, according to the peer.
#[derive(Debug, PartialEq)]
struct Access {
    sni: String,
    /// There is at least one.
    identities: Vec<String>,
    protocol: Protocol,
}

impl Access {
    /// `None` for an instance without a server name or without identities.
    fn of(instance: &CheckServiceNode) -> Option<Self> {
        let meta = usable_meta(&instance.service)?;
        let protocol = meta.protocol.to_ascii_lowercase();
        Some(Self {
            sni: meta.sni.first()?.clone(),
            identities: meta.spiffe_ids.clone(),
            protocol: protocol.parse().unwrap_or_default(),
        })
    }
}

fn usable_meta(instance: &ServiceInstance) -> Option<&PeerMeta> {
    let meta = instance.connect.peer_meta.as_deref()?;
    let is_given = |texts: &[String]| texts.first().is_some_and(|text| !text.is_empty());
    (is_given(&meta.sni) && is_given(&meta.spiffe_ids)).then_some(meta)
}

/// `None` if the peer exports no usable instance. The service is named without the peer, as everywhere in this file.
fn access(txn: &ReadTxn<'_>, service: &ServiceName, peer: &str) -> Arc<Option<Access>> {
    txn.in_tenancy(&service.tenancy.of_peer(peer), |txn| {
        txn.shared("access to a service of a peer", &service.name, |txn| {
            let all = txn.connect(&service.name);
            all.iter().find_map(Access::of)
        })
    })
}

/// The roots of a peer of the service's partition. `None` if they prove nothing.
fn trust_bundle(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    peer: &str,
) -> Option<Arc<PeerTrustBundle>> {
    let home = service.tenancy.of_partition();
    let bundle = txn.in_tenancy(&home, |txn| txn.trust_bundle(&peer.to_ascii_lowercase()))?;
    let has_roots = bundle.root_pems.iter().any(|pem| !pem.trim().is_empty());
    let is_usable = has_roots && bundle.trust_domain.parse::<TrustDomain>().is_ok();
    is_usable.then_some(bundle)
}

/// Whether it is known how a service of a peer is reached.
pub(crate) fn is_known(txn: &ReadTxn<'_>, service: &ServiceName, peer: &str) -> bool {
    trust_bundle(txn, service, peer).is_some() && access(txn, service, peer).is_some()
}

/// The name of the cluster of a service of a peer, as in Consul. Without the trust domain of the peer it has none of the
/// names of clusters with one.
fn cluster(target: &Target, bundle: Option<&PeerTrustBundle>) -> String {
    let Target {
        service,
        peer,
        tenancy,
        ..
    } = target;
    let name = format!("{service}.{}.{peer}.external", tenancy.namespace);
    match bundle {
        Some(bundle) => format!("{name}.{}", bundle.trust_domain),
        None => name,
    }
}

/// Adds to the target of a peer how callers in a partition reach it. It stays without identities if that is not known,
/// and for callers of another partition, which are not peered.
pub(crate) fn complete(txn: &ReadTxn<'_>, target: &mut Target, callers: &str) {
    let service = target.service_name();
    let bundle = trust_bundle(txn, &service, &target.peer);
    target.name = cluster(target, bundle.as_deref());
    target.sni.clear();
    target.external = false;
    if bundle.is_none() || *service.tenancy.partition != *callers {
        return;
    }
    if let Some(access) = &*access(txn, &service, &target.peer) {
        target.sni.clone_from(&access.sni);
        target.peer_identities.clone_from(&access.identities);
    }
}

/// Whether a target has to be completed.
pub(crate) fn is_target(target: &Target) -> bool {
    !target.peer.is_empty()
}

/// The endpoints of the completed target of a peer: its gateways at their addresses for other clusters or, if it is to be
/// reached by local mesh gateways, those of the callers' partition. None while it is not known how it is reached.
pub(crate) fn of_target(txn: &ReadTxn<'_>, target: &Target, callers: &str) -> Arc<Instances> {
    if target.peer_identities.is_empty() {
        return Arc::default();
    }
    let service = target.service_name();
    let is_local = target.mesh_gateway.mode == MeshGatewayMode::Local;
    let argument = format!("{service}/{}/{is_local}", target.peer);
    txn.shared("instances of a service of a peer", &argument, |txn| {
        let imported = imported(txn, &service, &target.peer);
        if !is_local {
            return imported.into();
        }
        let is_healthy = imported.iter().any(|one| remote::gets_traffic(one, false));
        remote::behind(is_healthy, (*remote::here(txn, callers)).clone())
    })
}

/// The instances through which a service of a peer is reached, at their addresses for other clusters. The peer is where
/// its peering says it is, unless an instance says more.
pub(crate) fn imported(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    peer: &str,
) -> Vec<CheckServiceNode> {
    let home = service.tenancy.of_partition();
    let peering = txn.in_tenancy(&home, |txn| txn.peering(&peer.to_ascii_lowercase()));
    let locality = peering.and_then(|peering| peering.remote.locality.clone());
    let mut all = txn.in_tenancy(&service.tenancy.of_peer(peer), |txn| {
        txn.connect(&service.name)
    });
    all.retain(|one| usable_meta(&one.service).is_some());
    let mut all = remote::at_wan_addresses(&all);
    if let Some(locality) = locality {
        for one in all.iter_mut().filter(|one| one.locality().is_none()) {
            Arc::make_mut(&mut one.service).locality = Some(Box::new(locality.clone()));
        }
    }
    all
}

/// The trust bundles of the targets of peers, each once, ordered by peer. Only of targets whose identities are known.
pub(crate) fn trust_bundles(txn: &ReadTxn<'_>, chain: &Chain) -> Box<[Arc<PeerTrustBundle>]> {
    let targets = chain.targets.values();
    let known = targets.filter(|target| !target.peer_identities.is_empty());
    let bundles = known.filter_map(|target| {
        let bundle = trust_bundle(txn, &target.service_name(), &target.peer)?;
        Some((target.peer.clone(), bundle))
    });
    bundles.collect::<BTreeMap<_, _>>().into_values().collect()
}

/// The chain of an upstream that names a peer. The peer need not exist. No config entry of this cluster applies to it: its
/// protocol is what the peer says.
pub(crate) fn resolved(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    peer: &str,
    callers: Callers<'_>,
) -> Arc<ResolvedChain> {
    let Callers {
        partition,
        datacenter,
        overrides,
        ..
    } = callers;
    let peer = peer.to_ascii_lowercase();
    let argument = format!("{service}/{peer}/{partition}/{datacenter}/{overrides:?}");
    txn.shared("resolved service of a peer", &argument, |txn| {
        // Separate from the instances, which change far more often.
        let chain = txn.shared("chain of a service of a peer", &argument, |txn| {
            chain_to(txn, service, &peer, callers)
        });
        let instances = chain.targets.values();
        let instances = instances.map(|target| of_target(txn, target, partition));
        let instances: Vec<_> = instances.collect();
        let bundles = trust_bundles(txn, &chain);
        ResolvedChain::new(chain, instances).with_trust_bundles(bundles)
    })
}

fn chain_to(txn: &ReadTxn<'_>, service: &ServiceName, peer: &str, callers: Callers<'_>) -> Chain {
    let mut target = Target::of_peer(service, peer);
    target.mesh_gateway.mode = callers.overrides.mesh_gateway;
    target.connect_timeout = match callers.overrides.connect_timeout {
        Duration::ZERO => CONNECT_TIMEOUT,
        wanted => wanted,
    };
    complete(txn, &mut target, callers.partition);
    let access = access(txn, service, peer);
    let protocol = access.as_ref().as_ref().map(|access| access.protocol);
    to_one_target(service, target, protocol.unwrap_or_default(), callers)
}

/// A chain without config entries, whose only target is this one.
pub(crate) fn to_one_target(
    service: &ServiceName,
    target: Target,
    protocol: Protocol,
    callers: Callers<'_>,
) -> Chain {
    let resolver = Resolver {
        default: true,
        connect_timeout: target.connect_timeout,
        request_timeout: Duration::ZERO,
        target: target.id.clone(),
        failover: None,
    };
    let node = Node {
        name: target.id.clone(),
        kind: NodeKind::Resolver(resolver),
        load_balancer: None,
    };
    Chain {
        service_name: service.name.as_ref().to_owned(),
        tenancy: service.tenancy.clone(),
        datacenter: callers.datacenter.to_owned(),
        customization_hash: None,
        default: true,
        protocol,
        service_meta: BTreeMap::new(),
        envoy_extensions: Vec::new(),
        start_node: node.key(),
        nodes: [(node.key(), Box::new(node))].into(),
        targets: [(target.id.clone(), Box::new(target))].into(),
    }
}
