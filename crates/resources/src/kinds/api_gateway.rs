//! The API gateway: for each port a listener at each of the gateway's addresses, with the routes to
//! the services behind it.
//!
//! The unit of a port has its routes and its listeners. What a port needs and does not get closes
//! it: a listener without its certificate or without the keys of its tokens is not made.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use legate_discovery_chain::Chain as DiscoveryChain;
use legate_model::{JwtRequirement, Protocol, ServiceName, WILDCARD};
use legate_proxycfg::{ApiGateway, JwtProviders, Proxy, UpstreamSnapshot};
use legate_routes::{
    Action, Backend, Certificate as Presented, Content, HostPorts, Listener, Rule, Target, Tls,
    WeightedBackend,
};

use super::backends;
use super::change::{SameProxy, counterpart, same_chain};
use super::datagrams;
use super::peers;
use super::services;
use crate::composer::Composer;
use crate::error::GenerateError;
use crate::gateway::http::OfAllRoutes;
use crate::gateway::listener::{Chain, GatewayListener, HTTP3, LeadsTo, Requests};
use crate::gateway::rules::{NO_CLUSTER, Referred, has_cors, rules, virtual_hosts};
use crate::gateway::tls::{Certificate, ServerTls};
use crate::gateway::{bind, certificates, changes, http, listener};
use crate::jwt;
use crate::listener::Bind;
use crate::listener::normalization::Normalization;
use crate::memo::Memo;
use crate::names::{self, HTTP_CORS, HTTP_RBAC, JWT_AUTHN, LEAF};
use crate::part::{Made, UnitBuilder, made};
use crate::rbac;
use crate::resource_type::Type;
use crate::secret;
use crate::section::Section;
use crate::settings::{ProxySettings, Settings};
use crate::tls::TlsSettings;
use crate::upstream::{self, UpstreamPlan};

/// The prefix of the statistics of a port, as in Consul.
const STATS: &str = "ingress_upstream_";

/// The certificates that listeners present, one unit.
const PRESENTED: Section = Section("presented certificates");

/// The servers with keys of JWT providers, one unit.
const KEY_SERVERS: Section = Section("key servers");

/// What is said of a gateway of a cluster, one unit.
const OF_CLUSTER: Section = Section("of a cluster");

/// The ports, one unit each.
const PORTS: Section = Section("ports");

pub(super) fn compose(
    composer: &mut Composer<'_>,
    proxy: &Proxy,
    own: &ApiGateway,
    last: Option<(&Proxy, &ApiGateway)>,
) {
    let same = last.map_or_else(SameProxy::default, |(last, _)| {
        SameProxy::between(last, proxy)
    });
    let hosts = LazyCell::new(|| {
        let mut warnings = Vec::new();
        (bind::hosts(&proxy.instance, &mut warnings), warnings)
    });
    let settings: Settings<'_> = LazyCell::new(Box::new(|| {
        let mut warnings = hosts.1.clone();
        let settings = ProxySettings::read(&proxy.instance, &mut warnings);
        (settings, warnings)
    }));
    let last = last.map(|(_, last)| last);
    let same_leaf = last.is_some_and(|last| Arc::ptr_eq(&last.leaf, &own.leaf));
    let known = [same_leaf, same.roots, same.instance];
    let ports = (&ports_of(own), last.map(ports_of));
    let certificates = certificates::unit(composer, proxy, &own.leaf, &settings, known, ports);
    composer.add(certificates::SECTION, certificates);
    let presented = presented(composer, own, last);
    let same_providers =
        last.is_some_and(|last| Arc::ptr_eq(&last.jwt_providers, &own.jwt_providers));
    let key_servers = key_servers(composer, own, same_providers);
    let before = last.map(|last| &*last.upstreams);
    peers::add_roots(composer, &own.upstreams, before.into_iter().flatten());
    let services = services::units(composer, proxy, &own.upstreams, before, same, &settings);
    let secrets = secrets(own);
    let same_secrets = last.is_some_and(|last| self::secrets(last) == secrets);
    let before = last.map(|last| &*last.backends);
    let pair = (&*own.backends, before);
    let backends = backends::units(composer, proxy, pair, same, (&secrets, same_secrets));
    let mut ports = Vec::with_capacity(own.served.listeners.len());
    {
        let names = own.upstreams.iter().enumerate();
        let names = names.map(|(at, one)| (names::service(proxy, &one.upstream), at));
        let clusters = LazyCell::new(|| backends::clusters(proxy, &own.backends, &backends));
        let cluster = |backend: &Backend| clusters.get(backend).cloned();
        let gateway = Gateway {
            proxy,
            own,
            presented: &presented,
            key_servers: &key_servers,
            services: &services,
            by_name: names.collect(),
            cluster: &cluster,
            same_clusters: same.mesh_name
                && before
                    .is_some_and(|last| backends::have_same_clusters(proxy, last, &own.backends))
                && !backends.iter().any(|unit| unit.has_trouble(Type::Cluster)),
            secrets: &secrets,
            same_secrets,
        };
        for port in &own.served.listeners {
            let port = Port {
                gateway: &gateway,
                port,
            };
            let same = (same, same_providers);
            ports.push(port.unit(composer, last, same, (&settings, || &hosts.0)));
        }
    }
    composer.add(PRESENTED, presented);
    composer.add(KEY_SERVERS, key_servers);
    for unit in ports {
        composer.add(PORTS, unit);
    }
    for unit in services {
        composer.add(services::SECTION, unit);
    }
    for unit in backends {
        composer.add(backends::SECTION, unit);
    }
    if !own.served.datagrams.is_empty() {
        let units = datagrams::units(composer, own, last, same.instance, &hosts.0);
        for unit in units {
            composer.add(datagrams::SECTION, unit);
        }
    }
    if own.hides_entry {
        composer.add(OF_CLUSTER, of_cluster(composer, proxy, last));
    }
}

