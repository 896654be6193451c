//! What a mesh gateway forwards between peers: services that are exported to them, services that are imported from them,
//! and the connections of servers.
//!
//! Connections to an exported service are passed on as they are, to the only target of its chain. Requests, instead, need
//! the chain: the gateway terminates the connections of peers with its own certificate, and calls the service as any
//! caller of this mesh does. It says who has called in `x-forwarded-client-cert`, for the rules of the service. It accepts
//! no caller of this mesh there: its rules would see the gateway as the caller.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::listener::v3::FilterChain;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    Rds, http_connection_manager,
};
use legate_model::Protocol;
use legate_proxycfg::{MeshGateway, PeerExport, PeerExports, PeerRoute, Peers, Proxy};

use super::change::{Positions, SameProxy};
use super::mesh_gateway::{ChainInput, Group, Stats, add_group};
use super::upstream::UpstreamChange;
use crate::composer::Composer;
use crate::duration::proto_duration;
use crate::endpoint;
use crate::error::GenerateError;
use crate::gateway::cluster::{self, ServiceCluster};
use crate::gateway::settings::GatewaySettings;
use crate::listener::{self, RouteSpecifier};
use crate::memo::Memo;
use crate::names::{self, LEAF, ROOTS};
use crate::part::{UnitBuilder, made};
use crate::resource_type::Type;
use crate::retry;
use crate::secret;
use crate::section::Section;
use crate::settings::{Limits, Settings};
use crate::telemetry::Telemetry;
use crate::tls::{self, TlsSettings};
use crate::upstream::{self, ClusterKind, UpstreamPlan};

/// The gateway's certificate, and the roots that callers and services are verified against.
const SECRETS: Section = Section("secrets for peers");

/// The services that peers reach, one unit each.
const EXPORTS: Section = Section("exported services");

/// The services and servers of peers, and the own servers for peers, one unit each.
const ROUTES: Section = Section("connections between peers");

/// The name of no cluster. Envoy closes connections to it.
const NOWHERE: &str = "";

/// A mesh gateway, and its last state.
pub(super) struct Peering<'a> {
    pub(super) proxy: &'a Proxy,
    pub(super) now: &'a MeshGateway,
    pub(super) last: Option<&'a MeshGateway>,
    pub(super) same: SameProxy,
}

impl<'a> Peering<'a> {
    /// Whether it terminates connections.
    fn terminates(own: &MeshGateway) -> bool {
        own.leaf.is_some()
    }

    /// Adds what the chains refer to.
    pub(super) fn add(
        &self,
        composer: &mut Composer<'_>,
        gateway: &GatewaySettings,
        settings: &Settings<'_>,
        limits: Option<&Limits>,
    ) {
        self.add_secrets(composer);
        self.add_exports(composer, gateway, settings, limits);
        self.add_routes(composer, gateway, settings);
    }

    fn add_secrets(&self, composer: &mut Composer<'_>) {
        let Some(leaf) = &self.now.leaf else {
            return;
        };
        let (memo, same) = (composer.memo, self.same);
        let mut unit = composer.unit(SECRETS, Some(0));
        let last = self.last.and_then(|last| last.leaf.as_ref());
        let unchanged = last.is_some_and(|last| Arc::ptr_eq(last, leaf));
        let name = || LEAF.to_owned();
        unit.part(Type::Secret, name, unchanged, |_| {
            made(secret::leaf(memo, LEAF, leaf))
        });
        let unchanged = same.roots && last.is_some();
        let name = || ROOTS.to_owned();
        let roots = &self.proxy.roots;
        unit.part(Type::Secret, name, unchanged, |_| {
            made(secret::roots(memo, roots))
        });
        let sets = sets_of_peers(&self.now.exports);
        let is_same = self
            .last
            .is_some_and(|last| sets_of_peers(&last.exports) == sets);
        for (name, peers) in sets {
            let unchanged = is_same && last.is_some();
            unit.part(
                Type::Secret,
                || name.clone(),
                unchanged,
                |_| made(secret::domains(memo, &name, None, peers)),
            );
        }
        composer.add(SECRETS, unit);
    }

    fn add_exports(
        &self,
        composer: &mut Composer<'_>,
        gateway: &GatewaySettings,
        settings: &Settings<'_>,
        limits: Option<&Limits>,
    ) {
        let last = self.last.map(|last| &*last.exports);
        let positions = Positions::of(
            last.is_some_and(|last| std::ptr::eq(last, &*self.now.exports)),
            last.into_iter()
                .flat_map(|last| &last.0)
                .map(|one| &one.service),
        );
        for (at, export) in self.now.exports.0.iter().enumerate() {
            let before = positions.before(at, &&export.service);
            let earlier = before.and_then(|at| last?.0.get(at));
            let mut unit = composer.unit(EXPORTS, before);
            let service = Export {
                proxy: self.proxy,
                now: export,
                earlier,
                same: self.same,
                // They are settings of the registration, or of the entry of its name.
                same_limits: self.same.instance
                    && self
                        .last
                        .is_some_and(|last| Arc::ptr_eq(&last.limits, &self.now.limits)),
            };
            match export.has_requests() {
                true => service.add_requests(&mut unit, composer.memo, settings),
                false => {
                    let timeouts = (gateway.connect_timeout, settings.0.fetch_timeout);
                    service.add_connections(&mut unit, composer.memo, timeouts, limits);
                }
            }
            composer.add(EXPORTS, unit);
        }
    }

