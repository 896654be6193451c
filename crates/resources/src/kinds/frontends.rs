//! What a sidecar in transparent mode has of the Services of its cluster, besides its part of the outbound listener:
//! the routes of each of their ports, and the clusters and endpoints of everything that these lead to.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use legate_model::Protocol;
use legate_proxycfg::{Frontends, JwtProviders, Proxy, ServiceFrontend};
use legate_routes::{Backend, Content, Listener, Target, VirtualHost, WeightedBackend};

use super::backends;
use super::change::SameProxy;
use crate::composer::Composer;
use crate::error::GenerateError;
use crate::gateway::changes;
use crate::gateway::http::{self, OfAllRoutes};
use crate::gateway::listener::{LeadsTo, Requests};
use crate::gateway::rules::{NO_CLUSTER, Referred, has_cors, virtual_hosts};
use crate::listener::normalization::Normalization;
use crate::listener::outbound::ServicePort;
use crate::memo::Memo;
use crate::names::{self, HTTP_CORS};
use crate::part::{UnitBuilder, made};
use crate::resource_type::Type;
use crate::section::Section;

/// The routes of the Services, one unit each.
const SERVICES: Section = Section("Services of the cluster");

static NO_PROVIDERS: LazyLock<JwtProviders> = LazyLock::new(JwtProviders::default);

/// The name of the cluster of a backend; `None` if it has none.
type ClusterOf<'a> = dyn Fn(&Backend) -> Option<String> + 'a;

/// The Services of a sidecar's cluster, and those in its last snapshot.
pub(super) struct OfCluster<'a> {
    pub(super) proxy: &'a Proxy,
    pub(super) now: &'a Arc<Frontends>,
    pub(super) last: Option<&'a Arc<Frontends>>,
    pub(super) same: SameProxy,
}

/// Their units.
pub(super) struct Units<'b> {
    services: Vec<UnitBuilder<'b>>,
    backends: Vec<UnitBuilder<'b>>,
}

impl<'b> Units<'b> {
    pub(super) fn add_to(self, composer: &mut Composer<'b>) {
        for unit in self.services {
            composer.add(SERVICES, unit);
        }
        for unit in self.backends {
            composer.add(backends::SECTION, unit);
        }
    }

    /// Whether a part could not be made.
    fn have_trouble(&self) -> bool {
        let routes = |unit: &UnitBuilder<'_>| unit.has_trouble(Type::Routes);
        let clusters = |unit: &UnitBuilder<'_>| unit.has_trouble(Type::Cluster);
        self.services.iter().any(routes) || self.backends.iter().any(clusters)
    }
}

