//! What a mesh gateway forwards between peers: services that are exported to them, services that are imported from them,
//! and the connections of servers.
//!
//! Names that a peer or a token contains are used only in the form that they have in every mesh, so that they lead to
//! nothing of this one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_discovery_chain::{Chain, NodeKind, Overrides};
use legate_model::{
    CheckServiceNode, Node, Peering, ServiceInstance, ServiceName, Tenancy, TrustDomain, sni,
};
use legate_store::ReadTxn;

use crate::chain::{self, Callers, Instances, ResolvedChain};
use crate::exports;
use crate::merge;
use crate::queries;
use crate::remote::SERVERS;
use crate::trust::{self, Peers};
use crate::upstream::UpstreamSnapshot;
use crate::value::queried;

/// The prefix of the clusters of exported services: those of the services themselves have no TLS. As in Consul.
const EXPORTED: &str = "exported~";

/// The maximum length of a host name.
const MAX_NAME: usize = 253;

/// A service that is exported to peers, as a mesh gateway forwards to it.
#[derive(Clone, Debug)]
pub struct PeerExport {
    /// The service.
    pub service: ServiceName,
    /// The server names by which peers reach it, in lower case. At least one.
    pub server_names: Vec<String>,
    /// The peers whose requests the gateway accepts; empty if it passes on connections.
    pub peers: Peers,
    /// Its chain: without failover, and with names of clusters that no other service has.
    pub upstream: UpstreamSnapshot,
}

impl PartialEq for PeerExport {
    fn eq(&self, other: &Self) -> bool {
        self.service == other.service
            && self.server_names == other.server_names
            && self.peers == other.peers
            && self.upstream.upstream == other.upstream.upstream
            && self.upstream.resolved == other.upstream.resolved
    }
}

impl PeerExport {
    /// Whether the gateway terminates the connections of peers, and applies the chain to requests.
    pub fn has_requests(&self) -> bool {
        self.upstream.resolved.protocol().is_http()
    }

    pub(crate) fn size(&self) -> usize {
        self.server_names.len() + self.peers.len() + self.upstream.resolved.size()
    }
}

/// Connections with a server name, and where they go.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerRoute {
    /// The server name, in lower case.
    pub server_name: String,
    /// Where they go.
    pub instances: Arc<Instances>,
}

/// The connections that a mesh gateway passes on between this cluster and its peers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerRoutes {
    /// To the services of peers, by their mesh gateways.
    pub services: Vec<PeerRoute>,
    /// To the servers of this cluster. `None` unless peerings go through mesh gateways.
    pub servers: Option<PeerRoute>,
    /// To the servers of peers that this cluster connects to.
    pub peer_servers: Vec<PeerRoute>,
}

queried! {
    PeerRoutes, |routes| {
        let all = routes.services.iter().chain(&routes.servers).chain(&routes.peer_servers);
        all.map(|one| 1 + one.instances.len()).sum()
    };
}

/// The names of the services of the current partition that peers reach in the mesh.
pub(crate) fn exported_names(
    txn: &ReadTxn<'_>,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<Vec<ServiceName>> {
    let argument = format!("{datacenter}/{trust_domain}");
    txn.shared("services that peers reach", &argument, |txn| {
        exported(txn, datacenter, trust_domain)
            .keys()
            .cloned()
            .collect()
    })
}

/// The services of the current partition that peers reach in the mesh, with the names of the peers.
fn exported(
    txn: &ReadTxn<'_>,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<BTreeMap<ServiceName, BTreeSet<Arc<str>>>> {
    let argument = format!("{datacenter}/{trust_domain}");
    txn.shared("peers of exported services", &argument, |txn| {
        let mut all = BTreeMap::<_, BTreeSet<_>>::new();
        for peer in &*exports::peers(txn) {
            let exports = exports::exports_to_peer(txn, peer, datacenter, trust_domain);
            for service in exports.in_mesh.keys() {
                let peers: &mut BTreeSet<_> = all.entry(service.clone()).or_default();
                peers.insert(Arc::clone(peer));
            }
        }
        all
    })
}

