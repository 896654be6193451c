//! What holds for every cluster.

use std::collections::{BTreeMap, BTreeSet};

use legate_gateway_api::{Key, Outcome, RouteKind, World, resolve};
use legate_routes::{
    Action, Certificate, Content, Frontend, Listener, Rule, Target, Tls, WeightedBackend,
};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::clusters::{documents, world};
use crate::support::{Asked, Met, get};

fn content_backends(content: &Content) -> Vec<&WeightedBackend> {
    match content {
        Content::Tcp(all) => all.iter().collect(),
        Content::Http(hosts) => {
            let rules = hosts.iter().flat_map(|host| &host.rules);
            rules
                .flat_map(|rule| match &rule.action {
                    Action::Forward(all) => &all[..],
                    _ => &[],
                })
                .collect()
        }
    }
}

fn rules(listener: &Listener) -> impl Iterator<Item = &Rule> {
    let hosts = listener.contents.iter().flat_map(|content| match content {
        Content::Http(hosts) => &hosts[..],
        Content::Tcp(_) => &[],
    });
    hosts.flat_map(|host| &host.rules)
}

/// Whether a kind of one namespace may refer to a kind of another one.
fn is_granted(world: &World, (kind, from): (&str, &str), (to, namespace): (&str, &str)) -> bool {
    let grants = world
        .grants
        .iter()
        .filter(|grant| grant.meta.namespace == namespace);
    from == namespace
        || grants.into_iter().any(|grant| {
            grant
                .spec
                .from
                .iter()
                .any(|one| one.kind == kind && one.namespace == from)
                && grant.spec.to.iter().any(|one| one.kind == to)
        })
}

/// Envoy refuses a port with a name twice, in routes or in filter chains.
fn check_names(listener: &Listener) {
    assert!(!listener.chains.is_empty(), "{listener:?}");
    // It can be stored.
    let valid = listener.validate().map_err(|error| error.to_string());
    assert_eq!(valid, Ok(()), "{listener:?}");
    let mut names = BTreeSet::new();
    for chain in &listener.chains {
        assert!(chain.content < listener.contents.len());
        for name in &chain.server_names {
            assert!(names.insert(name), "{name} twice: {listener:?}");
        }
    }
    let without = listener
        .chains
        .iter()
        .filter(|chain| chain.server_names.is_empty());
    assert!(without.count() <= 1, "{listener:?}");
    for content in &listener.contents {
        let Content::Http(hosts) = content else {
            continue;
        };
        let mut domains = BTreeSet::new();
        for domain in hosts.iter().flat_map(|host| &host.domains) {
            assert!(domains.insert(domain), "{domain} twice: {hosts:?}");
        }
    }
}

/// What leads to another namespace has a grant.
fn check_grants(world: &World, outcome: &Outcome) {
    let kinds: BTreeMap<_, _> = outcome.routes.keys().map(|id| (&id.key, id.kind)).collect();
    let check_rule = |rule: &Rule, parent: Option<&Frontend>| {
        let route = &rule.origin.route;
        let from = Key::new(&route.tenancy.namespace, &route.name);
        let Action::Forward(all) = &rule.action else {
            return;
        };
        for backend in all {
            let Target::Backend(backend) = &backend.target else {
                continue;
            };
            // Callers reach the Service of a frontend without a route, too.
            let is_parent = |parent: &Frontend| {
                (&parent.namespace, &parent.name) == (&backend.namespace, &backend.name)
            };
            let kind = kinds.get(&from).map_or("", |kind| kind.as_str());
            let to = ("Service", &*backend.namespace);
            let permitted =
                parent.is_some_and(is_parent) || is_granted(world, (kind, &from.namespace), to);
            assert!(permitted, "{rule:?}");
        }
    };
    for served in &outcome.frontends {
        let frontend = &served.frontend;
        assert_eq!(
            frontend.validate().map_err(|error| error.to_string()),
            Ok(())
        );
        for listener in &served.listeners {
            check_names(listener);
            rules(listener).for_each(|rule| check_rule(rule, Some(frontend)));
        }
    }
    for (gateway, served) in &outcome.served {
        for listener in &served.listeners {
            check_names(listener);
            rules(listener).for_each(|rule| check_rule(rule, None));
            let chains = listener.chains.iter();
            let terminated = chains.filter_map(|chain| match &chain.tls {
                Tls::Terminated(tls) => Some(tls),
                Tls::None | Tls::PassedThrough => None,
            });
            for certificate in terminated.flat_map(|tls| &tls.certificates) {
                let Certificate::Secret(name) = certificate else {
                    panic!("{certificate:?}")
                };
                let namespace = name.split('/').nth(1).unwrap();
                let to = ("Secret", namespace);
                let sets = world.listener_sets.iter().map(|set| &*set.meta.namespace);
                let mut own = sets.map(|set| ("ListenerSet", set));
                let permitted = is_granted(world, ("Gateway", &gateway.namespace), to)
                    || own.any(|from| is_granted(world, from, to));
                assert!(permitted, "{name}");
            }
        }
    }
}

