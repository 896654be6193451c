//! ListenerSets: who may add listeners, and whose listener wins.

use legate_gateway_api::{Key, Outcome, RouteKind};
use serde_json::{Value, json};

use crate::clusters::{grant, later, object};
use crate::support::{
    ask, gateway, get, listener, of_gateway, of_route, resolved, route, short, to,
};

const GOOD: &str = "Accepted Programmed";

fn set(name: &str, listeners: Value) -> Value {
    let parent = json!({"name": "gw", "namespace": "infra"});
    let spec = json!({"parentRef": parent, "listeners": listeners});
    object("ListenerSet", name, spec)
}

fn open(mut gateway: Value, from: &str) -> Value {
    gateway["spec"]["allowedListeners"] = json!({"namespaces": {"from": from}});
    gateway
}

/// What is said of a ListenerSet, and of each of its listeners.
fn of_set(outcome: &Outcome, name: &str) -> Vec<String> {
    let (namespace, name) = name.split_once('/').unwrap_or(("infra", name));
    let verdict = &outcome.listener_sets[&Key::new(namespace, name)];
    let mut lines = vec![short(&verdict.conditions)];
    let listeners = verdict.listeners.iter();
    lines.extend(listeners.map(|one| format!("{}: {}", one.name, short(&one.conditions))));
    lines
}

fn attached(outcome: &Outcome) -> usize {
    outcome.gateways[&Key::new("infra", "gw")].attached_listener_sets
}

#[test]
fn the_gateway_says_which_may_add_listeners() {
    let own = gateway(json!([listener("own", 80, "HTTP", "own.test")]));
    let sets = [
        set("here", json!([listener("one", 80, "HTTP", "one.test")])),
        set(
            "other/there",
            json!([listener("two", 80, "HTTP", "two.test")]),
        ),
    ];
    let no = "!Accepted:NotAllowed !Programmed:NotAllowed";
    for (from, here, there) in [
        (None, no, no),
        (Some("None"), no, no),
        (Some("Same"), GOOD, no),
        (Some("All"), GOOD, GOOD),
    ] {
        let gateway = from.map_or(own.clone(), |from| open(own.clone(), from));
        let outcome = resolved(&[gateway, sets[0].clone(), sets[1].clone()]);
        assert_eq!(of_set(&outcome, "here")[0], here, "{from:?}");
        assert_eq!(of_set(&outcome, "other/there")[0], there, "{from:?}");
        let expected = [here, there].iter().filter(|said| **said == GOOD).count();
        assert_eq!(attached(&outcome), expected, "{from:?}");
    }
    let mut gateway = own;
    gateway["spec"]["allowedListeners"] = json!({"namespaces": {
        "from": "Selector", "selector": {"matchLabels": {"open": "yes"}},
    }});
    let mut namespace = object("Namespace", "/other", json!({}));
    namespace["metadata"]["labels"] = json!({"open": "yes"});
    let outcome = resolved(&[gateway, namespace, sets[0].clone(), sets[1].clone()]);
    assert_eq!(of_set(&outcome, "here")[0], no);
    assert_eq!(of_set(&outcome, "other/there")[0], GOOD);
}

#[test]
fn the_gateway_and_older_sets_keep_their_listeners() {
    for (protocol, reason) in [("HTTP", "HostnameConflict"), ("TCP", "ProtocolConflict")] {
        let conflict = |name: &str, host: &str| match protocol {
            "HTTP" => listener(name, 80, "HTTP", host),
            _ => listener(name, 80, "TCP", ""),
        };
        let outcome = resolved(&[
            open(
                gateway(json!([
                    listener("own", 80, "HTTP", "own.test"),
                    listener("first", 80, "HTTP", "first.test"),
                ])),
                "Same",
            ),
            later(
                1,
                set(
                    "a",
                    json!([
                        listener("a", 80, "HTTP", "a.test"),
                        conflict("lost", "first.test"),
                        listener("kept", 80, "HTTP", "kept.test"),
                    ]),
                ),
            ),
            later(2, set("b", json!([conflict("lost", "first.test")]))),
            later(
                3,
                set(
                    "c",
                    json!([
                        listener("c", 80, "HTTP", "c.test"),
                        conflict("lost", "kept.test"),
                    ]),
                ),
            ),
            later(3, set("d", json!([conflict("lost", "kept.test")]))),
        ]);
        let good = "Accepted Programmed ResolvedRefs";
        let lost = format!(
            "lost: !Accepted:{reason} !Programmed:{reason} ResolvedRefs Conflicted:{reason}"
        );
        let partly = "Accepted:ListenersNotValid Programmed".to_owned();
        let nothing = "!Accepted:ListenersNotValid !Programmed:ListenersNotValid".to_owned();
        assert_eq!(of_gateway(&outcome)[0], GOOD);
        let (a, kept, c) = (
            format!("a: {good}"),
            format!("kept: {good}"),
            format!("c: {good}"),
        );
        assert_eq!(
            of_set(&outcome, "a"),
            [partly.clone(), a, lost.clone(), kept]
        );
        assert_eq!(of_set(&outcome, "b"), [nothing.clone(), lost.clone()]);
        assert_eq!(of_set(&outcome, "c"), [partly, c, lost.clone()]);
        assert_eq!(of_set(&outcome, "d"), [nothing, lost]);
        assert_eq!(attached(&outcome), 2);
    }
}