/// A service that peers reach; `None` if its chain leads out of this cluster or cannot be compiled, and if the gateway
/// terminates its connections and knows the roots of none of the peers.
pub(crate) fn peer_export(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<Option<Arc<PeerExport>>> {
    let argument = format!("{service}/{datacenter}/{trust_domain}");
    txn.shared("service that peers reach", &argument, |txn| {
        let peers = txn.shared("peers that reach a service", &argument, |txn| {
            let all = exported(txn, datacenter, trust_domain);
            all.get(service).cloned().unwrap_or_default()
        });
        let resolved = for_peers(txn, service, datacenter, trust_domain)?;
        let trusted = match resolved.protocol().is_http() {
            true => trust::trusted(txn, peers.iter(), trust_domain),
            false => Peers::new(),
        };
        if peers.is_empty() || (resolved.protocol().is_http() && trusted.is_empty()) {
            return None;
        }
        let names = peers
            .iter()
            .map(|peer| sni::exported(service, peer, trust_domain));
        let names = names.map(|name| name.to_lowercase());
        Some(Arc::new(PeerExport {
            service: service.clone(),
            server_names: names.filter(|name| name.len() <= MAX_NAME).collect(),
            peers: trusted,
            upstream: UpstreamSnapshot {
                upstream: Arc::new(merge::plain_upstream(service, txn.tenancy())),
                resolved,
            },
        }))
    })
}

/// The chain of a service as mesh gateways apply it, with its instances.
fn for_peers(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Option<Arc<ResolvedChain>> {
    let argument = format!("{service}/{datacenter}/{trust_domain}");
    let resolved = txn.shared("resolved chain for peers", &argument, |txn| {
        let chain = txn.shared("chain for peers", &argument, |txn| {
            let chain = chain::compiled(txn, service, datacenter, trust_domain);
            let chain = chain.as_ref().as_ref().ok()?;
            without_failover(chain).map(Arc::new)
        });
        let chain = Option::clone(&chain)?;
        let callers = Callers {
            partition: &service.tenancy.partition,
            datacenter,
            local: datacenter,
            trust_domain,
            overrides: Overrides::default(),
        };
        let own = chain::resolved(txn, service, callers);
        let targets = chain.targets.keys();
        let instances = targets.map(|id| own.instances(id).map(Arc::clone).unwrap_or_default());
        let instances: Vec<_> = instances.collect();
        Some(Arc::new(ResolvedChain::new(chain, instances)))
    });
    (*resolved).clone()
}

/// The chain without failover, which is up to the caller, and with names of its own for clusters. `None` if it leads to a
/// peer.
fn without_failover(chain: &Chain) -> Option<Chain> {
    let mut chain = Chain {
        // Requests have routes, which a listener of a gateway does not contain.
        default: false,
        ..chain.clone()
    };
    let mut used = BTreeSet::new();
    for node in chain.nodes.values_mut() {
        if let NodeKind::Resolver(resolver) = &mut node.kind {
            resolver.failover = None;
            used.insert(resolver.target.clone());
        }
    }
    chain.targets.retain(|id, _| used.contains(id));
    let mut targets = chain.targets.values();
    if targets.any(|target| !target.peer.is_empty()) {
        return None;
    }
    for target in chain.targets.values_mut() {
        target.name = format!("{EXPORTED}{}", target.name);
    }
    Some(chain)
}

/// The connections that mesh gateways of the current partition pass on between this cluster and its peers.
pub(crate) fn peer_routes(
    txn: &ReadTxn<'_>,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<PeerRoutes> {
    let argument = format!("{datacenter}/{trust_domain}");
    txn.shared("connections between peers", &argument, |txn| {
        let mesh = queries::mesh(txn);
        let peering = (*mesh).as_ref().and_then(|mesh| mesh.peering.as_ref());
        let for_servers = peering.is_some_and(|peering| peering.peer_through_mesh_gateways);
        PeerRoutes {
            services: imported(txn, trust_domain),
            servers: match for_servers {
                true => servers(txn, datacenter, trust_domain),
                false => None,
            },
            peer_servers: match for_servers {
                true => peer_servers(txn, trust_domain),
                false => Vec::new(),
            },
        }
    })
}

/// The services that are imported from peers whose roots are known, by the server names that they have there.
fn imported(txn: &ReadTxn<'_>, own: &TrustDomain) -> Vec<PeerRoute> {
    let mut found = BTreeMap::new();
    for (peer, trust) in &*trust::known(txn, own) {
        // Other names could be those of services of this mesh.
        let end = format!(".external.{}", trust.trust_domain);
        for tenancy in txn.tenancies_here() {
            let imported = txn.in_tenancy(&tenancy.of_peer(peer), |txn| {
                txn.shared("imported services by server name", "", imported_here)
            });
            for (name, instances) in &*imported {
                let is_usable = name.ends_with(&end) && name.len() <= MAX_NAME;
                if is_usable && !instances.is_empty() {
                    let known = found.entry(name.clone());
                    known.or_insert_with(|| Arc::clone(instances));
                }
            }
        }
    }
    let route = |(server_name, instances)| PeerRoute {
        server_name,
        instances,
    };
    found.into_iter().map(route).collect()
}

/// The services that are imported into the current tenancy, by server name, at the addresses of the peer's gateways.
fn imported_here(txn: &ReadTxn<'_>) -> BTreeMap<String, Arc<Instances>> {
    let mut all = BTreeMap::new();
    for service in txn.names_in_mesh() {
        let found = txn.shared("imported service", &service, |txn| {
            let proxies = txn.connect(&service);
            let name = proxies.iter().find_map(server_name)?;
            let gateways = proxies.iter().map(CheckServiceNode::at_wan_address);
            // Envoy refuses an address without a host.
            let reachable = gateways.filter(|one| !one.address().0.is_empty());
            let instances = Instances::from(reachable.collect::<Vec<_>>());
            Some((name, Arc::new(instances)))
        });
        all.extend((*found).clone());
    }
    all
}

/// The server name of an imported proxy.
fn server_name(proxy: &CheckServiceNode) -> Option<String> {
    let meta = proxy.service.connect.peer_meta.as_ref()?;
    meta.sni.first().map(|name| name.to_ascii_lowercase())
}

/// The servers of this cluster for those of peers, at their ports for gRPC with TLS. As in Consul, not those that only
/// answer reads.
fn servers(txn: &ReadTxn<'_>, datacenter: &str, trust_domain: &TrustDomain) -> Option<PeerRoute> {
    let instances = txn.in_tenancy(&Tenancy::default(), |txn| {
        txn.shared("servers for peers", "", |txn| {
            let servers = txn.service(SERVERS).into_iter();
            let servers = servers.filter(|server| server.service.id == SERVERS);
            Instances::from(servers.filter_map(at_grpc_port).collect::<Vec<_>>())
        })
    });
    (!instances.is_empty()).then(|| PeerRoute {
        server_name: sni::peering_server(datacenter, trust_domain),
        instances,
    })
}

fn at_grpc_port(server: CheckServiceNode) -> Option<CheckServiceNode> {
    let meta = &server.service.meta;
    if meta
        .get("read_replica")
        .is_some_and(|value| value == "true")
    {
        return None;
    }
    let port = meta.get("grpc_tls_port")?.parse().ok()?;
    let service = ServiceInstance {
        port,
        address: server.address().0.to_owned(),
        ..ServiceInstance::clone(&server.service)
    };
    (port != 0).then(|| CheckServiceNode {
        service: service.into(),
        ..server
    })
}

/// The servers of the peers that this cluster connects to. Of peerings with the same name of servers, the one that was
/// changed last has it.
fn peer_servers(txn: &ReadTxn<'_>, own: &TrustDomain) -> Vec<PeerRoute> {
    let mut peerings = txn.peerings();
    peerings.retain(|peering| peering.is_active() && peering.dials());
    peerings.sort_by_key(|peering| peering.modify_index);
    let mut found = BTreeMap::new();
    for peering in &peerings {
        let name = peering.peer_server_name.to_ascii_lowercase();
        if is_server_name(&name, own) {
            found.insert(name, Arc::new(Instances::from(addresses(peering))));
        }
    }
    let route = |(server_name, instances)| PeerRoute {
        server_name,
        instances,
    };
    found.into_iter().map(route).collect()
}

/// Whether it is the name of the servers of another mesh: `server.<datacenter>.peering.<trust domain>`.
fn is_server_name(name: &str, own: &TrustDomain) -> bool {
    let rest = name.strip_prefix("server.");
    let Some((datacenter, trust_domain)) = rest.and_then(|rest| rest.split_once(".peering."))
    else {
        return false;
    };
    let is_other = trust_domain
        .parse()
        .is_ok_and(|domain: TrustDomain| domain != *own);
    is_other && !datacenter.is_empty() && !datacenter.contains('.') && name.len() <= MAX_NAME
}

fn addresses(peering: &Peering) -> Vec<CheckServiceNode> {
    let instance = |(at, address): (usize, &String)| {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
        (!host.is_empty()).then(|| CheckServiceNode {
            node: Arc::new(Node {
                node: format!("{}-{at}", peering.name),
                address: host.to_owned(),
                ..Node::default()
            }),
            service: Arc::new(ServiceInstance {
                id: SERVERS.to_owned(),
                service: SERVERS.to_owned(),
                address: host.to_owned(),
                port,
                ..ServiceInstance::default()
            }),
            checks: Vec::new(),
        })
    };
    peering
        .addresses()
        .iter()
        .enumerate()
        .filter_map(instance)
        .collect()
}