/// The unit of the warning that an entry is not served.
fn of_cluster<'a>(
    composer: &Composer<'a>,
    proxy: &Proxy,
    last: Option<&ApiGateway>,
) -> UnitBuilder<'a> {
    let mut unit = composer.unit(OF_CLUSTER, Some(0));
    let unchanged = last.is_some_and(|last| last.hides_entry);
    unit.part(Type::Listener, || "entry".to_owned(), unchanged, |warnings| {
        warnings.push(format!(
            "the api-gateway config entry {:?} is not served: the operator of a Kubernetes cluster says \
             what this gateway serves; remove one of them",
            proxy.instance.service
        ));
        Ok(None)
    });
    unit
}

/// The secrets that a gateway has.
fn secrets(own: &ApiGateway) -> BTreeSet<&str> {
    let all = own.served.certificates.iter();
    let found = all.filter_map(|one| Some((**one).as_ref()?.secret.as_str()));
    found.collect()
}

/// The ports of the listeners.
fn ports_of(own: &ApiGateway) -> BTreeSet<u16> {
    own.served.listeners.iter().map(|one| one.port).collect()
}

/// The unit of the certificates that listeners present, a secret each.
fn presented<'a>(
    composer: &Composer<'a>,
    own: &ApiGateway,
    last: Option<&ApiGateway>,
) -> UnitBuilder<'a> {
    let mut unit = composer.unit(PRESENTED, Some(0));
    // Parts have no gaps: one that is missing has none.
    let present = |own: &'_ ApiGateway| {
        let all = own.served.certificates.iter();
        all.filter(|one| one.is_some()).cloned().collect::<Vec<_>>()
    };
    let before = last.map(present).unwrap_or_default();
    for (at, certificate) in present(own).iter().enumerate() {
        let before = before.get(at);
        let unchanged = before.is_some_and(|before| Arc::ptr_eq(before, certificate));
        let Some(found) = &**certificate else {
            continue;
        };
        let name = || found.secret.clone();
        unit.part(Type::Secret, name, unchanged, |_| {
            made(secret::presented(composer.memo, found))
        });
    }
    unit
}

/// The unit of the servers with keys of JWT providers, a cluster each.
fn key_servers<'a>(composer: &Composer<'a>, own: &ApiGateway, unchanged: bool) -> UnitBuilder<'a> {
    let mut unit = composer.unit(KEY_SERVERS, Some(0));
    let providers = own.jwt_providers.values();
    jwt::keys::add_servers(&mut unit, composer.memo, providers, unchanged);
    unit
}

type MadeChains = Result<Vec<Chain>, GenerateError>;

