//! The terminating gateway: a listener for each of its addresses, with a filter chain for each
//! service and subset by server name, and clusters of the services outside the mesh.

use std::borrow::Cow;
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_model::{JwtProvider, LoadBalancer, ServiceName, ServiceResolver, sni};
use legate_proxycfg::{
    External, ExternalAddresses, Instances, Peers, Proxy, Represented, TerminatingGateway,
};

use super::change::{Positions, SameProxy};
use crate::balancing::{self, Balancing};
use crate::composer::Composer;
use crate::encode::EncodedResource;
use crate::endpoint;
use crate::error::{GenerateError, MAX_SERVER_NAME};
use crate::gateway::bind;
use crate::gateway::external::{self, Discovery, ExternalCluster};
use crate::gateway::origination::{self, Files, Origination};
use crate::gateway::settings::GatewaySettings;
use crate::gateway::terminating::{self, ServiceChain, TerminatingListener};
use crate::jwt;
use crate::listener::Bind;
use crate::listener::inbound::{self, Access, Dialing, ForwardCaller, Inbound};
use crate::listener::normalization::Normalization;
use crate::memo::Memo;
use crate::names::{self, ROOTS};
use crate::part::{Made, UnitBuilder, made};
use crate::rbac;
use crate::resource_type::Type;
use crate::retry;
use crate::route::{self, ExternalRoutes};
use crate::secret;
use crate::section::Section;
use crate::settings::ProxySettings;
use crate::tls::TlsSettings;

/// The roots, and the listeners.
const OWN: Section = Section("own");

/// The secrets of files.
const FILES: Section = Section("files");

/// The roots of the mesh and of the peers that call services, one secret for each set of peers.
const PEERS: Section = Section("peers");

/// The key servers of JWT providers.
const KEY_SERVERS: Section = Section("key servers");

/// One unit for each service.
const SERVICES: Section = Section("services");

/// A gateway at one point in time.
#[derive(Clone, Copy)]
struct View<'a> {
    proxy: &'a Proxy,
    own: &'a TerminatingGateway,
}

/// The settings of a gateway with their warnings, parsed on first use.
struct Settings {
    proxy: ProxySettings,
    gateway: GatewaySettings,
    warnings: Vec<String>,
}

type Read<'a> = LazyCell<Settings, Box<dyn FnOnce() -> Settings + 'a>>;

pub(super) fn compose(
    composer: &mut Composer<'_>,
    proxy: &Proxy,
    own: &TerminatingGateway,
    last: Option<(&Proxy, &TerminatingGateway)>,
) {
    let now = View { proxy, own };
    let last = last.map(|(proxy, own)| View { proxy, own });
    let same = last.map_or_else(SameProxy::default, |last| {
        SameProxy::between(last.proxy, proxy)
    });
    let settings: Read<'_> = LazyCell::new(Box::new(|| {
        let mut warnings = Vec::new();
        Settings {
            proxy: ProxySettings::read(&proxy.instance, &mut warnings),
            gateway: GatewaySettings::read(&proxy.instance, &mut warnings),
            warnings,
        }
    }));
    let services = services(composer, now, last, same, &settings);
    own_side(composer, (now, last), same, &settings, &services);
    roots_of_peers(composer, (now, last), same);
    secrets_of_files(composer, now, last);
    key_servers(composer, now, last);
    for service in services {
        composer.add(SERVICES, service.unit);
    }
}

/// One service with its parts.
struct Composed<'a, 'b> {
    change: ServiceChange<'a>,
    targets: Vec<Target<'a>>,
    unit: UnitBuilder<'b>,
}

/// A server name by which callers reach a service: all of it, one of its subsets, or one of its
/// addresses.
struct Target<'a> {
    /// The server name, which is also the name of the cluster, its endpoints and its routes.
    name: String,
    at: At<'a>,
}

#[derive(Clone, Copy)]
enum At<'a> {
    Instances(&'a Arc<Instances>),
    Address(&'a str, u16),
}

impl<'a> At<'a> {
    fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Instances(own), Self::Instances(other)) => Arc::ptr_eq(own, other),
            (Self::Address(host, port), Self::Address(other, other_port)) => {
                (host, port) == (other, other_port)
            }
            _ => false,
        }
    }

    /// The instances, if they are endpoints: if none of them has a host name.
    fn listed(self) -> Option<&'a Arc<Instances>> {
        match self {
            Self::Instances(instances) if !external::has_names(instances) => Some(instances),
            _ => None,
        }
    }
}

