//! What an ingress gateway exposes: its listeners, with the services behind each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use legate_model::{
    ConfigEntry, ConfigKind, GatewaySds, GatewayTls, HeaderModifiers, IngressDefaults,
    IngressGateway as Entry, IngressListener, IngressService, Opaque, PassiveHealthCheck, Protocol,
    ServiceName, Tenancy, Upstream, WILDCARD,
};
use legate_store::ReadTxn;
use serde_json::{Value, json};

use super::{GatewayService, Link};
use crate::merge;

/// What an ingress gateway exposes, according to its config entry. Empty without an entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposed {
    /// In the order of the entry.
    pub listeners: Vec<ExposedPort>,
    /// The services behind all listeners, with the settings for connections to them. A service
    /// behind several listeners has those of the first.
    pub upstreams: Vec<Arc<Upstream>>,
    /// The namespaces and hosts that clients of a TLS listener may name.
    pub(crate) served: Served,
}

/// One listener.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExposedPort {
    /// The port.
    pub port: u16,
    /// The protocol of its clients.
    pub protocol: Protocol,
    /// Whether clients must use TLS, with the gateway's own certificate unless `tls.sds` has one.
    /// The settings of the listener, and those of the gateway where it has none.
    pub tls: GatewayTls,
    /// The services behind it, ordered by name; for TCP one.
    pub services: Vec<ExposedService>,
}

impl ExposedPort {
    /// The certificates of services that have their own.
    pub fn certificates(&self) -> impl Iterator<Item = &GatewaySds> {
        self.services.iter().filter_map(|one| one.sds.as_ref())
    }
}

/// A service behind a listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ExposedService {
    /// The service.
    pub service: ServiceName,
    /// Its index in [`Exposed::upstreams`].
    pub upstream: usize,
    /// Host names of its requests; empty for the default ones.
    pub hosts: Vec<String>,
    /// Its own certificate.
    pub sds: Option<GatewaySds>,
    /// Changes to request headers.
    pub request_headers: Option<HeaderModifiers>,
    /// Changes to response headers.
    pub response_headers: Option<HeaderModifiers>,
}

/// What the names in the gateway's certificate are made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// Whether a listener has TLS with that certificate.
    is_tls: bool,
    namespaces: BTreeSet<Tenancy>,
    hosts: BTreeSet<String>,
}

impl Served {
    /// The DNS names in the gateway's certificate: the default names of its services in these
    /// domains, and their hosts. Empty unless a listener uses the certificate.
    pub(crate) fn dns_names(&self, domains: &[Arc<str>], datacenter: &str) -> Arc<[String]> {
        if !self.is_tls {
            return Arc::default();
        }
        let mut names = BTreeSet::new();
        for tenancy in &self.namespaces {
            let namespace = match tenancy.is_default_namespace() {
                true => String::new(),
                false => format!("{}.", tenancy.namespace),
            };
            for domain in domains {
                names.insert(format!("*.ingress.{namespace}{domain}"));
                names.insert(format!("*.ingress.{namespace}{datacenter}.{domain}"));
            }
        }
        // No client accepts a certificate for every host, and a port is not part of a name.
        let hosts = self.hosts.iter().filter(|host| *host != WILDCARD);
        names.extend(hosts.map(|host| {
            let name = host.split_once(':').map_or(host.as_str(), |(name, _)| name);
            name.to_owned()
        }));
        names.into_iter().collect()
    }
}

/// What an ingress gateway in the current tenancy exposes.
pub(crate) fn exposed(txn: &ReadTxn<'_>, gateway: &str) -> Arc<Exposed> {
    txn.shared("exposed by an ingress gateway", gateway, |txn| {
        let entry = txn.config_entry(ConfigKind::IngressGateway, gateway);
        match entry.as_deref() {
            Some(ConfigEntry::IngressGateway(entry)) => {
                of(entry, &super::services(txn, gateway), txn.tenancy())
            }
            _ => Exposed::default(),
        }
    })
}

fn of(entry: &Entry, services: &[GatewayService], own: &Tenancy) -> Exposed {
    let mut exposed = Exposed::default();
    let mut known = HashMap::new();
    for listener in &entry.listeners {
        let mut port = ExposedPort {
            port: listener.port,
            protocol: listener.protocol().unwrap_or_default(),
            tls: effective(&entry.tls, listener.tls.as_ref()),
            services: Vec::new(),
        };
        exposed.served.is_tls |= port.tls.enabled;
        for behind in services.iter().filter(|one| is_behind(one, listener.port)) {
            let Some(settings) = settings(listener, behind, own) else {
                continue;
            };
            let upstreams = &mut exposed.upstreams;
            let at = *known.entry(behind.service.clone()).or_insert_with(|| {
                upstreams.push(Arc::new(upstream(
                    behind,
                    own,
                    entry.defaults.as_ref(),
                    settings,
                )));
                upstreams.len() - 1
            });
            let tenancy = behind.service.tenancy.clone();
            exposed.served.namespaces.insert(tenancy);
            exposed.served.hosts.extend(settings.hosts.iter().cloned());
            let sds = settings.tls.as_ref().and_then(|tls| tls.sds.clone());
            port.services.push(ExposedService {
                service: behind.service.clone(),
                upstream: at,
                hosts: settings.hosts.clone(),
                sds: sds.filter(|sds| !sds.cert_resource.is_empty()),
                request_headers: settings.request_headers.clone(),
                response_headers: settings.response_headers.clone(),
            });
        }
        exposed.listeners.push(port);
    }
    exposed
}

