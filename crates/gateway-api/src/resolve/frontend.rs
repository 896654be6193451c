//! Frontends: how callers in the mesh reach the Services of the cluster, by address and port.
//!
//! A route in the namespace of the Service is for all callers. One in another namespace is for the
//! callers of its own namespace only, for which it replaces the others at its ports: the two are never
//! merged. Hosts of routes mean nothing here, since the address says which Service is called.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use legate_model::WILDCARD;
use legate_routes::{
    Action, Backend, BackendProtocol, Content, Frontend, NOT_FOUND, Origin, Rule, Target, Timeouts,
    VirtualHost, WeightedBackend,
};

use super::attach::{AttachedTo, Attachment, NO_PARENT};
use super::backend::http_protocol;
use super::route::{self, Route};
use super::serve::plain;
use super::tables::{AttachedRoute, in_order};
use crate::condition::{Problem, UNSUPPORTED};
use crate::kind::RouteKind;
use crate::object::Key;
use crate::outcome::ServedFrontend;
use crate::types::ParentReference;
use crate::world::{Servers, Service, ServicePort, World};

/// The namespace whose callers a route is for; `None` for all callers.
type Callers = Option<String>;

/// The routes at the ports of Services, by callers. Those of a port are sorted, the oldest first.
#[derive(Default)]
pub(super) struct PortRoutes<'a>(
    BTreeMap<Key, BTreeMap<Callers, BTreeMap<u16, Vec<AttachedRoute<'a>>>>>,
);

impl<'a> PortRoutes<'a> {
    /// Adds a route, which is not older than those before.
    pub(super) fn add(&mut self, (service, port): (&Key, u16), attached: AttachedRoute<'a>) {
        let callers = callers(attached.route, service);
        let of_service = self.0.entry(service.clone()).or_default();
        let of_callers = of_service.entry(callers).or_default();
        of_callers.entry(port).or_default().push(attached);
    }
}

fn callers(route: &Route<'_>, service: &Key) -> Callers {
    let namespace = &route.meta.namespace;
    (*namespace != service.namespace).then(|| namespace.clone())
}