/// The server names of a service, in order.
fn targets<'a>(proxy: &Proxy, one: &'a Represented) -> Vec<Target<'a>> {
    let service = &one.service;
    match &service.addresses {
        ExternalAddresses::Instances { subsets, .. } => {
            let subsets = subsets.iter().map(|(subset, instances)| Target {
                name: names::subset(proxy, &service.name, subset),
                at: At::Instances(instances),
            });
            subsets.collect()
        }
        ExternalAddresses::Destination(destination) => {
            let addresses = destination.addresses.iter().map(|address| Target {
                name: names::destination_of(proxy, &service.name, address),
                at: At::Address(address, destination.port),
            });
            addresses.collect()
        }
    }
}

fn services<'a, 'b>(
    composer: &Composer<'b>,
    now: View<'a>,
    last: Option<View<'a>>,
    same: SameProxy,
    settings: &Read<'_>,
) -> Vec<Composed<'a, 'b>> {
    let before = last.map_or(&[][..], |last| &last.own.services);
    let positions = Positions::of(false, before.iter().map(|one| &one.service.name));
    let compose = |(at, now_one): (usize, &'a Represented)| {
        let before_at = positions.before(at, &&now_one.service.name);
        let change = ServiceChange {
            proxy: now.proxy,
            now: now_one,
            last: before_at.map(|at| &before[at]),
            same,
        };
        let mut unit = composer.unit(SERVICES, before_at);
        let targets = targets(now.proxy, now_one);
        change.add_parts(composer, &mut unit, &targets, settings);
        Composed {
            change,
            targets,
            unit,
        }
    };
    now.own.services.iter().enumerate().map(compose).collect()
}

/// A service, and its last state.
struct ServiceChange<'a> {
    proxy: &'a Proxy,
    now: &'a Represented,
    last: Option<&'a Represented>,
    same: SameProxy,
}

impl<'a> ServiceChange<'a> {
    fn is(&self, same: impl FnOnce(&Represented) -> bool) -> bool {
        self.last.is_some_and(same)
    }

    /// Whether nothing about it has changed.
    fn is_as_it_was(&self) -> bool {
        let now = self.now;
        self.same.all()
            && self.is(|last| {
                Arc::ptr_eq(&last.service, &now.service)
                    && Arc::ptr_eq(&last.link, &now.link)
                    && Arc::ptr_eq(&last.leaf, &now.leaf)
            })
    }

    /// Whether it has the same server names, which lead to it in the same way, apart from its
    /// instances.
    fn is_dialled_alike(&self) -> bool {
        let now = self.now;
        self.same.mesh_name
            && self.is(|last| {
                Arc::ptr_eq(&last.link, &now.link)
                    && last.service.protocol == now.service.protocol
                    && has_same_addresses(&last.service.addresses, &now.service.addresses)
            })
    }

    /// Whether the rules for its callers are the same.
    fn has_same_callers(&self) -> bool {
        let now = &self.now.service;
        self.same.mesh_name
            && self.same.default_intention
            && self.is(|last| {
                let last = &last.service;
                Arc::ptr_eq(&last.intentions, &now.intentions)
                    && Arc::ptr_eq(&last.jwt_providers, &now.jwt_providers)
                    && Arc::ptr_eq(&last.peers, &now.peers)
            })
    }

    /// Whether its filter chains are the same.
    fn has_same_chains(&self) -> bool {
        self.has_same_callers() && self.is_dialled_alike()
    }