fn is_behind(service: &GatewayService, at: u16) -> bool {
    matches!(service.link, Link::Ingress { port, .. } if port == at)
}

/// The settings of a listener, and those of its gateway where it has none. As in Consul, a listener
/// cannot disable TLS.
fn effective(gateway: &GatewayTls, listener: Option<&GatewayTls>) -> GatewayTls {
    let Some(listener) = listener else {
        return gateway.clone();
    };
    let first = |own: &String, general: &String| match own.is_empty() {
        true => general.clone(),
        false => own.clone(),
    };
    let of = |tls: &GatewayTls| tls.sds.clone().unwrap_or_default();
    let (own, general) = (of(listener), of(gateway));
    let sds = GatewaySds {
        cluster_name: first(&own.cluster_name, &general.cluster_name),
        cert_resource: first(&own.cert_resource, &general.cert_resource),
    };
    GatewayTls {
        enabled: gateway.enabled || listener.enabled,
        sds: (sds != GatewaySds::default()).then_some(sds),
        tls_min_version: first(&listener.tls_min_version, &gateway.tls_min_version),
        tls_max_version: first(&listener.tls_max_version, &gateway.tls_max_version),
        cipher_suites: match listener.cipher_suites.is_empty() {
            true => gateway.cipher_suites.clone(),
            false => listener.cipher_suites.clone(),
        },
    }
}

/// The settings of a service in the entry: its own, or else those of `*` in its namespace.
fn settings<'a>(
    listener: &'a IngressListener,
    behind: &GatewayService,
    own: &Tenancy,
) -> Option<&'a IngressService> {
    let service = &behind.service;
    let is = |one: &&IngressService, name: &str| {
        let tenancy = own.resolve(&one.partition, &one.namespace);
        let is_there = tenancy == service.tenancy
            || one.namespace.is_every() && tenancy.partition == service.tenancy.partition;
        one.name.eq_ignore_ascii_case(name) && is_there
    };
    let find = |name: &str| listener.services.iter().find(|one| is(one, name));
    match behind.from_wildcard {
        true => find(WILDCARD),
        false => find(&service.name),
    }
}

/// A service as an upstream of the gateway.
fn upstream(
    behind: &GatewayService,
    own: &Tenancy,
    defaults: Option<&IngressDefaults>,
    settings: &IngressService,
) -> Upstream {
    let limits = [
        (
            "max_connections",
            settings.max_connections,
            defaults.map(|one| one.max_connections),
        ),
        (
            "max_pending_requests",
            settings.max_pending_requests,
            defaults.map(|one| one.max_pending_requests),
        ),
        (
            "max_concurrent_requests",
            settings.max_concurrent_requests,
            defaults.map(|one| one.max_concurrent_requests),
        ),
    ];
    let of = |(name, own, general): (&str, u32, Option<u32>)| {
        let limit = [own, general.unwrap_or_default()];
        let limit = limit.into_iter().find(|limit| *limit > 0)?;
        Some((name.to_owned(), json!(limit)))
    };
    let limits: Opaque = limits.into_iter().filter_map(of).collect();
    let check = passive_health_check(
        defaults.and_then(|one| one.passive_health_check.as_ref()),
        settings.passive_health_check.as_ref(),
    );
    let mut config = Opaque::new();
    for (name, section) in [("limits", limits), ("passive_health_check", check)] {
        if !section.is_empty() {
            config.insert(name.to_owned(), Value::Object(section));
        }
    }
    Upstream {
        config,
        ..merge::plain_upstream(&behind.service, own)
    }
}

/// The health checks of a service: its own, and the defaults where it sets nothing.
fn passive_health_check(
    defaults: Option<&PassiveHealthCheck>,
    own: Option<&PassiveHealthCheck>,
) -> Opaque {
    let mut all = BTreeMap::new();
    for check in defaults.into_iter().chain(own) {
        // As in Consul, a percentage of zero does not disable ejections here.
        let enforcing = check
            .enforcing_consecutive_5xx
            .filter(|percent| *percent > 0);
        let time = |time: std::time::Duration| {
            (!time.is_zero()).then(|| json!(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
        };
        let fields = [
            ("interval", time(check.interval)),
            (
                "max_failures",
                (check.max_failures > 0).then(|| json!(check.max_failures)),
            ),
            (
                "enforcing_consecutive_5xx",
                enforcing.map(|percent| json!(percent)),
            ),
            (
                "max_ejection_percent",
                check.max_ejection_percent.map(|percent| json!(percent)),
            ),
            ("base_ejection_time", time(check.base_ejection_time)),
        ];
        let set = fields.into_iter();
        all.extend(set.filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
    all.into_iter().collect()
}
