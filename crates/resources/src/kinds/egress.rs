//! A sidecar's resources for services outside the mesh behind terminating gateways, in transparent
//! mode: a cluster for each address, with the gateways as endpoints, and routes by host for
//! services that speak HTTP on one port.
//!
//! The service of a connection or request is selected by the dialled address and port, by the SNI
//! of the TLS handshake for host names, or by the host of the request.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use legate_model::Protocol;
use legate_proxycfg::{Destination, Destinations, Proxy};

use super::change::SameProxy;
use crate::cluster;
use crate::composer::Composer;
use crate::endpoint;
use crate::listener::outbound::{Chain, Target};
use crate::names::{self, FilterName};
use crate::part::{UnitBuilder, made};
use crate::resource_type::Type;
use crate::retry;
use crate::route;
use crate::section::Section;
use crate::settings::Settings;
use crate::tls::TlsSettings;
use crate::upstream::UpstreamTarget;

/// The services outside the mesh, one unit each.
const SERVICES: Section = Section("services outside the mesh");

/// The routes to services outside the mesh that speak HTTP.
const ROUTES: Section = Section("routes out of the mesh");

/// The maximum number of distinct ports of services outside the mesh. One listener repeats the
/// chains of all services in the mesh for each of these ports, so that it could become too large
/// for Envoy.
const MAX_PORTS: usize = 64;

/// The maximum number of omitted services that a warning names.
const MAX_NAMED: usize = 20;

/// Services outside the mesh, and their last state.
pub(super) struct Egress<'a, 's> {
    pub(super) proxy: &'a Proxy,
    pub(super) destinations: &'a Destinations,
    pub(super) last: Option<&'a Destinations>,
    pub(super) same: SameProxy,
    pub(super) settings: &'a Settings<'s>,
}

/// The routes of one port: clusters with their hosts.
type Hosts = Vec<(String, Vec<String>)>;

/// The units for services outside the mesh.
pub(super) struct Units<'a> {
    /// One unit per service.
    services: Vec<UnitBuilder<'a>>,
    routes: UnitBuilder<'a>,
}

impl<'a> Units<'a> {
    pub(super) fn add_to(self, composer: &mut Composer<'a>) {
        for unit in self.services {
            composer.add(SERVICES, unit);
        }
        composer.add(ROUTES, self.routes);
    }

    pub(super) fn have_trouble(&self) -> bool {
        let mut services = self.services.iter();
        services.any(|unit| unit.has_trouble(Type::Cluster))
            || self.routes.has_trouble(Type::Routes)
    }
}