    fn resolver(&self) -> Option<&'a ServiceResolver> {
        match &self.now.service.addresses {
            ExternalAddresses::Instances { resolver, .. } => Some(resolver),
            ExternalAddresses::Destination(_) => None,
        }
    }

    fn balancer(&self) -> Option<&'a LoadBalancer> {
        self.resolver()?.load_balancer.as_ref()
    }

    /// Adds the secret with the service's certificate and, for each of its server names, a cluster,
    /// its endpoints and its routes.
    fn add_parts(
        &self,
        composer: &Composer<'_>,
        unit: &mut UnitBuilder<'_>,
        targets: &[Target<'_>],
        settings: &Read<'_>,
    ) {
        if self.is_as_it_was() && unit.take_over() {
            return;
        }
        let memo = composer.memo;
        let leaf = names::leaf_of(self.proxy, &self.now.service.name);
        let same_leaf = self.is(|last| Arc::ptr_eq(&last.leaf, &self.now.leaf));
        unit.part(
            Type::Secret,
            || leaf.clone(),
            self.same.mesh_name && same_leaf,
            |_| made(secret::leaf(memo, &leaf, &self.now.leaf)),
        );
        let alike = self.is_dialled_alike();
        let before = match self.last {
            Some(last) if alike => self::targets(self.proxy, last),
            _ => Vec::new(),
        };
        for (at, target) in targets.iter().enumerate() {
            let same = before
                .get(at)
                .is_some_and(|last| last.at.is_same(target.at));
            let is_listed = |target: &Target<'_>| target.at.listed().is_some();
            let both_listed = before.get(at).is_some_and(is_listed) && is_listed(target);
            let name = || target.name.clone();
            let unchanged = self.same.instance && (same || both_listed);
            unit.part(Type::Cluster, name, unchanged, |warnings| {
                made(self.cluster(memo, target, settings, warnings))
            });
            unit.part(Type::Endpoints, name, same, |warnings| {
                target.at.listed().map_or(Ok(None), |instances| {
                    made(endpoint::assignment(
                        memo,
                        &target.name,
                        instances,
                        None,
                        warnings,
                    ))
                })
            });
            let unchanged = alike && self.same.mesh && self.has_same_callers();
            unit.part(Type::Routes, name, unchanged, |warnings| {
                match self.now.service.protocol.is_http() {
                    true => made(self.routes(memo, target, warnings)),
                    false => Ok(None),
                }
            });
        }
    }

    fn cluster(
        &self,
        memo: &Memo,
        target: &Target<'_>,
        settings: &Read<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Arc<EncodedResource>, GenerateError> {
        if target.name.len() > MAX_SERVER_NAME {
            return Err(GenerateError::LongServerName(target.name.clone()));
        }
        let service = &self.now.service;
        let discovery = match (target.at, target.at.listed()) {
            (At::Address(host, port), _) => Discovery::Address(host, port),
            (At::Instances(_), Some(_)) => Discovery::Endpoints,
            (At::Instances(instances), None) => {
                let service = service.name.to_string();
                Discovery::of_names(&service, instances, &settings.gateway, warnings)
            }
        };
        let name = service.name.to_string();
        let mut proxy_protocol = settings.gateway.proxy_protocol.get(&name).copied();
        if proxy_protocol.is_some() && service.protocol.is_http() {
            // Requests of several callers share a connection.
            warnings.push(format!(
                "connections to {name} begin with no header of the PROXY protocol, because its \
                 protocol is not tcp"
            ));
            proxy_protocol = None;
        }
        let timeout = self.resolver().map(|resolver| resolver.connect_timeout);
        let cluster = ExternalCluster {
            name: &target.name,
            discovery,
            connect_timeout: timeout
                .filter(|timeout| !timeout.is_zero())
                .unwrap_or(settings.gateway.connect_timeout),
            http2: service.protocol.is_http2(),
            balancing: Balancing::of(self.balancer()),
            keepalive: settings.gateway.keepalive,
            tls: Origination::of(&self.now.link),
            proxy_protocol,
            fetch_timeout: settings.proxy.fetch_timeout,
        };
        external::cluster(memo, &cluster)
    }

    fn routes(
        &self,
        memo: &Memo,
        target: &Target<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Arc<EncodedResource>, GenerateError> {
        let mesh = (*self.proxy.mesh).as_ref();
        let timeout = self.resolver().map(|resolver| resolver.request_timeout);
        let is_destination = matches!(target.at, At::Address(..));
        let routes = ExternalRoutes {
            cluster: &target.name,
            balancer: self.balancer(),
            timeout: timeout.filter(|timeout| !timeout.is_zero()),
            // As in Consul, requests to destinations keep the host that they name.
            rewrites_host: !is_destination && !self.now.link.disable_auto_host_rewrite,
            validates_clusters: mesh.is_some_and(|mesh| mesh.validate_clusters),
            forward_caller: forward(self.proxy, self.now),
        };
        route::external(memo, access(self.proxy, self.now), &routes, warnings)
    }
}

/// What becomes of the identities of a service's callers.
fn forward(proxy: &Proxy, one: &Represented) -> ForwardCaller {
    let mesh = (*proxy.mesh).as_ref();
    match inbound::forwards_callers(mesh) {
        true => ForwardCaller::ToService,
        false => ForwardCaller::of(mesh, one.service.protocol, &one.service.peers),
    }
}

/// Who may call a service.
fn access<'a>(proxy: &'a Proxy, one: &'a Represented) -> rbac::Access<'a> {
    rbac::Access {
        intentions: &one.service.intentions,
        providers: &one.service.jwt_providers,
        default: proxy.default_intention,
        trust_domain: &proxy.trust_domain,
        peers: &one.service.peers,
    }
}

fn has_same_addresses(last: &ExternalAddresses, now: &ExternalAddresses) -> bool {
    match (last, now) {
        (
            ExternalAddresses::Instances { resolver: last, .. },
            ExternalAddresses::Instances { resolver: now, .. },
        ) => Arc::ptr_eq(last, now),
        (ExternalAddresses::Destination(last), ExternalAddresses::Destination(now)) => {
            Arc::ptr_eq(last, now)
        }
        _ => false,
    }
}

/// Adds the roots, and the listeners.
fn own_side(
    composer: &mut Composer<'_>,
    (now, last): (View<'_>, Option<View<'_>>),
    same: SameProxy,
    settings: &Read<'_>,
    services: &[Composed<'_, '_>],
) {
    let (memo, proxy) = (composer.memo, now.proxy);
    let mut unit = composer.unit(OWN, Some(0));
    unit.part(
        Type::Secret,
        || ROOTS.to_owned(),
        same.roots,
        |_| made(secret::roots(memo, &proxy.roots)),
    );
    let mut about_addresses = Vec::new();
    let addresses = bind::addresses(&proxy.instance, &mut about_addresses);
    let same_services = last.is_some_and(|last| {
        last.own.services.len() == services.len()
            && Arc::ptr_eq(&last.own.withheld, &now.own.withheld)
            && services.iter().all(Composed::has_same_chains)
    });
    let chains = LazyCell::new(|| {
        let mut warnings = std::mem::take(&mut about_addresses);
        warnings.extend_from_slice(&settings.warnings);
        warnings.extend(now.own.withheld.iter().map(withheld));
        let chains = chains(proxy, settings, services, &mut warnings)?;
        Ok::<_, GenerateError>((chains, warnings))
    });
    let unchanged = same.all() && same_services;
    for (at, address) in addresses.iter().enumerate() {
        let name = || format!("{}:{}:{}", address.name, address.host, address.port);
        unit.part(Type::Listener, name, unchanged, |warnings| {
            let (chains, about_chains) = (*chains).as_ref().map_err(Clone::clone)?;
            // Those of one listener are enough.
            if at == 0 {
                warnings.clone_from(about_chains);
            }
            let bind = Bind::socket(&address.name, &address.host, address.port)?;
            let listener = TerminatingListener {
                address: &address.name,
                bind: &bind,
                chains,
                telemetry: &settings.proxy.telemetry,
            };
            let resource = terminating::listener(memo, &listener)?;
            let bind = Some(Box::new(bind));
            Ok(Some(Made { resource, bind }))
        });
        unit.outdated(!same_services);
    }
    composer.add(OWN, unit);
}

fn withheld(service: &ServiceName) -> String {
    format!(
        "the gateway does not represent {service}: its token has no service:write on it, which the \
         service's certificate requires"
    )
}

/// The filter chains of all services, in order of their server names. A service is left out if
/// something is missing that its chain needs: its connections are closed.
fn chains<'a>(
    proxy: &'a Proxy,
    settings: &'a Settings,
    services: &'a [Composed<'_, '_>],
    warnings: &mut Vec<String>,
) -> Result<Vec<ServiceChain<'a>>, GenerateError> {
    let mesh = (*proxy.mesh).as_ref();
    let tls = TlsSettings::incoming(mesh)?;
    let normalization = Normalization::read(mesh)?;
    let mut chains = Vec::new();
    for one in services {
        let service = &one.change.now.service;
        let rules = access(proxy, one.change.now);
        let fetch_timeout = settings.proxy.fetch_timeout;
        let access = Access::of(rules, service.protocol, fetch_timeout, warnings);
        let access = access.map_err(|error| error.to_string());
        for target in &one.targets {
            let lacking = one.lacking(&target.name).map(ToString::to_string);
            let reason = lacking.as_ref().or(access.as_ref().err());
            let (None, Ok(access)) = (reason, access.clone()) else {
                warnings.extend(reason.map(|reason| closed(&target.name, reason)));
                continue;
            };
            let balancer = one.change.balancer();
            chains.push(ServiceChain {
                server_names: server_names(proxy, service, &target.name),
                inbound: Inbound {
                    stats: names::service_filter(proxy, &service.name).stats().into(),
                    protocol: service.protocol,
                    access,
                    cluster: Cow::Borrowed(&target.name),
                    dialing: Dialing {
                        attempts: retry::ATTEMPTS,
                        hash_source_ip: balancer.is_some_and(balancing::hashes_source_ip),
                    },
                    routes: Cow::Borrowed(&target.name),
                    leaf: names::leaf_of(proxy, &service.name).into(),
                    roots: roots(service).into(),
                    tls: tls.clone(),
                    alpn: &[],
                    forward_caller: forward(proxy, one.change.now),
                    normalization,
                    telemetry: &settings.proxy.telemetry,
                },
            });
        }
    }
    chains.sort_by(|a, b| a.server_names.cmp(&b.server_names));
    Ok(chains)
}

