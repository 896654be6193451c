//! The listeners of a gateway with the routes that are bound to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use legate_model::{
    ApiGatewayListener, ConfigEntry, ConfigKind, JwtRequirement, ServiceName, Upstream,
};
use legate_routes::{
    Action, Backend, Content, Datagrams, HostPorts, Listener, NOT_FOUND, Rule, Target, VirtualHost,
    WeightedBackend, by_specificity,
};
use legate_store::ReadTxn;

use super::attached::{self, Attached};
use super::binding::{Binding, Bound, binding};
use super::certificates::{self, GatewayCertificate};
use super::route::{Route, RouteId};
use super::{listener, rows, rules};
use crate::merge;
use crate::queries::{self, JwtProviders};

/// What a gateway serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compiled {
    /// By port.
    pub listeners: Vec<Arc<Listener>>,
    /// What is on ports of UDP, by port.
    pub datagrams: Vec<Arc<Datagrams>>,
    /// The certificates of the listeners, each once.
    pub certificates: Vec<Arc<Option<GatewayCertificate>>>,
    /// The services that the routes lead to, ordered by name.
    pub services: Arc<Vec<ServiceName>>,
    /// The same as upstreams.
    pub upstreams: Vec<Arc<Upstream>>,
    /// What is outside of the mesh and the routes lead to, in order and each once.
    pub backends: Arc<Vec<Arc<Backend>>>,
    /// Whether the operator of a cluster says what is served, and not config entries.
    pub is_of_cluster: bool,
}

/// What a gateway serves, nothing if there is no such entry or it is not accepted. The listener of
/// a port stays the same `Arc` until it changes.
pub fn compiled(txn: &ReadTxn<'_>, gateway: &ServiceName, datacenter: &str) -> Arc<Compiled> {
    let argument = format!("{}/{datacenter}", gateway.name);
    txn.in_tenancy(&gateway.tenancy, |txn| {
        txn.shared("served by an API gateway", &argument, |txn| {
            let of_cluster = rows::compiled(txn, gateway);
            let compiled = of_cluster.unwrap_or_else(|| of_entries(txn, gateway, datacenter));
            with_upstreams(txn, compiled)
        })
    })
}

fn of_entries(txn: &ReadTxn<'_>, gateway: &ServiceName, datacenter: &str) -> Compiled {
    let binding = binding(txn, gateway, datacenter);
    let mut compiled = Compiled::default();
    let Some(binding) = binding.as_ref().as_ref().filter(|one| one.is_accepted()) else {
        return compiled;
    };
    let ports: BTreeSet<u16> = binding.listeners.iter().map(|one| one.port).collect();
    let listeners = ports.into_iter().filter_map(|port| {
        let argument = format!("{}/{datacenter}/{port}", gateway.name);
        let found = txn.shared("port of an API gateway", &argument, |txn| {
            on_port(txn, gateway, datacenter, port).map(Arc::new)
        });
        (*found).clone()
    });
    compiled.listeners = listeners.collect();
    compiled.certificates = certificates::of_gateway(txn, gateway).to_vec();
    compiled
}

fn with_upstreams(txn: &ReadTxn<'_>, mut compiled: Compiled) -> Compiled {
    let services: Vec<_> = compiled.services().into_iter().cloned().collect();
    let upstreams = services.iter().map(|service| {
        // The same `Arc` for every gateway of the tenancy.
        txn.shared("upstream of API gateways", &service.to_string(), |txn| {
            merge::plain_upstream(service, txn.tenancy())
        })
    });
    compiled.upstreams = upstreams.collect();
    compiled.services = Arc::new(services);
    compiled
}

/// The JWT providers that the routes of a gateway name.
pub fn jwt_providers(
    txn: &ReadTxn<'_>,
    gateway: &ServiceName,
    datacenter: &str,
) -> Arc<JwtProviders> {
    let argument = format!("{}/{datacenter}", gateway.name);
    txn.in_tenancy(&gateway.tenancy, |txn| {
        txn.shared("JWT providers of an API gateway", &argument, |txn| {
            let compiled = compiled(txn, gateway, datacenter);
            let names = compiled.tokens().flat_map(JwtRequirement::provider_names);
            let found =
                names.filter_map(|name| Some((name.to_owned(), queries::jwt_provider(txn, name)?)));
            found.collect()
        })
    })
}

