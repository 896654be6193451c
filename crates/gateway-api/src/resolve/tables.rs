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

/// A route at a listener, with what was made of it.
#[derive(Clone)]
pub(super) struct Attached<'a> {
    pub(super) route: &'a Route<'a>,
    pub(super) rules: Vec<Ranked>,
    pub(super) connections: Vec<WeightedBackend>,
}

/// A listener with its routes, the oldest first.
pub(super) struct Place<'a> {
    pub(super) listener: &'a ListenerPlan<'a>,
    /// None if the listener is not served.
    pub(super) attached: Vec<Attached<'a>>,
}

/// Whether a listener owns a host among those of its port.
fn owns(own: &ListenerPlan<'_>, all: &[Place<'_>], host: &str) -> bool {
    let covering = all.iter().filter(|one| covers(&one.listener.host, host));
    let best = covering.max_by_key(|one| specificity(&one.listener.host));
    best.is_some_and(|best| std::ptr::eq(best.listener, own))
}

/// The hosts of a listener for requests. `all`: those whose hosts are distinct from its own. Hosts
/// with the same rules are together.
pub(super) fn hosts(place: &Place<'_>, all: &[Place<'_>]) -> Vec<VirtualHost> {
    let own = place.listener;
    let mut domains = BTreeSet::from([own.host.clone()]);
    for attached in &place.attached {
        let hosts = attached.route.hosts_at(&own.host).into_iter();
        domains.extend(hosts.filter(|host| owns(own, all, host)));
    }
    let mut by_rules = BTreeMap::<_, Vec<_>>::new();
    for domain in domains {
        let rules = rules_for(&domain, &place.attached);
        by_rules.entry(rules).or_default().push(domain);
    }
    let hosts = by_rules.into_iter().map(|(rules, domains)| {
        let rules = rules.into_iter();
        VirtualHost {
            domains,
            rules: rules
                .map(|(route, rule)| place.attached[route].rules[rule].rule.clone())
                .collect(),
            otherwise: NOT_FOUND,
        }
    });
    hosts.collect()
}

/// The rules of all routes whose hosts cover a domain, in the order in which they are tried: the
/// route with the more specific host first. Requests that none of its rules matches are for the
/// routes with the next one. Each is named by the places of its route and of itself.
fn rules_for(domain: &str, attached: &[Attached<'_>]) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    for (route, one) in attached.iter().enumerate() {
        if let Some(host) = one.route.host_for(domain) {
            let rules = one.rules.iter().enumerate();
            all.extend(rules.map(|(rule, ranked)| {
                let rank = (specificity(host), ranked.rank);
                (Reverse(rank), (route, rule))
            }));
        }
    }
    // Among equals, the rules of older routes come first, and those of a route in their order.
    all.sort_unstable();
    all.into_iter().map(|(_, rule)| rule).collect()
}

/// The hosts of a listener whose connections are chosen by server name. A client may send requests
/// for another listener's host on them, which are answered with 421: it shall open another
/// connection.
pub(super) fn hosts_by_name(place: &Place<'_>, all: &[Place<'_>]) -> Vec<VirtualHost> {
    let mut hosts = hosts(place, all);
    let others = all.iter().map(|one| one.listener);
    let others = others.filter(|other| {
        other.protocol == Some(Protocol::Https) && !std::ptr::eq(*other, place.listener)
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
    hosts
}

/// The server names of a listener for connections, each with where they go: to the backends of the
/// oldest route that has the name. Those of the listener that no route has are closed.
pub(super) fn server_names(
    place: &Place<'_>,
    all: &[Place<'_>],
) -> BTreeMap<String, Vec<WeightedBackend>> {
    let own = place.listener;
    let mut names = BTreeMap::<String, Vec<WeightedBackend>>::new();
    for attached in &place.attached {
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