/// The secret with the certificates that callers of a service are verified against.
fn roots(service: &External) -> String {
    match service.peers.connecting.is_empty() {
        true => ROOTS.to_owned(),
        false => names::roots_of(&service.peers.connecting, true),
    }
}

/// The server names by which a target of a service is called, that of the target first. Peers call the service as a
/// whole.
fn server_names(proxy: &Proxy, service: &External, target: &str) -> Vec<String> {
    let mut all = vec![target.to_owned()];
    if names::subset(proxy, &service.name, "") == target {
        let peers = service.peers.connecting.keys();
        all.extend(peers.map(|peer| sni::exported(&service.name, peer, &proxy.trust_domain)));
    }
    all
}

fn closed(server_name: &str, reason: &str) -> String {
    format!("connections to {server_name} are closed: {reason}")
}

impl Composed<'_, '_> {
    fn has_same_chains(&self) -> bool {
        self.change.has_same_chains()
            && !self.unit.has_trouble(Type::Cluster)
            && !self.unit.has_trouble(Type::Routes)
            && !self.unit.has_trouble(Type::Secret)
    }

    /// Why a resource is missing to which the chain of a server name refers.
    fn lacking(&self, server_name: &str) -> Option<&GenerateError> {
        let unit = &self.unit;
        let named = [Type::Cluster, Type::Routes].into_iter();
        let named = named.filter(|kind| unit.lacks(*kind, server_name));
        let kinds = named.chain([Type::Secret]);
        kinds.into_iter().find_map(|kind| unit.lacking(kind))
    }
}

