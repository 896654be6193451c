//! The ingress gateway: for each port a listener at each of the gateway's addresses, with the routes
//! to the services behind it.
//!
//! The unit of a port has its routes, those of services with certificates of their own, and its
//! listeners.

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use legate_proxycfg::{ExposedPort, ExposedService, IngressGateway, Proxy, UpstreamSnapshot};

use super::change::{SameProxy, same_chain};
use super::peers;
use super::services;
use crate::composer::Composer;
use crate::error::GenerateError;
use crate::gateway::http::OfAllRoutes;
use crate::gateway::listener::{Chain, GatewayListener, HTTP3, LeadsTo, Requests};
use crate::gateway::tls::{Certificate, ServerTls};
use crate::gateway::{bind, certificates, http, listener};
use crate::listener::Bind;
use crate::memo::Memo;
use crate::names::{self, LEAF};
use crate::part::{Made, UnitBuilder, made};
use crate::resource_type::Type;
use crate::section::Section;
use crate::settings::{ProxySettings, Settings};
use crate::tls::TlsSettings;
use crate::upstream::{self, UpstreamPlan};

/// The prefix of the statistics of a port.
const STATS: &str = "ingress_upstream_";

/// The ports, one unit each.
const PORTS: Section = Section("ports");

pub(super) fn compose(
    composer: &mut Composer<'_>,
    proxy: &Proxy,
    own: &IngressGateway,
    last: Option<(&Proxy, &IngressGateway)>,
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
    let before = last.map(|last| &*last.upstreams);
    peers::add_roots(composer, &own.upstreams, before.into_iter().flatten());
    let services = services::units(composer, proxy, &own.upstreams, before, same, &settings);
    let mut ports = Vec::with_capacity(own.exposed.listeners.len());
    for port in &own.exposed.listeners {
        let port = Port {
            proxy,
            own,
            port,
            services: &services,
        };
        ports.push(port.unit(composer, last, same, (&settings, || &hosts.0)));
    }
    for unit in ports {
        composer.add(PORTS, unit);
    }
    for unit in services {
        composer.add(services::SECTION, unit);
    }
}

/// The ports of the listeners.
fn ports_of(own: &IngressGateway) -> BTreeSet<u16> {
    own.exposed.listeners.iter().map(|one| one.port).collect()
}

type MadeChains = (Result<Vec<Chain>, GenerateError>, Vec<String>);

/// The filter chains of a port with warnings, made on first use.
type Chains<'a> = LazyCell<MadeChains, Box<dyn FnOnce() -> MadeChains + 'a>>;

/// One port of the gateway.
struct Port<'a, 'b> {
    proxy: &'a Proxy,
    own: &'a IngressGateway,
    port: &'a ExposedPort,
    /// The units of the gateway's services.
    services: &'a [UnitBuilder<'b>],
}

