//! From what a cluster has to what becomes of it.
//!
//! ```text
//! class ─► gateway ─► listener ─► conflicts ─► attach ─► http, plain ─► tables ─► serve, frontend
//!                        │                                   │
//!                     lookup: grants, Secrets, ConfigMaps   backend ◄─ policy
//! ```

mod attach;
mod backend;
mod class;
mod clients;
mod conflicts;
mod consul;
mod features;
mod filters;
mod frontend;
mod gateway;
mod http;
mod listener;
mod lookup;
mod plain;
mod policy;
mod programmed;
mod route;
mod serve;
mod tables;

use std::collections::{BTreeMap, BTreeSet};

use legate_routes::WeightedBackend;

use self::attach::{AttachedTo, Attachment};
use self::backend::{Collected, RouteContext};
use self::frontend::PortRoutes;
use self::gateway::GatewayPlan;
use self::http::Ranked;
use self::lookup::Lookup;
use self::policy::Policies;
use self::route::{Route, RouteReport, Spec};
use self::tables::{AttachedRoute, ListenerRoutes};
use crate::condition::{ACCEPTED, Condition, PROGRAMMED, Problem, RESOLVED, UNSUPPORTED};
use crate::kind::Protocol;
use crate::object::Key;
use crate::outcome::{Outcome, ParentVerdict, RouteId, RouteVerdict};
use crate::types::GROUP;
use crate::world::{Servers, World};

/// What becomes of everything in a cluster.
#[must_use]
pub fn resolve(world: &World) -> Outcome {
    let lookup = Lookup::new(world);
    let policies = Policies::new(&lookup);
    let classes = class::classes(world);
    let mut gateways = gateways(&lookup, &classes);
    let routes = route::routes(world);
    let attached = attach::attach(&lookup, &gateways, &routes);
    let made: Vec<_> = routes
        .iter()
        .zip(&attached)
        .map(|(route, attached)| make(&lookup, &policies, &gateways, (route, attached)))
        .collect();
    count(&mut gateways, &routes, &attached, &made);
    let verdicts = classes.iter();
    let verdicts = verdicts.map(|(name, class)| ((*name).to_owned(), class.verdict(world)));
    let mut outcome = Outcome {
        classes: verdicts.collect(),
        ..Outcome::default()
    };
    let mut by_gateway = vec![Vec::new(); gateways.len()];
    for one in made.iter().flat_map(|one| &one.at) {
        by_gateway[one.gateway].push(one);
    }
    let mut users = Vec::new();
    let mut crowded = BTreeSet::new();
    for (at, (gateway, here)) in gateways.iter().zip(by_gateway).enumerate() {
        let key = gateway.object.meta.key();
        outcome.gateways.insert(key.clone(), gateway.verdict());
        outcome.listener_sets.extend(gateway.set_verdicts());
        let services = here.iter().flat_map(|one| one.services.iter().cloned());
        users.push((key.clone(), services.collect()));
        if gateway.is_served() {
            let (served, full) = serve::served(gateway, listener_routes(world, gateway, &here));
            crowded.extend(full.into_iter().map(|listener| (at, listener)));
            outcome.served.insert(key, served);
        }
    }
    let mut at_ports = PortRoutes::default();
    for (service, port, attached) in made.iter().flat_map(|one| &one.at_services) {
        at_ports.add((service, *port), attached.clone());
    }
    outcome.frontends = frontend::frontends(world, &at_ports);
    outcome.routes = verdicts_of_routes((&routes, &attached), &made, (&crowded, world));
    outcome.policies = policies.verdicts(&users);
    outcome
}

/// The gateways of these classes, the oldest first.
fn gateways<'a>(
    lookup: &Lookup<'a>,
    classes: &'a BTreeMap<&str, class::Class<'a>>,
) -> Vec<GatewayPlan<'a>> {
    let world = lookup.world;
    let mut sets: Vec<_> = world.listener_sets.iter().collect();
    sets.sort_by_key(|set| set.meta.age());
    let mut by_gateway = BTreeMap::<_, Vec<_>>::new();
    for set in sets {
        let parent = &set.spec.parent_ref;
        let group = parent.group.as_deref().unwrap_or(GROUP);
        let kind = parent.kind.as_deref().unwrap_or("Gateway");
        let namespace = parent.namespace.as_ref().unwrap_or(&set.meta.namespace);
        if group == GROUP && kind == "Gateway" {
            let key = Key::new(namespace, &parent.name);
            by_gateway.entry(key).or_default().push(set);
        }
    }
    let mut objects: Vec<_> = world.gateways.iter().collect();
    objects.sort_by_key(|object| object.meta.age());
    let own = objects.into_iter().filter_map(|object| {
        let class = classes.get(object.spec.gateway_class_name.as_str())?;
        let sets = by_gateway.get(&object.meta.key());
        let sets = sets.map_or(&[][..], |sets| sets);
        Some(gateway::plan(lookup, class, object, sets))
    });
    own.collect()
}