impl<'a> Egress<'a, '_> {
    fn now(&self) -> &'a [Arc<Destination>] {
        self.destinations
    }

    fn last(&self) -> &'a [Arc<Destination>] {
        self.last.map_or(&[], |last| last)
    }

    /// Whether the same services are reached in the same way, not counting the gateways.
    pub(super) fn is_reached_alike(&self) -> bool {
        let last = self.last();
        last.len() == self.now().len()
            && std::iter::zip(last, self.now())
                .all(|(last, now)| Arc::ptr_eq(last, now) || last.is_reached_alike(now))
    }

    /// The units.
    pub(super) fn units<'b>(&self, composer: &Composer<'b>) -> Units<'b> {
        let last = self.last();
        let places: HashMap<_, _> = last.iter().map(|last| &*last.name).zip(0..).collect();
        let services = self.now().iter().map(|now| {
            let before = places.get(&*now.name).copied();
            let mut unit = composer.unit(SERVICES, before).for_upstream(&now.name);
            self.add_clusters(composer, &mut unit, now, before.map(|at| &*last[at]));
            unit
        });
        let services: Vec<_> = services.collect();
        let mut routes = composer.unit(ROUTES, Some(0));
        self.add_routes(composer, &mut routes, &services);
        Units { services, routes }
    }

    /// Adds a cluster and its endpoints for each address.
    fn add_clusters(
        &self,
        composer: &Composer<'_>,
        unit: &mut UnitBuilder<'_>,
        now: &Destination,
        last: Option<&Destination>,
    ) {
        let same = self.same.mesh_name && last.is_some_and(|last| last.is_reached_alike(now));
        let is_dialled_alike = same && self.same.mesh && self.same.instance;
        let same_gateways = last.is_some_and(|last| Arc::ptr_eq(&last.gateways, &now.gateways));
        if is_dialled_alike && same_gateways && unit.take_over() {
            return;
        }
        for address in &now.addresses {
            let name = names::destination_cluster(self.proxy, &now.name, address);
            unit.part(
                Type::Cluster,
                || name.clone(),
                is_dialled_alike,
                |_| {
                    let tls = TlsSettings::outgoing((*self.proxy.mesh).as_ref())?;
                    let (memo, timeout) = (composer.memo, self.settings.0.fetch_timeout);
                    let proxy = self.proxy;
                    made(cluster::destination(memo, proxy, now, &name, &tls, timeout))
                },
            );
            unit.part(
                Type::Endpoints,
                || name.clone(),
                same && same_gateways,
                |warnings| {
                    let gateways = &now.gateways;
                    let memo = composer.memo;
                    made(endpoint::assignment(memo, &name, gateways, None, warnings))
                },
            );
        }
    }

    /// Adds the routes of each port on which a service speaks HTTP.
    fn add_routes(
        &self,
        composer: &Composer<'_>,
        unit: &mut UnitBuilder<'_>,
        services: &[UnitBuilder<'_>],
    ) {
        let trouble = services.iter().any(|unit| unit.has_trouble(Type::Cluster));
        let same = self.same.mesh_name && self.same.mesh && self.is_reached_alike() && !trouble;
        if same && unit.take_over() {
            return;
        }
        let mut warnings = Vec::new();
        let ports = self.hosts(services, &mut warnings);
        for (port, hosts) in &ports {
            let name = names::destination_routes(self.proxy, *port);
            let about_hosts = std::mem::take(&mut warnings);
            unit.part(
                Type::Routes,
                || name.clone(),
                false,
                |warnings| {
                    *warnings = about_hosts;
                    let mesh = (*self.proxy.mesh).as_ref();
                    let validate = mesh.is_some_and(|mesh| mesh.validate_clusters);
                    made(route::by_host(composer.memo, &name, hosts, validate))
                },
            );
        }
    }

    /// By port: the clusters of services that speak HTTP, with their hosts, each with and without
    /// the port. A host belongs to only one service, because Envoy refuses duplicates. A host
    /// without a cluster has no route.
    fn hosts(
        &self,
        services: &[UnitBuilder<'_>],
        warnings: &mut Vec<String>,
    ) -> BTreeMap<u16, Hosts> {
        let mut ports: BTreeMap<u16, Hosts> = BTreeMap::new();
        let mut taken = HashSet::new();
        for (at, service, address) in self.addresses(|one| one.protocol.is_http()) {
            let port = service.port;
            let own = ports.entry(port).or_default();
            let host = match ip(address) {
                Some(IpAddr::V6(ip)) => format!("[{ip}]"),
                Some(IpAddr::V4(ip)) => ip.to_string(),
                None => host_name(address),
            };
            if !taken.insert((port, host.clone())) {
                warnings.push(shared(service, address));
                continue;
            }
            let cluster = names::destination_cluster(self.proxy, &service.name, address);
            if services[at].lacks(Type::Cluster, &cluster) {
                warnings.push(without_cluster(service, address));
                continue;
            }
            own.push((cluster, vec![format!("{host}:{port}"), host]));
        }
        ports
    }

    /// The ports of the services, in order of service names, up to the maximum.
    fn ports(&self) -> HashSet<u16> {
        let mut ports = HashSet::new();
        for service in self.now() {
            if ports.len() == MAX_PORTS {
                break;
            }
            ports.insert(service.port);
        }
        ports
    }

    /// The addresses of the matching services within the port limit, with the index of each
    /// service.
    fn addresses(
        &self,
        which: impl Fn(&Destination) -> bool,
    ) -> impl Iterator<Item = (usize, &'a Destination, &'a str)> {
        let ports = self.ports();
        let services = self.now().iter().enumerate();
        let services = services.filter(move |(_, one)| ports.contains(&one.port) && which(one));
        services.flat_map(|(at, one)| {
            let addresses = one.addresses.iter();
            addresses.map(move |address| (at, &**one, address.as_str()))
        })
    }

    /// The filter chains of the listener for captured traffic. Addresses in `in_mesh` belong to
    /// services in the mesh and are skipped.
    pub(super) fn chains(
        &self,
        units: &Units<'_>,
        in_mesh: &HashSet<IpAddr>,
        warnings: &mut Vec<String>,
    ) -> Vec<Chain<'static>> {
        let mut chains = Vec::new();
        let mut taken = HashSet::new();
        for (_, service, address) in self.addresses(|one| !one.protocol.is_http()) {
            let dialled = match ip(address) {
                Some(ip) if in_mesh.contains(&ip) => {
                    warnings.push(taken_in_mesh(service, address));
                    continue;
                }
                Some(ip) => Target::Address(ip, service.port),
                None => Target::ServerName(host_name(address), service.port),
            };
            if !taken.insert(dialled.clone()) {
                warnings.push(shared(service, address));
                continue;
            }
            let cluster = names::destination_cluster(self.proxy, &service.name, address);
            chains.push(Chain {
                filter: FilterName::from(cluster.as_str()),
                id: cluster.clone(),
                target: UpstreamTarget::Cluster(cluster),
                protocol: Protocol::Tcp,
                attempts: retry::ATTEMPTS,
                hash_source_ip: false,
                dialled,
            });
        }
        for (_, service, address) in self.addresses(|one| one.protocol.is_http()) {
            let dialled = ip(address).map(|ip| Target::Address(ip, service.port));
            if dialled.is_some_and(|dialled| taken.contains(&dialled)) {
                warnings.push(shared(service, address));
            }
        }
        let reached = self.ports();
        let (services, beyond): (Vec<_>, Vec<_>) =
            (self.now().iter()).partition(|one| reached.contains(&one.port));
        warnings.extend(left_out(&beyond));
        // As in Consul, the first service on a port determines the protocol of the port.
        let mut ports: BTreeMap<u16, Protocol> = BTreeMap::new();
        for service in services.into_iter().filter(|one| one.protocol.is_http()) {
            ports.entry(service.port).or_insert(service.protocol);
        }
        let lacking = units.routes.lacking(Type::Routes).is_some();
        chains.extend(ports.into_iter().map(|(port, protocol)| {
            let routes = names::destination_routes(self.proxy, port);
            let (target, protocol) = match lacking {
                // There is no cluster of this name, so that Envoy closes the connections. Without a
                // chain they would bypass the gateway.
                true => (UpstreamTarget::Cluster(routes.clone()), Protocol::Tcp),
                false => (UpstreamTarget::Routes(routes.clone()), protocol),
            };
            Chain {
                filter: FilterName::from(routes.as_str()),
                id: routes,
                target,
                protocol,
                attempts: retry::ATTEMPTS,
                hash_source_ip: false,
                dialled: Target::Port(port),
            }
        }));
        chains
    }
}