    /// The clusters of connections by server name.
    fn add_routes(
        &self,
        composer: &mut Composer<'_>,
        gateway: &GatewaySettings,
        settings: &Settings<'_>,
    ) {
        let routes = |own: &'a MeshGateway| {
            let peers = &own.peers;
            let all = peers.services.iter().chain(&peers.servers);
            all.chain(&peers.peer_servers).collect::<Vec<&PeerRoute>>()
        };
        let last = self.last.map(routes).unwrap_or_default();
        let by_name: BTreeMap<&str, usize> = last
            .iter()
            .zip(0..)
            .map(|(one, at)| (&*one.server_name, at))
            .collect();
        let services = self.now.peers.services.len();
        // As in Consul, all addresses of servers are used.
        let strict = GatewaySettings {
            strict_dns: true,
            ..gateway.clone()
        };
        for (at, now) in routes(self.now).into_iter().enumerate() {
            let before = by_name.get(&*now.server_name).copied();
            let mut unit = composer.unit(ROUTES, before);
            let group = Group {
                name: now.server_name.clone(),
                now: &now.instances,
                last: before
                    .and_then(|at| last.get(at))
                    .map(|last| &last.instances),
            };
            let gateway = if at < services { gateway } else { &strict };
            add_group(
                composer.memo,
                &mut unit,
                &group,
                self.same,
                (gateway, settings),
            );
            composer.add(ROUTES, unit);
        }
    }

    /// The filter chains of exported services.
    pub(super) fn exported_chains(
        &self,
        memo: &Memo,
        fetch_timeout: Option<Duration>,
    ) -> Result<Vec<ChainInput>, GenerateError> {
        let (mut chains, mut called) = (Vec::new(), BTreeSet::new());
        for export in &self.now.exports.0 {
            let names = export.server_names.clone();
            let stats = names::service_filter(self.proxy, &export.service).name;
            let stats = Stats::of("mesh_gateway_local_peered.", stats);
            let plan = UpstreamPlan::new(self.proxy, &export.upstream);
            match export.has_requests() {
                true => {
                    let clusters = upstream::clusters(memo, &export.upstream).into_iter();
                    called.extend(clusters.map(|cluster| cluster.name.to_lowercase()));
                    let terminated = Terminated {
                        protocol: export.upstream.resolved.protocol(),
                        routes: plan.id,
                        tls: TlsSettings::incoming((*self.proxy.mesh).as_ref())?,
                        roots: names::roots_of(&export.peers, false),
                        fetch_timeout,
                    };
                    // Until the certificate is issued, connections are closed.
                    chains.extend(Self::terminates(self.now).then_some(ChainInput {
                        server_names: names,
                        cluster: NOWHERE.to_owned(),
                        stats,
                        terminated: Some(terminated),
                    }));
                }
                false => {
                    let clusters = upstream::clusters(memo, &export.upstream);
                    if let Some(cluster) = clusters.first() {
                        chains.push(ChainInput {
                            server_names: names,
                            cluster: cluster.name.clone(),
                            stats,
                            terminated: None,
                        });
                    }
                }
            }
        }
        // Otherwise whoever sends the name of such a cluster would call the service with the gateway's certificate.
        chains.extend((!called.is_empty()).then(|| ChainInput {
            server_names: called.into_iter().collect(),
            cluster: NOWHERE.to_owned(),
            stats: Stats::of("mesh_gateway_local_peered.", "closed".to_owned()),
            terminated: None,
        }));
        Ok(chains)
    }

    /// The filter chains of the connections of servers. Those to services need none: their clusters have their server
    /// names.
    pub(super) fn server_chains(&self) -> Vec<ChainInput> {
        let chain = |route: &PeerRoute, stats| ChainInput {
            server_names: vec![route.server_name.clone()],
            cluster: route.server_name.clone(),
            stats,
            terminated: None,
        };
        let peers = &self.now.peers;
        let datacenter = self.proxy.datacenter.as_ref().to_owned();
        let own = peers.servers.iter().map(|route| {
            let stats = Stats::at_address("mesh_gateway_local_peering_server.", datacenter.clone());
            chain(route, stats)
        });
        let others = peers.peer_servers.iter().map(|route| {
            let name = route.server_name.clone();
            chain(
                route,
                Stats::of("mesh_gateway_remote_peering_servers.", name),
            )
        });
        own.chain(others).collect()
    }

    /// Whether the filter chains are those of the last snapshot.
    pub(super) fn has_same_chains(&self) -> bool {
        let (now, same) = (self.now, self.same);
        let has_own = !now.exports.0.is_empty();
        self.last.is_some_and(|last| {
            Arc::ptr_eq(&last.exports, &now.exports)
                && Arc::ptr_eq(&last.peers, &now.peers)
                && Self::terminates(last) == Self::terminates(now)
        }) && (same.mesh_name && same.mesh || !has_own)
    }
}