/// The filter chains of a port, made on first use.
type Chains<'a> = LazyCell<MadeChains, Box<dyn FnOnce() -> MadeChains + 'a>>;

/// What the ports of a gateway share.
struct Gateway<'a, 'b> {
    proxy: &'a Proxy,
    own: &'a ApiGateway,
    /// The units that ports refer to.
    presented: &'a UnitBuilder<'b>,
    key_servers: &'a UnitBuilder<'b>,
    services: &'a [UnitBuilder<'b>],
    /// The index of each service.
    by_name: HashMap<ServiceName, usize>,
    /// The name of the cluster of a backend; `None` if it has none.
    cluster: &'a dyn Fn(&Backend) -> Option<String>,
    /// Whether they are those of the last snapshot.
    same_clusters: bool,
    /// The names of the secrets that there are.
    secrets: &'a BTreeSet<&'a str>,
    /// Whether they are those of the last snapshot.
    same_secrets: bool,
}

impl<'a> Gateway<'a, '_> {
    fn upstream(&self, service: &ServiceName) -> Option<(usize, &'a UpstreamSnapshot)> {
        let at = *self.by_name.get(service)?;
        Some((at, &self.own.upstreams[at]))
    }

    /// The chain of a service; `None` if it has none, or no clusters for it.
    fn chain(&self, service: &ServiceName) -> Option<&'a DiscoveryChain> {
        let (at, upstream) = self.upstream(service)?;
        match self.services[at].lacking(Type::Cluster) {
            None => upstream.resolved.chain.as_deref().ok(),
            Some(_) => None,
        }
    }
}

/// One port of the gateway.
struct Port<'a, 'b> {
    gateway: &'a Gateway<'a, 'b>,
    port: &'a Arc<Listener>,
}

