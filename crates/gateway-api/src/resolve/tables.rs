//! Hosts with their rules, and server names with their connections: who has what on a port.
//!
//! The owner of a host is the listener with the most specific host that covers it. What is attached
//! to a listener answers for its own hosts only: a listener without rules for a request answers 404,
//! and no other listener takes it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use legate_model::WILDCARD;
use legate_routes::{NOT_FOUND, VirtualHost, WeightedBackend, covers};

use super::http::Ranked;
use super::listener::ListenerPlan;
use super::route::{Route, specificity};
use crate::kind::Protocol;

/// The answer to a request that belongs to another connection.
const MISDIRECTED: u16 = 421;

/// A route at a listener or at a port of a Service, with its rules.
#[derive(Clone)]
pub(super) struct AttachedRoute<'a> {
    pub(super) route: &'a Route<'a>,
    pub(super) rules: Vec<Ranked>,
    pub(super) connections: Vec<WeightedBackend>,
}

/// A listener with its routes, the oldest first.
pub(super) struct ListenerRoutes<'a> {
    /// Its index among those of the gateway.
    pub(super) at: usize,
    pub(super) listener: &'a ListenerPlan<'a>,
    /// Whether routes for many hosts can get the requests for one of them that the rules of routes with a
    /// more specific host do not match.
    pub(super) falls_through: bool,
    /// None if the listener is not served.
    pub(super) attached: Vec<AttachedRoute<'a>>,
}

/// Whether a listener owns a host among those of its port.
fn owns(own: &ListenerPlan<'_>, all: &[ListenerRoutes<'_>], host: &str) -> bool {
    let covering = all.iter().filter(|one| covers(&one.listener.host, host));
    let best = covering.max_by_key(|one| specificity(&one.listener.host));
    best.is_some_and(|best| std::ptr::eq(best.listener, own))
}

/// The rules of a listener's hosts at most. A route for many hosts is repeated at each of them.
const MAX_RULES: usize = 20_000;

/// The hosts of a listener.
pub(super) struct Hosts {
    pub(super) hosts: Vec<VirtualHost>,
    /// Whether the rules of routes for many hosts are not repeated, because there are too many, or because
    /// servers cannot: requests for a host are then for the routes with just this host.
    pub(super) is_crowded: bool,
}

/// The hosts of a listener for requests. `all`: those whose hosts are distinct from its own. Hosts
/// with the same rules are together.
pub(super) fn hosts(here: &ListenerRoutes<'_>, all: &[ListenerRoutes<'_>]) -> Hosts {
    let own = here.listener;
    let mut domains = BTreeMap::from([(own.host.clone(), Vec::new())]);
    let mut by_host = BTreeMap::<&str, Vec<usize>>::new();
    for (at, attached) in here.attached.iter().enumerate() {
        for host in attached.route.hosts_at(&own.host) {
            if owns(own, all, &host) {
                domains.entry(host).or_default().push(at);
            }
        }
        for host in &attached.route.hosts {
            by_host.entry(host).or_default().push(at);
        }
    }
    let repeated = |domain: &str| covering(domain, &by_host);
    let rules = |routes: &[(usize, usize)]| {
        let routes = routes.iter().map(|(_, route)| *route);
        routes
            .map(|route| here.attached[route].rules.len())
            .sum::<usize>()
    };
    let count: usize = domains.keys().map(|domain| rules(&repeated(domain))).sum();
    let is_crowded = count > MAX_RULES || (!here.falls_through && by_host.len() > 1);
    let mut by_rules = BTreeMap::<_, Vec<_>>::new();
    for (domain, routes) in domains {
        let routes = match is_crowded {
            true => routes.into_iter().map(|route| (0, route)).collect(),
            false => repeated(&domain),
        };
        let rules = in_order(&routes, &here.attached);
        by_rules.entry(rules).or_default().push(domain);
    }
    let hosts = by_rules.into_iter().map(|(rules, domains)| {
        let rules = rules.into_iter();
        VirtualHost {
            domains,
            rules: rules
                .map(|(route, rule)| here.attached[route].rules[rule].rule.clone())
                .collect(),
            otherwise: NOT_FOUND,
        }
    });
    Hosts {
        hosts: hosts.collect(),
        is_crowded,
    }
}

/// The routes with a host that covers a domain, each with how far its most specific one is from the
/// domain.
fn covering(domain: &str, by_host: &BTreeMap<&str, Vec<usize>>) -> Vec<(usize, usize)> {
    let name = domain.strip_prefix("*.").unwrap_or(domain);
    let wildcards = name
        .match_indices('.')
        .map(|(at, _)| format!("*{}", &name[at..]));
    let any = (domain != WILDCARD).then(|| WILDCARD.to_owned());
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let hosts = [domain.to_owned()].into_iter().chain(wildcards).chain(any);
    for (distance, host) in hosts.enumerate() {
        for route in by_host.get(host.as_str()).into_iter().flatten() {
            if seen.insert(*route) {
                found.push((distance, *route));
            }
        }
    }
    found
}

/// The rules of these routes in the order in which they are tried: those of the route with the
/// nearer host first. Requests that none of its rules matches are for the routes with the next one.
/// Each is named by the indexes of its route and of itself.
pub(super) fn in_order(
    routes: &[(usize, usize)],
    attached: &[AttachedRoute<'_>],
) -> Vec<(usize, usize)> {
    let rules = routes.iter().flat_map(|(distance, route)| {
        let rules = attached[*route].rules.iter().enumerate();
        rules.map(|(index, rule)| (*distance, Reverse(rule.rank), (*route, index)))
    });
    let mut rules: Vec<_> = rules.collect();
    // Among equals, the rules of older routes come first, and those of a route in their order.
    rules.sort_unstable();
    rules.into_iter().map(|(.., rule)| rule).collect()
}

/// The hosts of a listener whose connections are chosen by server name. A client may send requests
/// for another listener's host on them, which are answered with 421: it shall open another
/// connection.
pub(super) fn hosts_by_name(here: &ListenerRoutes<'_>, all: &[ListenerRoutes<'_>]) -> Hosts {
    let mut made = hosts(here, all);
    let hosts = &mut made.hosts;
    let others = all.iter().map(|one| one.listener);
    let others = others.filter(|other| {
        other.protocol == Some(Protocol::Https) && !std::ptr::eq(*other, here.listener)
    });
    let mut domains: Vec<_> = others.map(|other| other.host.clone()).collect();
    domains.sort();
    if !domains.is_empty() {
        hosts.push(VirtualHost {
            domains,
            rules: Vec::new(),
            otherwise: MISDIRECTED,
        });
    }
    hosts.sort_by(|a, b| a.domains.cmp(&b.domains));
    made
}

/// The server names of a listener for connections, each with where they go: to the backends of the
/// oldest route that has the name. Those of the listener that no route has are closed.
pub(super) fn server_names(
    here: &ListenerRoutes<'_>,
    all: &[ListenerRoutes<'_>],
) -> BTreeMap<String, Vec<WeightedBackend>> {
    let own = here.listener;
    let mut names = BTreeMap::<String, Vec<WeightedBackend>>::new();
    for attached in &here.attached {
        for name in attached.route.hosts_at(&own.host) {
            if owns(own, all, &name) {
                names
                    .entry(name)
                    .or_insert_with(|| attached.connections.clone());
            }
        }
    }
    // For any name, no chain closes as well.
    if own.host != WILDCARD {
        names.entry(own.host.clone()).or_default();
    }
    names
}