/// The sets of peers that the gateway verifies, by the name of their secret.
fn sets_of_peers(exports: &PeerExports) -> BTreeMap<String, &Peers> {
    let terminated = exports.0.iter().filter(|one| one.has_requests());
    terminated
        .map(|one| (names::roots_of(&one.peers, false), &one.peers))
        .collect()
}

/// A service that peers reach, and its last state.
struct Export<'a> {
    proxy: &'a Proxy,
    now: &'a Arc<PeerExport>,
    earlier: Option<&'a Arc<PeerExport>>,
    same: SameProxy,
    same_limits: bool,
}

impl Export<'_> {
    /// Adds the clusters and routes of the chain: the gateway is a caller like any other.
    fn add_requests(&self, unit: &mut UnitBuilder<'_>, memo: &Memo, settings: &Settings<'_>) {
        let earlier = self.earlier.filter(|earlier| earlier.has_requests());
        let earlier = earlier.map(|earlier| &earlier.upstream);
        let upstream = &self.now.upstream;
        let change = UpstreamChange::new(self.proxy, upstream, earlier, self.same);
        let plan = LazyCell::new(|| UpstreamPlan::new(self.proxy, upstream));
        change.add_clusters(unit, memo, settings, &plan);
        change.add_routes(unit, memo, &plan);
    }

    /// Adds the cluster of the chain's target, which passes on the caller's TLS.
    fn add_connections(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        (connect_timeout, fetch_timeout): (Duration, Option<Duration>),
        limits: Option<&Limits>,
    ) {
        let unchanged = self
            .earlier
            .is_some_and(|earlier| Arc::ptr_eq(earlier, self.now));
        for plan in upstream::clusters(memo, &self.now.upstream) {
            let ClusterKind::Target(target, balancer) = plan.kind else {
                continue;
            };
            let name = || plan.name.clone();
            unit.part(Type::Cluster, name, unchanged && self.same_limits, |_| {
                let cluster = ServiceCluster {
                    name: &plan.name,
                    connect_timeout: match plan.connect_timeout {
                        timeout if timeout.is_zero() => connect_timeout,
                        timeout => timeout,
                    },
                    fetch_timeout,
                    // What is hashed is inside TLS.
                    balancer: balancer.filter(|one| !one.is_hash_based()),
                    limits,
                };
                made(cluster::of_service(memo, &cluster))
            });
            let instances = self.now.upstream.resolved.instances(&target.id);
            unit.part(Type::Endpoints, name, unchanged, |warnings| {
                instances.map_or(Ok(None), |instances| {
                    made(endpoint::assignment(
                        memo, &plan.name, instances, None, warnings,
                    ))
                })
            });
        }
    }
}

/// How the gateway terminates connections.
#[derive(Hash)]
pub(super) struct Terminated {
    protocol: Protocol,
    /// The name of the routes.
    pub(super) routes: String,
    tls: TlsSettings,
    /// The secret with the certificates that callers are verified against.
    roots: String,
    fetch_timeout: Option<Duration>,
}

/// The filter chain of terminated connections.
pub(super) fn terminated(chain: &Terminated, stats: &str, telemetry: &Telemetry) -> FilterChain {
    use http_connection_manager::{ForwardClientCertDetails, SetCurrentClientCertDetails};
    let routes = RouteSpecifier::Rds(Rds {
        config_source: Some(tls::ads(chain.fetch_timeout.map(proto_duration))),
        route_config_name: chain.routes.clone(),
    });
    let mut manager =
        listener::connection_manager(stats, chain.protocol, routes, telemetry, Vec::new());
    manager.local_reply_config = Some(retry::replies());
    manager.forward_client_cert_details = ForwardClientCertDetails::SanitizeSet.into();
    // Not the subject or the DNS names: whoever issued the certificate could write the text of other parts in them.
    manager.set_current_client_cert_details = Some(SetCurrentClientCertDetails {
        cert: true,
        chain: true,
        uri: true,
        ..SetCurrentClientCertDetails::default()
    });
    let alpn = listener::public::alpn(chain.protocol);
    FilterChain {
        filters: vec![listener::http_connection(&manager)],
        transport_socket: Some(tls::downstream(&chain.tls, (LEAF, &chain.roots), alpn)),
        ..FilterChain::default()
    }
}

/// The server names of chains must differ: Envoy refuses a listener in which two match the same. The first has a name.
pub(super) fn deduplicated(chains: Vec<ChainInput>) -> Vec<ChainInput> {
    let mut taken = BTreeSet::new();
    let mut kept = Vec::with_capacity(chains.len());
    for mut chain in chains {
        chain.server_names.retain(|name| taken.insert(name.clone()));
        if !chain.server_names.is_empty() {
            kept.push(chain);
        }
    }
    kept
}