/// Each reference of a route to a gateway of this controller or to a Service has one verdict.
fn check_parents(world: &World, outcome: &Outcome) {
    let count = |namespace: &str, parents: &[legate_gateway_api::types::ParentReference]| {
        let own = parents.iter().filter(|parent| {
            let namespace = parent.namespace.as_deref().unwrap_or(namespace);
            let key = Key::new(namespace, &parent.name);
            match parent.kind.as_deref() {
                Some("Service") => true,
                Some("ListenerSet") => outcome.listener_sets.contains_key(&key),
                _ => outcome.gateways.contains_key(&key),
            }
        });
        own.count()
    };
    let mut expected = BTreeMap::new();
    let mut add = |kind, meta: &legate_gateway_api::Meta, parents: &[_]| {
        expected.insert((kind, meta.key()), count(&meta.namespace, parents));
    };
    for route in &world.http_routes {
        add(RouteKind::Http, &route.meta, &route.spec.parent_refs);
    }
    for route in &world.grpc_routes {
        add(RouteKind::Grpc, &route.meta, &route.spec.parent_refs);
    }
    for route in &world.tls_routes {
        add(RouteKind::Tls, &route.meta, &route.spec.parent_refs);
    }
    for route in &world.tcp_routes {
        add(RouteKind::Tcp, &route.meta, &route.spec.parent_refs);
    }
    for route in &world.udp_routes {
        add(RouteKind::Udp, &route.meta, &route.spec.parent_refs);
    }
    expected.retain(|_, count| *count > 0);
    let found = outcome.routes.iter();
    let found: BTreeMap<_, _> = found
        .map(|(id, verdict)| ((id.kind, id.key.clone()), verdict.parents.len()))
        .collect();
    assert_eq!(found, expected);
    for parent in outcome.routes.values().flat_map(|verdict| &verdict.parents) {
        let kinds: Vec<_> = parent.conditions.iter().map(|one| one.kind).collect();
        assert_eq!(kinds[..2], ["Accepted", "ResolvedRefs"]);
    }
}

/// A host that has rules of a route has all of them.
fn check_completeness(world: &World, outcome: &Outcome) {
    let mut written = BTreeMap::new();
    for route in &world.http_routes {
        let conditions = route
            .spec
            .rules
            .iter()
            .map(|rule| rule.matches.len().max(1));
        written.insert(route.meta.key(), conditions.sum::<usize>());
    }
    let of_gateways = outcome.served.values().flat_map(|one| &one.listeners);
    let of_services = outcome.frontends.iter().flat_map(|one| &one.listeners);
    for listener in of_gateways.chain(of_services) {
        for content in &listener.contents {
            let Content::Http(hosts) = content else {
                continue;
            };
            for host in hosts {
                let mut found = BTreeMap::<_, usize>::new();
                for rule in &host.rules {
                    let route = &rule.origin.route;
                    let key = Key::new(&route.tenancy.namespace, &route.name);
                    *found.entry(key).or_default() += 1;
                }
                for (key, count) in found {
                    if let Some(written) = written.get(&key) {
                        assert_eq!(count, *written, "{key} at {:?}", host.domains);
                    }
                }
            }
        }
        let all = listener.contents.iter().flat_map(content_backends);
        for backend in all {
            assert!(backend.weight > 0);
        }
    }
}

/// Replaces what is at some place of an object.
fn replace(value: &mut Value, path: &[usize], odd: Value) {
    let Some((first, rest)) = path.split_first() else {
        *value = odd;
        return;
    };
    let inner = match value {
        Value::Array(items) if !items.is_empty() => {
            let at = first % items.len();
            &mut items[at]
        }
        Value::Object(fields) if !fields.is_empty() => {
            let at = first % fields.len();
            fields.values_mut().nth(at).unwrap()
        }
        _ => {
            *value = odd;
            return;
        }
    };
    replace(inner, rest, odd);
}