/// What is served on one port; `None` if that is nothing. Listeners on one port have the same host
/// and protocol.
fn on_port(
    txn: &ReadTxn<'_>,
    gateway: &ServiceName,
    datacenter: &str,
    port: u16,
) -> Option<Listener> {
    let binding = binding(txn, gateway, datacenter);
    let binding: &Binding = binding.as_ref().as_ref()?;
    let entry = txn.config_entry(ConfigKind::ApiGateway, &gateway.name)?;
    let ConfigEntry::ApiGateway(entry) = &*entry else {
        return None;
    };
    let pairs = entry.listeners.iter().zip(&binding.listeners);
    let here: Vec<_> = pairs
        .filter(|(listener, _)| listener.port == port)
        .collect();
    let is_tcp = here.first()?.1.tcp;
    let content = match is_tcp {
        true => Content::Tcp(vec![connections(txn, &here)?]),
        false => Content::Http(hosts(&attached::routes(txn, gateway), &here)),
    };
    if matches!(&content, Content::Http(hosts) if hosts.is_empty()) {
        return None;
    }
    Some(Listener {
        port,
        chains: certificates::on_port(txn, gateway, port).to_vec(),
        contents: vec![content],
        host_ports: HostPorts::Own,
    })
}

/// Where the connections of a port go. As in Consul, nowhere if there is more than one route.
fn connections(
    txn: &ReadTxn<'_>,
    here: &[(&ApiGatewayListener, &Bound)],
) -> Option<WeightedBackend> {
    let routes: BTreeSet<&RouteId> = here.iter().flat_map(|(_, bound)| bound.bound()).collect();
    let mut routes = routes.into_iter();
    let (Some(only), None) = (routes.next(), routes.next()) else {
        return None;
    };
    let entry = only.read(txn)?;
    let service = Route::of(&entry)?.services(&only.name).into_iter().next()?;
    Some(WeightedBackend::only(Target::Service(service)))
}

/// The hosts of a port, with the rules of all routes for each host.
fn hosts(attached: &[Attached], here: &[(&ApiGatewayListener, &Bound)]) -> Vec<VirtualHost> {
    let entries: HashMap<&RouteId, &ConfigEntry> =
        attached.iter().map(|one| (&one.id, &*one.entry)).collect();
    let mut by_host: BTreeMap<String, Vec<Rule>> = BTreeMap::new();
    for (listener, bound) in here {
        for fitting in &bound.routes {
            let id = &fitting.route;
            let Some(ConfigEntry::HttpRoute(route)) = entries.get(id).copied() else {
                continue;
            };
            let mut rules = rules::rules(listener, (&id.name, route), fitting.bound);
            let mut hosts = listener::hosts(listener, route);
            // The rules are copied for all hosts but the last.
            let last = hosts.pop();
            for host in hosts {
                let of_host = by_host.entry(host).or_default();
                of_host.extend(rules.iter().cloned());
            }
            if let Some(last) = last {
                by_host.entry(last).or_default().append(&mut rules);
            }
        }
    }
    let hosts = by_host.into_iter().map(|(host, mut rules)| {
        rules.sort_by(|a, b| by_specificity(&a.matched, &b.matched));
        VirtualHost {
            domains: vec![host],
            rules,
            otherwise: NOT_FOUND,
        }
    });
    hosts.collect()
}

impl Compiled {
    /// The services that anything leads to, each once, ordered by name.
    fn services(&self) -> BTreeSet<&ServiceName> {
        let targets = self.listeners.iter().flat_map(|one| one.targets());
        let services = targets.filter_map(|target| match target {
            Target::Service(service) => Some(service),
            Target::Backend(_) | Target::Answer(_) => None,
        });
        services.collect()
    }

    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.listeners.iter().flat_map(|one| one.rules())
    }

    /// About how many resources, or routes in them, are made from it.
    pub fn size(&self) -> usize {
        let lists = [
            self.listeners.len(),
            self.datagrams.len(),
            self.certificates.len(),
            self.backends.len(),
        ];
        lists.iter().sum::<usize>() + self.rules().count()
    }

    /// The tokens that rules require.
    fn tokens(&self) -> impl Iterator<Item = &JwtRequirement> {
        let of_rules = self.rules().filter_map(|rule| rule.token.as_deref());
        let backends = self.rules().flat_map(|rule| match &rule.action {
            Action::Forward(backends) => &backends[..],
            Action::Redirect(_) | Action::Answer(_) => &[],
        });
        let of_backends = backends.filter_map(|one| one.token.as_deref());
        of_rules.chain(of_backends)
    }
}