/// The ports of a Service to which a reference of a route attaches it.
pub(super) fn ports(
    world: &World,
    key: &Key,
    (route, parent): (&Route<'_>, &ParentReference),
) -> Result<Vec<u16>, Problem> {
    let kind = route.id.kind;
    if !matches!(kind, RouteKind::Http | RouteKind::Grpc) {
        let message =
            format!("a {kind} cannot be attached to a Service: HTTPRoutes and GRPCRoutes can");
        return Err(Problem::new(UNSUPPORTED, message));
    }
    if world.servers == Servers::Consul {
        let message =
            "a route at a Service is not served with Consul's servers: use a ServiceRouter";
        return Err(Problem::new(UNSUPPORTED, message));
    }
    let missing = |message| Problem::new(NO_PARENT, message);
    let service = world.services.get(key);
    let service = service.ok_or_else(|| missing(format!("there is no Service {key}")))?;
    if service.addresses.is_empty() {
        let message = format!("callers cannot address the Service {key}: it has no clusterIP");
        return Err(missing(message));
    }
    let is_named = |one: &&ServicePort| {
        let name = parent.section_name.as_ref();
        parent.port.is_none_or(|port| port == one.port) && name.is_none_or(|name| *name == one.name)
    };
    let ports = tcp_ports(service).into_values().filter(is_named);
    let ports: Vec<_> = ports.map(|one| one.port).collect();
    if ports.is_empty() {
        let message =
            format!("the Service {key} has no port of TCP with this port and sectionName");
        return Err(missing(message));
    }
    Ok(ports)
}

fn tcp_ports(service: &Service) -> BTreeMap<u16, &ServicePort> {
    let ports = service.ports.iter().filter(|one| !one.udp);
    ports.map(|one| (one.port, one)).collect()
}

/// Takes from HTTPRoutes the ports at which GRPCRoutes are attached for the same callers: the routes of a
/// port are of one kind, and the more specific kind has it.
pub(super) fn separate_kinds(routes: &[Route<'_>], attached: &mut [Vec<Attachment<'_>>]) {
    let mut of_grpc = BTreeSet::new();
    for (route, attached) in routes.iter().zip(&*attached) {
        for attachment in attached.iter().filter(|_| route.id.kind == RouteKind::Grpc) {
            if let AttachedTo::Service(key, Ok(ports)) = &attachment.to {
                let ports = ports.iter().copied();
                of_grpc.extend(ports.map(|port| (key.clone(), callers(route, key), port)));
            }
        }
    }
    for (route, attached) in routes.iter().zip(attached) {
        for attachment in attached
            .iter_mut()
            .filter(|_| route.id.kind == RouteKind::Http)
        {
            let AttachedTo::Service(key, result) = &mut attachment.to else {
                continue;
            };
            let Ok(ports) = result else {
                continue;
            };
            let is_taken = |port: u16| of_grpc.contains(&(key.clone(), callers(route, key), port));
            ports.retain(|port| !is_taken(*port));
            if ports.is_empty() {
                let message = "GRPCRoutes are attached to the same ports of the Service";
                *result = Err(Problem::new("Conflicted", message));
            }
        }
    }
}

/// The frontends of all Services that have one.
pub(super) fn frontends(world: &World, routes: &PortRoutes<'_>) -> Vec<ServedFrontend> {
    let mut frontends = Vec::new();
    if world.servers == Servers::Consul {
        return frontends;
    }
    for (key, service) in &world.services {
        let none = BTreeMap::new();
        let by_callers = routes.0.get(key).unwrap_or(&none);
        let mut all: BTreeSet<_> = by_callers.keys().cloned().collect();
        all.extend(service.needs_frontend.then_some(None));
        let ports = tcp_ports(service);
        if service.addresses.is_empty() || ports.is_empty() {
            continue;
        }
        let addresses: BTreeSet<_> = service.addresses.iter().copied().collect();
        frontends.extend(all.into_iter().map(|callers| {
            let mut mesh_ports = Vec::new();
            let listeners = ports.values().map(|port| {
                let own = by_callers.get(&callers).and_then(|all| all.get(&port.port));
                let of_all = || by_callers.get(&None)?.get(&port.port);
                let content = match own.or_else(of_all) {
                    Some(routes) => routed(routes),
                    None => {
                        mesh_ports.extend(port.is_of_mesh.then_some(port.port));
                        unrouted(key, port)
                    }
                };
                plain(port.port, content)
            });
            ServedFrontend {
                listeners: listeners.collect(),
                frontend: Frontend {
                    namespace: key.namespace.clone(),
                    name: key.name.clone(),
                    addresses: addresses.iter().copied().collect(),
                    callers,
                    mesh_ports,
                },
            }
        }));
    }
    frontends
}

fn requests(rules: Vec<Rule>) -> Content {
    Content::Http(vec![VirtualHost {
        domains: vec![WILDCARD.to_owned()],
        rules,
        otherwise: NOT_FOUND,
    }])
}

/// What is at a port with routes: their rules alone.
fn routed(routes: &[AttachedRoute<'_>]) -> Content {
    let all: Vec<_> = (0..routes.len()).map(|route| (0, route)).collect();
    let order = in_order(&all, routes).into_iter();
    let rules = order.map(|(route, rule)| routes[route].rules[rule].rule.clone());
    requests(rules.collect())
}

/// What is at a port without routes: the port itself.
fn unrouted(key: &Key, port: &ServicePort) -> Content {
    let protocol = http_protocol(port.app_protocol.as_deref());
    let backends = vec![WeightedBackend::only(Target::Backend(Arc::new(Backend {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        port: port.port,
        protocol: protocol.unwrap_or(BackendProtocol::Tcp),
        tls: None,
    })))];
    if protocol.is_none() {
        return Content::Tcp(backends);
    }
    let origin = Origin {
        route: route::name(key),
        rule: 0,
    };
    let mut rule = Rule::plain(origin, Action::Forward(backends));
    // Nobody has asked for a limit.
    rule.timeouts = Timeouts {
        request: Some(Duration::ZERO),
        ..Timeouts::default()
    };
    requests(vec![rule])
}