/// Adds the roots of the mesh and of peers, each set once for all services.
fn roots_of_peers(
    composer: &mut Composer<'_>,
    (now, last): (View<'_>, Option<View<'_>>),
    same: SameProxy,
) {
    let sets = sets_of_peers(now.own);
    if sets.is_empty() {
        return;
    }
    let (memo, proxy) = (composer.memo, now.proxy);
    let mut unit = composer.unit(PEERS, Some(0));
    let is_same = last.is_some_and(|last| sets_of_peers(last.own) == sets);
    for (name, peers) in sets {
        let unchanged = is_same && same.roots && same.mesh_name;
        let own = Some((&proxy.trust_domain, &*proxy.roots));
        unit.part(
            Type::Secret,
            || name.clone(),
            unchanged,
            |_| made(secret::domains(memo, &name, own, peers)),
        );
    }
    composer.add(PEERS, unit);
}

/// The sets of peers that connect to services, by the name of their secret.
fn sets_of_peers(own: &TerminatingGateway) -> BTreeMap<String, &Peers> {
    let services = own.services.iter().map(|one| &one.service);
    let services = services.filter(|service| !service.peers.connecting.is_empty());
    services
        .map(|service| (roots(service), &service.peers.connecting))
        .collect()
}

/// Adds the secrets of files, each once for all services.
fn secrets_of_files(composer: &mut Composer<'_>, now: View<'_>, last: Option<View<'_>>) {
    let memo = composer.memo;
    let mut unit = composer.unit(FILES, Some(0));
    let files = files(now.own);
    let unchanged = last.is_some_and(|last| self::files(last.own) == files);
    for one in files {
        unit.part(
            Type::Secret,
            || one.secret(),
            unchanged,
            |_| made(one.resource(memo)),
        );
    }
    composer.add(FILES, unit);
}

fn files(own: &TerminatingGateway) -> BTreeSet<Files<'_>> {
    origination::files(own.services.iter().map(|one| &*one.link))
}

/// Adds the key servers of all services, each once.
fn key_servers(composer: &mut Composer<'_>, now: View<'_>, last: Option<View<'_>>) {
    let mut unit = composer.unit(KEY_SERVERS, Some(0));
    let providers = providers(now.own);
    let unchanged = last.is_some_and(|last| self::providers(last.own) == providers);
    jwt::keys::add_servers(&mut unit, composer.memo, providers.into_values(), unchanged);
    composer.add(KEY_SERVERS, unit);
}

/// The providers that intentions for requests name.
fn providers(own: &TerminatingGateway) -> BTreeMap<&str, &JwtProvider> {
    let services = own.services.iter().map(|one| &one.service);
    let services = services.filter(|service| service.protocol.is_http());
    let providers = services.flat_map(|service| service.jwt_providers.values());
    providers.map(|one| (one.name.as_str(), one)).collect()
}