impl<'a> OfCluster<'a> {
    fn last(&self) -> Option<&'a Frontends> {
        self.last.map(|last| &**last)
    }

    pub(super) fn units<'b>(&self, composer: &Composer<'b>) -> Units<'b> {
        let before = self.last().map(|last| &*last.backends);
        let pair = (&*self.now.backends, before);
        let backends = backends::units(
            composer,
            self.proxy,
            pair,
            self.same,
            (&BTreeSet::new(), true),
        );
        let clusters =
            LazyCell::new(|| backends::clusters(self.proxy, &self.now.backends, &backends));
        let clusters = |backend: &Backend| clusters.get(backend).cloned();
        let same_clusters = self.has_same_clusters(&backends);
        let mut services = Vec::with_capacity(self.now.services.len());
        for service in &self.now.services {
            // They are ordered by name.
            let position = self.last().and_then(|last| {
                let services = &last.services;
                services
                    .binary_search_by_key(&&service.name, |last| &last.name)
                    .ok()
            });
            let earlier = self.last().zip(position);
            let earlier = earlier.map(|(last, at)| &last.services[at]);
            let mut unit = composer.unit(SERVICES, position);
            for listener in &service.listeners {
                let same = earlier.is_some_and(|last| has_listener(last, listener));
                let unchanged = same && same_clusters && self.same.mesh;
                let port = Port { service, listener };
                self.add_routes(&mut unit, composer.memo, &port, (&clusters, unchanged));
            }
            services.push(unit);
        }
        Units { services, backends }
    }

    fn has_same_clusters(&self, units: &[UnitBuilder<'_>]) -> bool {
        let same = self.last().is_some_and(|last| {
            std::ptr::eq(last, &**self.now)
                || backends::have_same_clusters(self.proxy, &last.backends, &self.now.backends)
        });
        same && self.same.mesh_name && !units.iter().any(|unit| unit.has_trouble(Type::Cluster))
    }

    fn add_routes(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        port: &Port<'_>,
        (cluster, unchanged): (&ClusterOf<'_>, bool),
    ) {
        let Some(hosts) = port.hosts() else {
            return;
        };
        let mesh = (*self.proxy.mesh).as_ref();
        let validate_clusters = mesh.is_some_and(|mesh| mesh.validate_clusters);
        unit.part(
            Type::Routes,
            || port.name(),
            unchanged,
            |warnings| {
                let referred = Referred {
                    // Nothing here leads to the chain of a service.
                    chain: &|_| None,
                    cluster,
                    jwt_providers: &NO_PROVIDERS,
                    validate_clusters,
                };
                let hosts = virtual_hosts(hosts, None, &referred, warnings);
                let of_all = OfAllRoutes {
                    validate_clusters,
                    any_port: true,
                    http3: None,
                };
                made(http::routes(memo, &port.name(), hosts, of_all))
            },
        );
    }

    /// Whether all ports are reached as in the last snapshot.
    pub(super) fn is_reached_alike(&self, units: &Units<'_>) -> bool {
        let same = self.last().is_some_and(|last| {
            std::ptr::eq(last, &**self.now) || {
                let mut pairs = std::iter::zip(&last.services, &self.now.services);
                last.services.len() == self.now.services.len()
                    && pairs.all(|(last, now)| is_same(last, now))
            }
        });
        same && self.has_same_clusters(&units.backends) && !units.have_trouble()
    }

    /// The ports, for the outbound listener. No two have an address and a port in common: that of an address that was
    /// assigned again belongs to one of its Services until both are written. `in_mesh` are the services of the mesh
    /// that have chains, with an address of each: ports that belong to them are left to these chains.
    pub(super) fn ports(
        &self,
        units: &Units<'_>,
        in_mesh: &BTreeSet<(&str, IpAddr)>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<ServicePort>, GenerateError> {
        let mesh = (*self.proxy.mesh).as_ref();
        let normalization = Normalization::read(mesh)?;
        let clusters = backends::clusters(self.proxy, &self.now.backends, &units.backends);
        let mut taken = BTreeMap::new();
        let mut ports = Vec::new();
        for service in &self.now.services {
            for listener in &service.listeners {
                let port = Port { service, listener };
                let mut addresses = service.addresses.clone();
                addresses.sort_unstable();
                addresses.dedup();
                if service.mesh_ports.contains(&listener.port) {
                    let name = &*service.mesh_service;
                    addresses.retain(|address| !in_mesh.contains(&(name, *address)));
                }
                addresses.retain(|address| {
                    let owner = taken.entry((*address, listener.port));
                    let owner = *owner.or_insert(&service.name);
                    let is_own = std::ptr::eq(owner, &service.name);
                    if !is_own {
                        warnings.push(format!(
                            "the Services {owner} and {} both have the address {address}: it is that of {owner}",
                            service.name
                        ));
                    }
                    is_own
                });
                if !addresses.is_empty() {
                    ports.push(ServicePort {
                        addresses,
                        port: listener.port,
                        name: port.name(),
                        leads_to: port.leads_to(&clusters, &normalization),
                    });
                }
            }
        }
        Ok(ports)
    }
}

/// A port of a Service.
struct Port<'a> {
    service: &'a ServiceFrontend,
    listener: &'a Listener,
}

impl Port<'_> {
    /// The name of its routes, and in statistics.
    fn name(&self) -> String {
        names::service_port(&self.service.name, self.listener.port)
    }

    /// Its hosts, if it is for requests. The servers accept one content each.
    fn hosts(&self) -> Option<&[VirtualHost]> {
        match self.listener.contents.first()? {
            Content::Http(hosts) => Some(hosts),
            Content::Tcp(_) => None,
        }
    }

    fn leads_to(
        &self,
        clusters: &BTreeMap<&Backend, String>,
        normalization: &Normalization,
    ) -> LeadsTo {
        match self.listener.contents.first() {
            None => LeadsTo::Nowhere,
            Some(Content::Tcp(backends)) => connections(backends, clusters),
            Some(Content::Http(_)) => {
                let cors = has_cors(self.listener).then(|| (HTTP_CORS, changes::cors_filter()));
                LeadsTo::Routes {
                    name: self.name(),
                    protocol: Protocol::Http,
                    requests: Requests {
                        filters: cors.into_iter().collect(),
                        normalization: Some(*normalization),
                    },
                }
            }
        }
    }
}

fn connections(backends: &[WeightedBackend], clusters: &BTreeMap<&Backend, String>) -> LeadsTo {
    // Envoy closes the connections to a cluster that it does not have.
    let cluster = |one: &WeightedBackend| match &one.target {
        Target::Backend(backend) => clusters.get(&**backend).cloned(),
        Target::Service(_) | Target::Answer(_) => None,
    };
    let named = |one| cluster(one).unwrap_or_else(|| NO_CLUSTER.to_owned());
    match backends {
        [] => LeadsTo::Nowhere,
        [only] => LeadsTo::Cluster {
            name: named(only),
            hash_source_ip: false,
        },
        several => LeadsTo::Clusters(several.iter().map(|one| (named(one), one.weight)).collect()),
    }
}

fn has_listener(service: &ServiceFrontend, listener: &Arc<Listener>) -> bool {
    service
        .listeners
        .iter()
        .any(|one| Arc::ptr_eq(one, listener) || one == listener)
}

fn is_same(last: &ServiceFrontend, now: &ServiceFrontend) -> bool {
    last.name == now.name
        && last.addresses == now.addresses
        && last.mesh_service == now.mesh_service
        && last.mesh_ports == now.mesh_ports
        && last.listeners.len() == now.listeners.len()
        && now
            .listeners
            .iter()
            .all(|listener| has_listener(last, listener))
}