impl<'a> Port<'a, '_> {
    /// The unit of the port. `last` is the gateway in the last snapshot, and `hosts` its addresses.
    fn unit<'c, 'h>(
        &self,
        composer: &Composer<'c>,
        last: Option<&ApiGateway>,
        (same, same_providers): (SameProxy, bool),
        (settings, hosts): (&Settings<'_>, impl FnOnce() -> &'h Vec<String>),
    ) -> UnitBuilder<'c> {
        let place = last.and_then(|last| {
            let mut ports = last.served.listeners.iter();
            ports.position(|last| last.port == self.port.port)
        });
        let mut unit = composer.unit(PORTS, place);
        let earlier = last.zip(place);
        let earlier = earlier.map(|(last, at)| &last.served.listeners[at]);
        let same_port = earlier.is_some_and(|last| Arc::ptr_eq(last, self.port));
        let same_tls = earlier.is_some_and(|last| last.chains == self.port.chains);
        let units = [self.gateway.presented, self.gateway.key_servers];
        let sound = units
            .iter()
            .all(|unit| !unit.has_trouble(Type::Secret) && !unit.has_trouble(Type::Cluster));
        let unchanged = same_port
            && sound
            && same.mesh
            && same.instance
            && same_providers
            && self.gateway.same_secrets
            && self.gateway.same_clusters
            && last.is_some_and(|last| self.lead_alike(last));
        if unchanged && unit.is_sound() && unit.take_over() {
            return unit;
        }
        let memo = composer.memo;
        let chains: Chains<'_> = LazyCell::new(Box::new(|| self.chains(memo)));
        for (at, content) in self.port.contents.iter().enumerate() {
            if let Content::Http(hosts) = content {
                let http3 = || {
                    let chains = || chains.as_deref().unwrap_or_default();
                    settings.0.edge.http3(self.port.port, chains)
                };
                self.add_routes(&mut unit, memo, (at, hosts, http3), unchanged);
            }
        }
        // Routes are separate: without tokens, a listener for requests does not change with them.
        let are_requests = earlier.is_some_and(|last| have_same_listener(last, self.port));
        let same_secrets = sound && self.gateway.same_secrets;
        let same_requests =
            are_requests && same_providers && self.gateway.own.jwt_providers.is_empty();
        let same_listeners =
            unchanged || (same_requests && same_tls && same_secrets && same.mesh && same.instance);
        let listeners = (settings, hosts().as_slice(), &chains);
        let same = (same_listeners, same_tls);
        self.add_listeners(&mut unit, memo, same, listeners);
        unit
    }

    /// Whether the services of the port have the same chains as in the last snapshot.
    fn lead_alike(&self, last: &ApiGateway) -> bool {
        let is_same = |service: &ServiceName| {
            let Some((at, now)) = self.gateway.upstream(service) else {
                return false;
            };
            let before = counterpart(&last.upstreams, at, now);
            before.is_some_and(|at| same_chain(&last.upstreams[at], now))
                && !self.gateway.services[at].has_trouble(Type::Cluster)
        };
        self.services().all(is_same)
    }

    fn rules(&self) -> impl Iterator<Item = &'a Rule> {
        rules(self.port)
    }

    fn services(&self) -> impl Iterator<Item = &'a ServiceName> {
        let forwarded = self.rules().flat_map(|rule| forwarded(&rule.action));
        let contents = self.port.contents.iter();
        let connections = contents.flat_map(|content| match content {
            Content::Tcp(backends) => &backends[..],
            Content::Http(_) => &[],
        });
        let backends = forwarded.chain(connections).map(|one| &one.target);
        let mirrors = self.rules().flat_map(|rule| &rule.mirrors);
        let targets = backends.chain(mirrors.map(|one| &one.target));
        targets.filter_map(|target| match target {
            Target::Service(service) => Some(service),
            Target::Backend(_) | Target::Answer(_) => None,
        })
    }

    /// The name of the routes of a content: that of the port, or of the port and the first server
    /// name that leads to it.
    fn routes(&self, content: usize) -> String {
        let port = self.port.port;
        if self.port.contents.len() == 1 {
            return port.to_string();
        }
        let mut chains = self.port.chains.iter();
        let first = chains.find(|chain| chain.content == content);
        let name = first.and_then(|chain| chain.server_names.first());
        format!("{port}/{}", name.map_or(WILDCARD, String::as_str))
    }

    fn add_routes(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        (content, hosts, http3): (
            usize,
            &[legate_routes::VirtualHost],
            impl FnOnce() -> Option<u16>,
        ),
        unchanged: bool,
    ) {
        let mesh = (*self.gateway.proxy.mesh).as_ref();
        let validate = mesh.is_some_and(|mesh| mesh.validate_clusters);
        let name = || self.routes(content);
        unit.part(Type::Routes, name, unchanged, |warnings| {
            let referred = Referred {
                chain: &|service| self.gateway.chain(service),
                cluster: self.gateway.cluster,
                jwt_providers: &self.gateway.own.jwt_providers,
                validate_clusters: validate,
            };
            let any_port = self.port.host_ports == HostPorts::Any;
            let port = (!any_port).then_some(self.port.port);
            let hosts = virtual_hosts(hosts, port, &referred, warnings);
            let of_all = OfAllRoutes {
                validate_clusters: validate,
                any_port,
                http3: http3(),
            };
            made(http::routes(memo, &self.routes(content), hosts, of_all))
        });
    }

    fn add_listeners(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        (unchanged, same_tls): (bool, bool),
        (settings, hosts, chains): (&Settings<'_>, &[String], &Chains<'_>),
    ) {
        for host in hosts {
            let name = || format!("{}:{host}:{}", self.listener(), self.port.port);
            unit.part(Type::Listener, name, unchanged, |_| {
                let chains = chains.as_ref().map_err(Clone::clone)?;
                let bind = self.bind(host)?;
                let name = self.listener();
                let input = GatewayListener::new(&name, &bind, chains, &settings.0);
                let resource = listener::listener(memo, &input)?;
                let bind = Some(Box::new(bind));
                Ok(Some(Made { resource, bind }))
            });
            // Without its new certificates a port is closed, and does not stay open without TLS.
            unit.outdated(!same_tls);
        }
        if !settings.0.edge.http3_ports.contains(&self.port.port) {
            return;
        }
        for host in hosts {
            let name = || format!("{HTTP3}:{host}:{}", self.port.port);
            unit.part(Type::Listener, name, unchanged, |warnings| {
                let chains = chains.as_ref().map_err(Clone::clone)?;
                let bind = self.bind(host)?;
                let input = GatewayListener::new(HTTP3, &bind, chains, &settings.0);
                listener::http3(memo, &input, self.port.port, warnings)
            });
            unit.outdated(!same_tls);
        }
    }

    fn bind(&self, host: &str) -> Result<Bind, GenerateError> {
        Bind::socket("an address of the gateway", host, self.port.port)
    }

    /// The name of the listeners without their address.
    fn listener(&self) -> String {
        let upstream = self.services().next();
        let upstream = upstream.and_then(|service| self.gateway.upstream(service));
        match (is_http(self.port), upstream) {
            (true, _) => Protocol::Http.to_string(),
            (false, Some((_, upstream))) => upstream.upstream.id().to_string(),
            (false, None) => Protocol::Tcp.to_string(),
        }
    }

    /// The filter chains of the listeners.
    fn chains(&self, memo: &Memo) -> Result<Vec<Chain>, GenerateError> {
        let contents = self.port.contents.iter().enumerate();
        let contents = contents.map(|(at, content)| match content {
            Content::Http(_) => self.requests(at),
            Content::Tcp(backends) => self.connections(memo, backends),
        });
        let contents: Vec<_> = contents.collect::<Result<_, _>>()?;
        let nowhere = self.connections(memo, &[])?;
        let chains = self.port.chains.iter().map(|chain| {
            let stats = chain.name.as_ref().map(|name| format!("{STATS}{name}"));
            // Nothing writes a chain without content; a stored one must harm no other port.
            let (usual, leads_to) = contents.get(chain.content).unwrap_or(&nowhere);
            let is_http = matches!(leads_to, LeadsTo::Routes { .. });
            let tls = match &chain.tls {
                Tls::None | Tls::PassedThrough => None,
                Tls::Terminated(tls) => Some(self.tls(tls, is_http)?),
            };
            Ok(Chain {
                server_names: chain.server_names.clone(),
                tls,
                is_passed_through: chain.tls == Tls::PassedThrough,
                stats: stats.unwrap_or_else(|| usual.clone()),
                leads_to: leads_to.clone(),
            })
        });
        chains.collect()
    }

    fn tls(
        &self,
        tls: &legate_routes::ServerTls,
        is_http: bool,
    ) -> Result<ServerTls, GenerateError> {
        let versions = (&*tls.min_version, &*tls.max_version);
        let settings = TlsSettings::read(versions, &tls.cipher_suites, |field| {
            let port = self.port.port;
            format!("TLS.{field} for port {port} of the api-gateway config entry")
        })?;
        let certificates = tls.certificates.iter().map(|one| match one {
            Presented::OfGateway => Ok(Certificate::Own(LEAF.to_owned())),
            Presented::Secret(name) if !self.gateway.secrets.contains(name.as_str()) => {
                Err(GenerateError::NoSecret(name.clone()))
            }
            Presented::Secret(name) => match self.gateway.presented.reason(Type::Secret, name) {
                None => Ok(Certificate::Own(name.clone())),
                Some(reason) => Err(reason.clone()),
            },
        });
        Ok(ServerTls {
            settings,
            certificates: certificates.collect::<Result<_, _>>()?,
            protocol: match is_http {
                // Clients may use either version of HTTP.
                true => Protocol::Http2,
                false => Protocol::Tcp,
            },
            clients: tls.clients.clone(),
        })
    }

    /// The prefix of the statistics, and where requests go. The filter for access rules has none:
    /// those of tokens are in the routes, and a listener does not change with them.
    fn requests(&self, content: usize) -> Result<(String, LeadsTo), GenerateError> {
        let mesh = (*self.gateway.proxy.mesh).as_ref();
        let providers = self.providers();
        for name in providers.keys() {
            let cluster = names::jwks_cluster(name);
            if let Some(reason) = self.gateway.key_servers.reason(Type::Cluster, &cluster) {
                return Err(reason.clone());
            }
        }
        let tokens = jwt::filter(&providers)?;
        let tokens = tokens.map(|filter| (JWT_AUTHN, filter));
        let access = (HTTP_RBAC, rbac::without_rules());
        // Browsers ask without a token which requests they may send.
        let cors = has_cors(self.port).then(|| (HTTP_CORS, changes::cors_filter()));
        let filters = cors.into_iter().chain(tokens).chain([access]);
        let name = self.routes(content);
        let stats = format!("{STATS}{name}");
        let leads_to = LeadsTo::Routes {
            name,
            protocol: Protocol::Http,
            requests: Requests {
                filters: filters.collect(),
                normalization: Some(Normalization::read(mesh)?),
            },
        };
        Ok((stats, leads_to))
    }

    /// The providers of the tokens that rules of the port require.
    fn providers(&self) -> JwtProviders {
        let of_backends = self.rules().flat_map(|rule| forwarded(&rule.action));
        let of_backends = of_backends.filter_map(|one| one.token.as_deref());
        let of_rules = self.rules().filter_map(|rule| rule.token.as_deref());
        let names = of_rules
            .chain(of_backends)
            .flat_map(JwtRequirement::provider_names);
        let known = &self.gateway.own.jwt_providers;
        let found = names.filter_map(|name| Some((name.to_owned(), known.get(name)?.clone())));
        found.collect::<BTreeMap<_, _>>()
    }

    /// The prefix of the statistics, and where connections go.
    fn connections(
        &self,
        memo: &Memo,
        backends: &[WeightedBackend],
    ) -> Result<(String, LeadsTo), GenerateError> {
        let stats = || format!("{STATS}{}", self.port.port);
        let is_answered = |one: &WeightedBackend| matches!(one.target, Target::Answer(_));
        if backends.iter().all(is_answered) {
            return Ok((stats(), LeadsTo::Nowhere));
        }
        if let [only] = backends {
            let (stats, (name, hash_source_ip)) = self.cluster(memo, &only.target)?;
            let leads_to = LeadsTo::Cluster {
                name,
                hash_source_ip,
            };
            return Ok((stats, leads_to));
        }
        let clusters = backends.iter().map(|one| {
            let name = match &one.target {
                // Envoy closes the connections to a cluster that it does not have.
                Target::Answer(_) => NO_CLUSTER.to_owned(),
                target => self.cluster(memo, target)?.1.0,
            };
            Ok((name, one.weight))
        });
        let clusters = clusters.collect::<Result<_, GenerateError>>()?;
        Ok((stats(), LeadsTo::Clusters(clusters)))
    }

    /// The prefix of the statistics of connections to a target, and its cluster with whether
    /// connections from one address use the same instance.
    fn cluster(
        &self,
        memo: &Memo,
        target: &Target,
    ) -> Result<(String, (String, bool)), GenerateError> {
        let port = self.port.port;
        let service = match target {
            Target::Service(service) => service,
            Target::Backend(backend) => {
                // Envoy closes the connections to a cluster that it does not have.
                let cluster = (self.gateway.cluster)(backend);
                let cluster = cluster.unwrap_or_else(|| NO_CLUSTER.to_owned());
                return Ok((format!("{STATS}{port}"), (cluster, false)));
            }
            Target::Answer(_) => return Err(GenerateError::NoService(port)),
        };
        let found = self.gateway.upstream(service);
        let (at, upstream) = found.ok_or(GenerateError::NoService(port))?;
        let plan = UpstreamPlan::new(self.gateway.proxy, upstream);
        plan.chain()?;
        // Envoy would close the connections to a cluster that it does not have.
        if let Some(reason) = self.gateway.services[at].lacking(Type::Cluster) {
            return Err(reason.clone());
        }
        let cluster = upstream::only_cluster(memo, upstream);
        let cluster = cluster.ok_or_else(|| GenerateError::RoutedRequests {
            port,
            service: service.to_string(),
        })?;
        let filter = names::upstream_filter(self.gateway.proxy, &upstream.upstream);
        Ok((filter.stats(), (cluster, plan.hashes_source_ip())))
    }
}

fn is_http(port: &Listener) -> bool {
    let mut contents = port.contents.iter();
    contents.any(|content| matches!(content, Content::Http(_)))
}

/// Whether the listeners of a port for requests are the same, whatever their rules and certificates
/// are.
fn have_same_listener(a: &Listener, b: &Listener) -> bool {
    let one = |port: &Listener| matches!(port.contents[..], [Content::Http(_)]);
    one(a) && one(b) && has_cors(a) == has_cors(b)
}

fn forwarded(action: &Action) -> &[WeightedBackend] {
    match action {
        Action::Forward(backends) => backends,
        Action::Redirect(_) | Action::Answer(_) => &[],
    }
}