fn odd() -> impl Strategy<Value = Value> {
    select(vec![
        Value::Null,
        json!(""),
        json!("*"),
        json!("\u{0}%\r\n"),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(1.5),
        json!(true),
        json!([]),
        json!([{}]),
        json!({"x": {"y": 1}}),
    ])
}

/// Deletes the first, second, ... object that others refer to, and says whether there was one.
fn delete(world: &mut World, at: usize) -> bool {
    fn nth<T>(all: &mut BTreeMap<Key, T>, at: usize) -> bool {
        let key = all.keys().nth(at).cloned();
        key.is_some_and(|key| all.remove(&key).is_some())
    }
    let (services, certificates) = (world.services.len(), world.certificates.len());
    let authorities = world.authorities.len();
    if at < services {
        return nth(&mut world.services, at);
    }
    let at = at - services;
    if at < certificates {
        return nth(&mut world.certificates, at);
    }
    let at = at - certificates;
    if at < authorities {
        return nth(&mut world.authorities, at);
    }
    let at = at - authorities;
    if at < world.grants.len() {
        world.grants.remove(at);
        return true;
    }
    false
}

/// What each gateway and each frontend has.
fn listeners(outcome: &Outcome) -> BTreeMap<String, &[Listener]> {
    let gateways = outcome.served.iter();
    let gateways = gateways.map(|(key, served)| (key.to_string(), &served.listeners[..]));
    let frontends = outcome.frontends.iter();
    let frontends = frontends.map(|one| (format!("{:?}", one.frontend), &one.listeners[..]));
    gateways.chain(frontends).collect()
}

/// The backends that get a request.
fn reached(listeners: Option<&&[Listener]>, asked: Asked<'_>) -> BTreeSet<String> {
    let Met::Backends(all, _) = Met::new(listeners.copied().unwrap_or_default(), asked) else {
        return BTreeSet::new();
    };
    let usable = all
        .iter()
        .filter(|one| !matches!(one.target, Target::Answer(_)));
    usable.map(|one| format!("{:?}", one.target)).collect()
}

/// Without something that was referred to, requests are refused: they reach no other backend, and
/// none in another way.
fn check_deletion(before: &Outcome, after: &Outcome) {
    let (before, after) = (listeners(before), listeners(after));
    for name in before.keys().chain(after.keys()) {
        for host in ["a.test", "b.test", "x.b.test", "else"] {
            for path in ["/", "/a", "/b"] {
                for (port, server_name) in [(80, ""), (80, host), (443, ""), (443, host)] {
                    let asked = Asked {
                        port,
                        server_name,
                        ..get(host, path)
                    };
                    let now = reached(after.get(name), asked);
                    let then = reached(before.get(name), asked);
                    assert!(
                        now.is_subset(&then),
                        "{name} {asked:?}: {now:?}, not {then:?}"
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn without_what_they_need_requests_reach_nothing_else(documents in documents()) {
        let world = world(&documents);
        let before = resolve(&world);
        for at in 0.. {
            let mut without = world.clone();
            if !delete(&mut without, at) {
                break;
            }
            check_deletion(&before, &resolve(&without));
        }
    }

    #[test]
    fn odd_objects_are_answered_as_well(
        mut documents in documents(),
        changes in prop::collection::vec(
            (0_usize..20, prop::collection::vec(0_usize..8, 0..6), odd()), 1..4,
        ),
    ) {
        for (at, path, odd) in changes {
            let at = at % documents.len();
            let part = if path.len() % 5 == 4 { "metadata" } else { "spec" };
            replace(&mut documents[at][part], &path, odd);
        }
        let world = world(&documents);
        let outcome = resolve(&world);
        for listener in listeners(&outcome).into_values().flatten() {
            check_names(listener);
        }
    }

    #[test]
    fn every_cluster_is_resolved((documents, shuffled) in documents().prop_flat_map(|documents| {
        (Just(documents.clone()), Just(documents).prop_shuffle())
    })) {
        let world = world(&documents);
        let outcome = resolve(&world);
        check_grants(&world, &outcome);
        check_parents(&world, &outcome);
        check_completeness(&world, &outcome);
        // Gateways come first in both, because their proxies know the ListenerSets.
        let mut shuffled = shuffled;
        shuffled.sort_by_key(|one| one["kind"] != "Gateway");
        prop_assert_eq!(outcome, resolve(&crate::clusters::world(&shuffled)));
    }
}