impl<'a> Port<'a, '_> {
    /// The unit of the port. `last` is the gateway in the last snapshot, and `hosts` its addresses.
    fn unit<'c, 'h>(
        &self,
        composer: &Composer<'c>,
        last: Option<&IngressGateway>,
        same: SameProxy,
        (settings, hosts): (&Settings<'_>, impl FnOnce() -> &'h Vec<String>),
    ) -> UnitBuilder<'c> {
        let place = last.and_then(|last| {
            let mut ports = last.exposed.listeners.iter();
            ports.position(|last| last.port == self.port.port)
        });
        let earlier = last.zip(place);
        let mut unit = composer.unit(PORTS, place);
        let same_port = earlier.is_some_and(|(last, at)| {
            Arc::ptr_eq(&last.exposed, &self.own.exposed)
                || last.exposed.listeners[at] == *self.port
        });
        let same_tls = earlier.is_some_and(|(last, at)| {
            let before = &last.exposed.listeners[at];
            before.tls == self.port.tls && before.certificates().eq(self.port.certificates())
        });
        let lead_alike = same_port && earlier.is_some_and(|(last, _)| self.lead_alike(last));
        if same_port
            && lead_alike
            && same.mesh
            && same.instance
            && unit.is_sound()
            && unit.take_over()
        {
            return unit;
        }
        let memo = composer.memo;
        let chains: Chains<'_> = LazyCell::new(Box::new(|| {
            let mut warnings = Vec::new();
            (self.chains(memo, &mut warnings), warnings)
        }));
        if self.port.protocol.is_http() {
            let http3 = LazyCell::new(|| {
                let chains = || chains.0.as_deref().unwrap_or_default();
                settings.0.edge.http3(self.port.port, chains)
            });
            let unchanged = lead_alike && same.mesh && same.instance;
            self.add_routes(&mut unit, memo, unchanged, &|| *http3);
        }
        // Routes are separate, so that a listener for requests does not change with them.
        let unchanged = match self.port.protocol.is_http() {
            true => same_port && same.instance,
            false => lead_alike && same.instance,
        };
        let listeners = (settings, hosts().as_slice(), &chains);
        self.add_listeners(&mut unit, memo, (unchanged, same_tls), listeners);
        unit
    }

    /// Whether the port is unchanged and its services have the same chains as in the last snapshot.
    fn lead_alike(&self, last: &IngressGateway) -> bool {
        let is_same = |service: &ExposedService| {
            let at = service.upstream;
            last.upstreams
                .get(at)
                .is_some_and(|last| same_chain(last, &self.own.upstreams[at]))
                && !self.services[at].has_trouble(Type::Cluster)
        };
        self.port.services.iter().all(is_same)
    }

    fn upstream(&self, service: &ExposedService) -> &'a UpstreamSnapshot {
        &self.own.upstreams[service.upstream]
    }

    fn id(&self, service: &ExposedService) -> String {
        self.upstream(service).upstream.id().to_string()
    }

    /// Adds the routes to the services with the certificate of the port, and those of each service
    /// with its own. `http3`: the port, if it accepts HTTP/3.
    fn add_routes(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        unchanged: bool,
        http3: &dyn Fn() -> Option<u16>,
    ) {
        let validate = (*self.proxy.mesh).as_ref();
        let validate = validate.is_some_and(|mesh| mesh.validate_clusters);
        let domains = LazyCell::new(|| self.domains());
        let host = |at: usize| {
            let service = &self.port.services[at];
            let chain = self.upstream(service).resolved.chain.as_ref().ok();
            let is_lacking = self.services[service.upstream]
                .lacking(Type::Cluster)
                .is_some();
            http::host(
                &self.id(service),
                domains.0[at].clone(),
                chain.filter(|_| !is_lacking).map(Arc::as_ref),
                (
                    service.request_headers.as_ref(),
                    service.response_headers.as_ref(),
                ),
            )
        };
        let places = || 0..self.port.services.len();
        let general = places().filter(|at| self.port.services[*at].sds.is_none());
        let of_all = || OfAllRoutes {
            validate_clusters: validate,
            any_port: false,
            http3: http3(),
        };
        let name = || self.routes();
        unit.part(Type::Routes, name, unchanged, |warnings| {
            warnings.clone_from(&domains.1);
            let hosts: Vec<_> = general.map(host).filter(has_domain).collect();
            match hosts.is_empty() {
                true => Ok(None),
                false => made(http::routes(memo, &self.routes(), hosts, of_all())),
            }
        });
        for at in places() {
            let service = &self.port.services[at];
            if service.sds.is_none() {
                continue;
            }
            let name = || self.own_routes(service);
            unit.part(Type::Routes, name, unchanged, |_| {
                let hosts = [host(at)].into_iter().filter(has_domain).collect();
                made(http::routes(
                    memo,
                    &self.own_routes(service),
                    hosts,
                    of_all(),
                ))
            });
        }
    }

    /// The domains of each service, and warnings.
    fn domains(&self) -> (Vec<Vec<String>>, Vec<String>) {
        let names = self.port.services.iter().map(|service| {
            let tenancy = &service.service.tenancy;
            match (service.hosts.is_empty(), tenancy.is_default_namespace()) {
                (false, _) => service.hosts.clone(),
                (true, true) => vec![format!("{}.ingress.*", service.service.name)],
                (true, false) => vec![format!(
                    "{}.ingress.{}.*",
                    service.service.name, tenancy.namespace
                )],
            }
        });
        let mut warnings = Vec::new();
        let names: Vec<_> = names.collect();
        (
            http::domains(&names, Some(self.port.port), &mut warnings),
            warnings,
        )
    }

    /// The name of the port's routes.
    fn routes(&self) -> String {
        self.port.port.to_string()
    }

    /// The name of the routes of a service with its own certificate.
    fn own_routes(&self, service: &ExposedService) -> String {
        let name = names::seen_from(&self.proxy.id.tenancy, &service.service);
        format!("{}_{name}", self.port.port)
    }

    fn add_listeners(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        (unchanged, same_tls): (bool, bool),
        (settings, hosts, chains): (&Settings<'_>, &[String], &Chains<'_>),
    ) {
        for (at, host) in hosts.iter().enumerate() {
            let name = || format!("{}:{host}", self.listener());
            unit.part(Type::Listener, name, unchanged, |warnings| {
                if at == 0 {
                    warnings.clone_from(&chains.1);
                }
                let chains = chains.0.as_ref().map_err(Clone::clone)?;
                if chains.is_empty() {
                    return Ok(None);
                }
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
            let name = || format!("{HTTP3}:{host}");
            unit.part(Type::Listener, name, unchanged, |warnings| {
                let chains = chains.0.as_ref().map_err(Clone::clone)?;
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
        match self.port.services.first() {
            Some(service) if !self.port.protocol.is_http() => self.id(service),
            _ => self.port.protocol.to_string(),
        }
    }

    /// The filter chains of the listeners; none if there is no service.
    fn chains(&self, memo: &Memo, warnings: &mut Vec<String>) -> Result<Vec<Chain>, GenerateError> {
        let Some(first) = self.port.services.first() else {
            return Ok(Vec::new());
        };
        if !self.port.protocol.is_http() {
            return Ok(vec![self.connections(memo, first)?]);
        }
        let mut chains = Vec::new();
        let mut taken = HashSet::new();
        let mut others = false;
        for service in &self.port.services {
            match &service.sds {
                None => others = true,
                Some(_) => chains.extend(self.with_certificate(service, &mut taken, warnings)?),
            }
        }
        if others {
            let tls = self.tls()?;
            chains.push(self.requests(self.routes(), Vec::new(), tls));
        }
        Ok(chains)
    }

    /// The filter chain for the requests of connections with these server names.
    fn requests(&self, routes: String, server_names: Vec<String>, tls: Option<ServerTls>) -> Chain {
        Chain {
            server_names,
            tls,
            is_passed_through: false,
            stats: format!("{STATS}{routes}"),
            leads_to: LeadsTo::Routes {
                name: routes,
                protocol: self.port.protocol,
                requests: Requests::default(),
            },
        }
    }

    /// The filter chain of a service with its own certificate; `None` if other services have all
    /// its hosts.
    fn with_certificate(
        &self,
        service: &ExposedService,
        taken: &mut HashSet<String>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Chain>, GenerateError> {
        let port = self.port.port;
        let mut server_names = Vec::new();
        for host in &service.hosts {
            // A server name has no port.
            let name = host.split_once(':').map_or(host.as_str(), |(name, _)| name);
            if name == "*" {
                return Err(GenerateError::CertificateForEveryHost {
                    port,
                    service: service.service.to_string(),
                });
            }
            if taken.insert(name.to_lowercase()) {
                server_names.push(name.to_owned());
            }
        }
        if server_names.is_empty() {
            warnings.push(format!(
                "service {} on port {port} gets no connections: other services have all its hosts",
                service.service
            ));
            return Ok(None);
        }
        let sources = [service.sds.as_ref(), self.port.tls.sds.as_ref()];
        let certificate = Certificate::fetched(sources);
        let certificate = certificate.ok_or(GenerateError::IncompleteSds(port))?;
        let tls = self.with(certificate)?;
        Ok(Some(self.requests(
            self.own_routes(service),
            server_names,
            Some(tls),
        )))
    }

    /// The filter chain to the service of a port for connections.
    fn connections(&self, memo: &Memo, service: &ExposedService) -> Result<Chain, GenerateError> {
        let upstream = self.upstream(service);
        let plan = UpstreamPlan::new(self.proxy, upstream);
        plan.chain()?;
        // Envoy would close the connections to a cluster that it does not have.
        if let Some(reason) = self.services[service.upstream].lacking(Type::Cluster) {
            return Err(reason.clone());
        }
        let cluster = upstream::only_cluster(memo, upstream);
        let cluster = cluster.ok_or_else(|| GenerateError::RoutedRequests {
            port: self.port.port,
            service: service.service.to_string(),
        })?;
        let filter = names::upstream_filter(self.proxy, &upstream.upstream);
        Ok(Chain {
            server_names: Vec::new(),
            tls: self.tls()?,
            is_passed_through: false,
            stats: filter.stats(),
            leads_to: LeadsTo::Cluster {
                name: cluster,
                hash_source_ip: plan.hashes_source_ip(),
            },
        })
    }

    /// TLS of the port, if it has any.
    fn tls(&self) -> Result<Option<ServerTls>, GenerateError> {
        let tls = &self.port.tls;
        let certificate = match (&tls.sds, tls.enabled) {
            (Some(sds), _) => Certificate::fetched([Some(sds)])
                .ok_or(GenerateError::IncompleteSds(self.port.port))?,
            (None, true) => Certificate::Own(LEAF.to_owned()),
            (None, false) => return Ok(None),
        };
        self.with(certificate).map(Some)
    }

    fn with(&self, certificate: Certificate) -> Result<ServerTls, GenerateError> {
        let tls = &self.port.tls;
        let versions = (&*tls.tls_min_version, &*tls.tls_max_version);
        let settings = TlsSettings::read(versions, &tls.cipher_suites, |field| {
            let port = self.port.port;
            format!("TLS.{field} for port {port} of the ingress-gateway config entry")
        })?;
        Ok(ServerTls {
            settings,
            certificates: vec![certificate],
            protocol: self.port.protocol,
            clients: None,
        })
    }
}

fn has_domain(host: &envoy_types::pb::envoy::config::route::v3::VirtualHost) -> bool {
    !host.domains.is_empty()
}