/// A route for a gateway reaches only the gateway's own listeners.
#[test]
fn routes_name_the_gateway_or_the_set() {
    let to_set = |name: &str, parents: Value, service: &str| {
        let mut route = route("HTTPRoute", name, json!([]), json!([to("/", service)]));
        route["spec"]["parentRefs"] = parents;
        route
    };
    let set_ref =
        |section: Value| json!({"kind": "ListenerSet", "name": "s", "sectionName": section});
    let outcome = resolved(&[
        open(
            gateway(json!([listener("own", 80, "HTTP", "own.test")])),
            "Same",
        ),
        set(
            "s",
            json!([
                listener("one", 80, "HTTP", "one.test"),
                listener("two", 80, "HTTP", "two.test"),
            ]),
        ),
        to_set("gw", json!([{"name": "gw"}]), "a"),
        to_set("set", json!([set_ref(json!("one"))]), "b"),
        to_set(
            "both",
            json!([{"name": "gw", "sectionName": "one"}, set_ref(json!("two"))]),
            "c",
        ),
    ]);
    let good = "Accepted ResolvedRefs";
    assert_eq!(of_route(&outcome, RouteKind::Http, "gw"), [good]);
    assert_eq!(of_route(&outcome, RouteKind::Http, "set"), [good]);
    assert_eq!(
        of_route(&outcome, RouteKind::Http, "both"),
        ["!Accepted:NoMatchingParent ResolvedRefs", good]
    );
    for (host, expected) in [
        ("own.test", "infra/a:80"),
        ("one.test", "infra/b:80"),
        ("two.test", "infra/c:80"),
        ("else", "404"),
    ] {
        assert_eq!(ask(&outcome, get(host, "/")), expected, "{host}");
    }
}

#[test]
fn a_set_is_the_namespace_of_its_listeners() {
    let mut same = listener("one", 80, "HTTP", "one.test");
    same["allowedRoutes"] = json!({"namespaces": {"from": "Same"}});
    let to_set = |name: &str| {
        let mut route = route("HTTPRoute", name, json!([]), json!([to("/", "a")]));
        route["spec"]["parentRefs"] =
            json!([{"kind": "ListenerSet", "name": "s", "namespace": "other"}]);
        route
    };
    let outcome = resolved(&[
        open(
            gateway(json!([listener("own", 80, "HTTP", "own.test")])),
            "All",
        ),
        set("other/s", json!([same])),
        to_set("r"),
        to_set("other/r"),
    ]);
    let refused = "!Accepted:NotAllowedByListeners ResolvedRefs";
    assert_eq!(of_route(&outcome, RouteKind::Http, "r"), [refused]);
    assert_eq!(
        of_route(&outcome, RouteKind::Http, "other/r"),
        ["Accepted ResolvedRefs"]
    );
    assert_eq!(ask(&outcome, get("one.test", "/")), "other/a:80");
}

#[test]
fn grants_for_the_gateway_are_none_for_a_set() {
    let mut secure = listener("one", 443, "HTTPS", "one.test");
    secure["tls"]["certificateRefs"] = json!([{"name": "cert", "namespace": "infra"}]);
    let check = |kind: &str, expected: [&str; 2]| {
        let secret = json!({"group": "", "kind": "Secret"});
        let outcome = resolved(&[
            open(gateway(json!([listener("own", 80, "HTTP", "")])), "All"),
            set("other/s", json!([secure])),
            grant("infra", (kind, "other"), secret),
        ]);
        assert_eq!(of_set(&outcome, "other/s"), expected);
    };
    check(
        "ListenerSet",
        [GOOD, "one: Accepted Programmed ResolvedRefs"],
    );
    check(
        "Gateway",
        [
            "!Accepted:ListenersNotValid !Programmed:ListenersNotValid",
            "one: Accepted !Programmed:Invalid !ResolvedRefs:RefNotPermitted",
        ],
    );
}