/// A route with what it leads to.
struct ResolvedRoute<'a> {
    /// At gateways.
    collected: Collected,
    /// At each listener to which it is attached, once.
    at: Vec<AtListener<'a>>,
    /// What is said of it at each Service that it names.
    of_services: BTreeMap<&'a Key, RouteReport>,
    /// At each port of a Service to which it is attached, once.
    at_services: Vec<(&'a Key, u16, AttachedRoute<'a>)>,
}

struct AtListener<'a> {
    gateway: usize,
    listener: usize,
    services: BTreeSet<Key>,
    attached: AttachedRoute<'a>,
}

fn make<'a>(
    lookup: &Lookup<'_>,
    policies: &Policies<'_>,
    gateways: &[GatewayPlan<'_>],
    (route, attached): (&'a Route<'a>, &'a [Attachment<'_>]),
) -> ResolvedRoute<'a> {
    let listeners = attached.iter().flat_map(Attachment::listeners);
    let indexes: BTreeSet<_> = listeners.collect();
    let context = RouteContext {
        lookup,
        policies,
        route,
        port: 80,
        protocol: None,
        presented: None,
        frontend: None,
    };
    let mut collected = Collected::default();
    let mut at = Vec::new();
    for (gateway, listener) in indexes {
        let plan = &gateways[gateway];
        let own = &plan.listeners[listener];
        let context = RouteContext {
            port: own.spec.port,
            protocol: own.protocol,
            presented: plan.presented.as_ref(),
            ..context
        };
        collected = Collected::default();
        let (rules, connections) = rules(&context, &mut collected);
        at.push(AtListener {
            gateway,
            listener,
            services: collected.services.clone(),
            attached: AttachedRoute {
                route,
                rules,
                connections,
            },
        });
    }
    if at.is_empty() {
        // Its references get a verdict even if it is attached nowhere.
        rules(&context, &mut collected);
    }
    let (of_services, at_services) = at_services(context, (route, attached));
    ResolvedRoute {
        collected,
        at,
        of_services,
        at_services,
    }
}

/// What is said of a route at the Services that it names, and the route at each of their ports.
type AtServices<'a> = (
    BTreeMap<&'a Key, RouteReport>,
    Vec<(&'a Key, u16, AttachedRoute<'a>)>,
);

fn at_services<'a>(
    context: RouteContext<'_>,
    (route, attached): (&'a Route<'a>, &'a [Attachment<'_>]),
) -> AtServices<'a> {
    let mut by_service = BTreeMap::<_, BTreeSet<u16>>::new();
    for attachment in attached {
        if let AttachedTo::Service(service, ports) = &attachment.to {
            let all = by_service.entry(service).or_default();
            all.extend(ports.iter().flatten());
        }
    }
    let (mut reports, mut at) = (BTreeMap::new(), Vec::new());
    for (service, ports) in by_service {
        let context = RouteContext {
            protocol: Some(Protocol::Http),
            frontend: Some(service),
            ..context
        };
        let mut collected = Collected::default();
        if ports.is_empty() {
            rules(&context, &mut collected);
        }
        for port in ports {
            collected = Collected::default();
            let context = RouteContext { port, ..context };
            let (rules, connections) = rules(&context, &mut collected);
            let attached = AttachedRoute {
                route,
                rules,
                connections,
            };
            at.push((service, port, attached));
        }
        reports.insert(service, collected.report);
    }
    (reports, at)
}

/// The rules of a route, or where its connections go.
fn rules(
    context: &RouteContext<'_>,
    collected: &mut Collected,
) -> (Vec<Ranked>, Vec<WeightedBackend>) {
    match context.route.spec {
        Spec::Http(object) => (http::http(context, object, collected), Vec::new()),
        Spec::Grpc(object) => (http::grpc(context, object, collected), Vec::new()),
        Spec::Plain(rules, paths) => {
            let connections = plain::connections(context, (rules, paths), collected);
            (Vec::new(), connections)
        }
    }
}