/// A dialled IP address. IPv4-mapped IPv6 addresses are dialled as IPv4.
fn ip(address: &str) -> Option<IpAddr> {
    let ip: IpAddr = address.parse().ok()?;
    Some(ip.to_canonical())
}

/// Normalized as server names and hosts are matched.
fn host_name(address: &str) -> String {
    let name = address.strip_suffix('.').unwrap_or(address);
    name.to_ascii_lowercase()
}

fn shared(service: &Destination, address: &str) -> String {
    format!(
        "{address}:{} of the destination {} is also one of another destination, which gets its traffic",
        service.port, service.name
    )
}

fn taken_in_mesh(service: &Destination, address: &str) -> String {
    format!(
        "{address}:{} of the destination {} is also an address of a service in the mesh, which is used",
        service.port, service.name
    )
}

fn without_cluster(service: &Destination, address: &str) -> String {
    format!(
        "{address}:{} of the destination {} has no route: its cluster cannot be made",
        service.port, service.name
    )
}

/// The warning about services beyond the port limit.
fn left_out(beyond: &[&Arc<Destination>]) -> Option<String> {
    let named = beyond.iter().take(MAX_NAMED);
    let named = named.map(|one| format!("{} (port {})", one.name, one.port));
    let more = beyond.len().saturating_sub(MAX_NAMED);
    let more = (more > 0).then(|| format!("{more} more"));
    let all: Vec<_> = named.chain(more).collect();
    (!all.is_empty()).then(|| {
        format!(
            "destinations use more than {MAX_PORTS} ports, and only the first {MAX_PORTS} are served; omitted: {}",
            all.join(", ")
        )
    })
}