/// Counts the routes that listeners have accepted.
fn count(
    gateways: &mut [GatewayPlan<'_>],
    routes: &[Route<'_>],
    attached: &[Vec<Attachment<'_>>],
    made: &[ResolvedRoute<'_>],
) {
    for ((route, attached), made) in routes.iter().zip(attached).zip(made) {
        if !made.collected.report.is_served {
            continue;
        }
        for attachment in attached {
            for (gateway, listener) in attachment.listeners() {
                let listener = &mut gateways[gateway].listeners[listener];
                listener.attached.insert(route.id.clone());
            }
        }
    }
}

/// Whether a route for many hosts gets the requests for one of them that the rules of routes with a
/// more specific host do not match.
const FALLS_THROUGH: &str = "FallsThrough";
/// Consul's gateways have the routes of a host in one place, and no other.
const OF_CONSUL: &str = "with Consul's servers, requests for a host are only for the routes that name it; \
                         those that name none get the requests for other hosts";
const TOO_MANY: &str = "the listener has too many rules: requests for a host are only for the \
                        routes with the most specific host; name fewer hosts, or use more listeners";

fn verdicts_of_routes(
    (routes, attached): (&[Route<'_>], &[Vec<Attachment<'_>>]),
    made: &[ResolvedRoute<'_>],
    (crowded, world): (&BTreeSet<(usize, usize)>, &World),
) -> BTreeMap<RouteId, RouteVerdict> {
    let mut verdicts = BTreeMap::new();
    for ((route, attached), made) in routes.iter().zip(attached).zip(made) {
        if attached.is_empty() {
            continue;
        }
        let parents = attached.iter().map(|attachment| {
            let (report, unwritten) = match &attachment.to {
                AttachedTo::Gateway(..) => (&made.collected.report, None),
                AttachedTo::Service(key, _) => (&made.of_services[key], world.unwritten.get(key)),
            };
            let mut conditions = conditions(attachment, report);
            if let Some(reason) = unwritten.filter(|_| attachment.refused().is_none()) {
                let problem = Problem::new("Pending", reason);
                conditions.push(Condition::unless(PROGRAMMED, PROGRAMMED, Some(&problem)));
            }
            let is_crowded = attachment.listeners().any(|one| crowded.contains(&one));
            if is_crowded && route.hosts.iter().any(|host| host.starts_with('*')) {
                let problem = match world.servers {
                    Servers::Legate => Problem::new("TooManyRules", TOO_MANY),
                    Servers::Consul => Problem::new(UNSUPPORTED, OF_CONSUL),
                };
                conditions.push(Condition::unless(
                    FALLS_THROUGH,
                    FALLS_THROUGH,
                    Some(&problem),
                ));
            }
            ParentVerdict {
                parent: attachment.parent.clone(),
                conditions,
            }
        });
        let verdict = RouteVerdict {
            generation: route.meta.generation,
            parents: parents.collect(),
        };
        verdicts.insert(route.id.clone(), verdict);
    }
    verdicts
}

/// What is said of a route to one that it names.
fn conditions(attachment: &Attachment<'_>, report: &RouteReport) -> Vec<Condition> {
    let unserved = (!report.unserved.is_empty())
        .then(|| Problem::new(UNSUPPORTED, report.unserved.join("; ")));
    let nothing = unserved.as_ref().filter(|_| !report.is_served);
    let problem = attachment.refused().or(nothing);
    let mut conditions = vec![
        Condition::unless(ACCEPTED, ACCEPTED, problem),
        Condition::unless(RESOLVED, RESOLVED, report.unresolved.as_ref()),
    ];
    if let Some(part) = unserved.as_ref().filter(|_| report.is_served) {
        let partially = Condition::holds("PartiallyInvalid", part.reason);
        conditions.push(partially.saying(&part.message));
    }
    conditions
}

/// The listeners of a gateway without conflicts, with their routes if they are served.
fn listener_routes<'a>(
    world: &World,
    gateway: &'a GatewayPlan<'a>,
    here: &[&AtListener<'a>],
) -> Vec<ListenerRoutes<'a>> {
    let listeners = gateway.listeners.iter().enumerate();
    let distinct = listeners.filter(|(_, one)| one.conflict.is_none() && one.protocol.is_some());
    let distinct = distinct.filter(|(_, one)| one.has_host());
    let routes = distinct.map(|(index, listener)| {
        let attached = here.iter().filter(|one| one.listener == index);
        let attached = attached.filter(|_| listener.is_served());
        ListenerRoutes {
            at: index,
            listener,
            falls_through: world.servers == Servers::Legate,
            attached: attached.map(|one| one.attached.clone()).collect(),
        }
    });
    routes.collect()
}
