//! Where HTTPRoutes are attached, and which of them gets a request.

use legate_gateway_api::{RouteKind, resolve};
use serde_json::{Value, json};

use crate::clusters::{grant, later, object, world};
use crate::support::{
    Asked, ask, gateway, get, listener, of_gateway, of_route, resolved, route, to,
};

const GOOD: &str = "Accepted ResolvedRefs";

fn http(name: &str, hostnames: Value, rules: Value) -> Value {
    route("HTTPRoute", name, hostnames, rules)
}

fn said(objects: &[Value], name: &str) -> Vec<String> {
    of_route(&resolved(objects), RouteKind::Http, name)
}

fn attached(objects: &[Value]) -> Vec<usize> {
    let outcome = resolved(objects);
    let gateway = outcome.gateways.values().next().unwrap();
    gateway
        .listeners
        .iter()
        .map(|one| one.attached_routes)
        .collect()
}

#[test]
fn a_route_is_attached_by_name_and_port() {
    let gateway = gateway(json!([
        listener("a", 80, "HTTP", ""),
        listener("b", 8080, "HTTP", ""),
    ]));
    for (section, port, expected, counts) in [
        (None, None, GOOD, [1, 1]),
        (Some("a"), None, GOOD, [1, 0]),
        (None, Some(8080), GOOD, [0, 1]),
        (Some("b"), Some(8080), GOOD, [0, 1]),
        (
            Some("a"),
            Some(8080),
            "!Accepted:NoMatchingParent ResolvedRefs",
            [0, 0],
        ),
        (
            Some("c"),
            None,
            "!Accepted:NoMatchingParent ResolvedRefs",
            [0, 0],
        ),
    ] {
        let mut route = http("r", json!([]), json!([to("/", "a")]));
        let parent = &mut route["spec"]["parentRefs"][0];
        parent["sectionName"] = json!(section);
        parent["port"] = json!(port);
        let objects = [gateway.clone(), route];
        assert_eq!(said(&objects, "r"), [expected], "{section:?} {port:?}");
        assert_eq!(attached(&objects), counts, "{section:?} {port:?}");
    }
}

#[test]
fn each_reference_has_a_verdict_of_its_own() {
    let gateway = gateway(json!([listener("a", 80, "HTTP", "")]));
    let mut route = http("r", json!([]), json!([to("/", "a")]));
    route["spec"]["parentRefs"] = json!([
        {"name": "gw", "sectionName": "missing"},
        {"name": "gw", "sectionName": "a"},
        {"name": "gw"},
        {"name": "unknown"},
        {"name": "a", "group": "", "kind": "Service"},
    ]);
    let objects = [gateway, route];
    assert_eq!(
        said(&objects, "r"),
        ["!Accepted:NoMatchingParent ResolvedRefs", GOOD, GOOD, GOOD]
    );
    assert_eq!(attached(&objects), [1]);
}

#[test]
fn listeners_choose_namespaces_and_kinds() {
    let in_other = |from: Value, labels: Value| {
        let mut one = listener("one", 80, "HTTP", "");
        one["allowedRoutes"]["namespaces"] = from;
        let mut namespace = object("Namespace", "/other", json!({}));
        namespace["metadata"]["labels"] = labels;
        let route = http("other/r", json!([]), json!([to("/", "a")]));
        said(&[gateway(json!([one])), namespace, route], "other/r")
    };
    let refused = "!Accepted:NotAllowedByListeners ResolvedRefs";
    let labels = json!({"team": "a"});
    let selector = |selector: Value| json!({"from": "Selector", "selector": selector});
    let expression = |operator: &str, values: &[&str]| {
        let one = json!({"key": "team", "operator": operator, "values": values});
        selector(json!({"matchExpressions": [one]}))
    };
    for (from, expected) in [
        (json!({"from": "All"}), GOOD),
        (json!({"from": "Same"}), refused),
        (json!({}), refused),
        (json!({"from": "Odd"}), refused),
        (selector(json!({"matchLabels": {"team": "a"}})), GOOD),
        (selector(json!({"matchLabels": {"team": "b"}})), refused),
        (expression("In", &["a", "b"]), GOOD),
        (expression("NotIn", &["a"]), refused),
        (expression("Exists", &[]), GOOD),
        (expression("DoesNotExist", &[]), refused),
        (expression("Odd", &[]), refused),
        (json!({"from": "Selector"}), refused),
    ] {
        assert_eq!(in_other(from.clone(), labels.clone()), [expected], "{from}");
    }
    let mut grpc_only = listener("one", 80, "HTTP", "");
    grpc_only["allowedRoutes"]["kinds"] = json!([{"kind": "GRPCRoute"}]);
    for listener in [
        listener("one", 443, "TLS", ""),
        listener("one", 80, "TCP", ""),
        grpc_only,
    ] {
        let route = http("r", json!([]), json!([to("/", "a")]));
        let objects = [gateway(json!([listener])), route];
        assert_eq!(said(&objects, "r"), [refused]);
        assert_eq!(attached(&objects), [0]);
    }
}

#[test]
fn routes_are_counted_although_nothing_can_be_served() {
    let mut broken = listener("tls", 443, "HTTPS", "");
    broken["tls"]["certificateRefs"] = json!([{"name": "missing"}]);
    let route = http("r", json!([]), json!([to("/", "missing")]));
    let objects = [gateway(json!([broken])), route];
    assert_eq!(attached(&objects), [1]);
    assert_eq!(
        said(&objects, "r"),
        ["Accepted !ResolvedRefs:BackendNotFound"]
    );
}

/// The hosts of listeners and routes that have something in common.
#[test]
fn hosts_of_listener_and_route_intersect() {
    let gateway = gateway(json!([
        listener("exact", 80, "HTTP", "very.specific.test"),
        listener("wildcard", 80, "HTTP", "*.wildcard.test"),
        listener("any-wildcard", 80, "HTTP", "*.anywild.test"),
    ]));
    let named = |name: &str, section: &str, hosts: &[&str], service: &str| {
        let mut route = http(name, json!(hosts), json!([to("/", service)]));
        route["spec"]["parentRefs"][0]["sectionName"] = json!(section);
        route
    };
    let objects = [
        gateway,
        named(
            "r1",
            "exact",
            &["non.matching.test", "*.specific.test"],
            "a",
        ),
        named(
            "r2",
            "wildcard",
            &["one.wildcard.test", "wildcard.test"],
            "b",
        ),
        named(
            "r3",
            "any-wildcard",
            &["*.anywild.test", "foo.bar.anywild.test"],
            "c",
        ),
        named("r4", "exact", &["*.other.test", "specific.test"], "a"),
    ];
    assert_eq!(said(&objects, "r1"), [GOOD]);
    let none = "!Accepted:NoMatchingListenerHostname ResolvedRefs";
    assert_eq!(said(&objects, "r4"), [none]);
    assert_eq!(attached(&objects), [1, 1, 1]);
    let outcome = resolved(&objects);
    for (host, expected) in [
        ("very.specific.test", "infra/a:80"),
        ("non.matching.test", "404"),
        ("foo.specific.test", "404"),
        ("one.wildcard.test", "infra/b:80"),
        ("two.wildcard.test", "404"),
        ("wildcard.test", "404"),
        ("foo.anywild.test", "infra/c:80"),
        ("foo.bar.anywild.test", "infra/c:80"),
        ("anywild.test", "404"),
    ] {
        assert_eq!(ask(&outcome, get(host, "/")), expected, "{host}");
    }
}

/// Four listeners, each with a route for its own path: the most specific one has a host alone.
#[test]
fn listeners_are_isolated() {
    let listeners = [
        ("empty", ""),
        ("example", "*.example.com"),
        ("foo", "*.foo.example.com"),
        ("abc", "abc.foo.example.com"),
    ];
    let check = |hostnames: &[&str]| {
        let mut objects = vec![gateway(json!(
            listeners.map(|(name, host)| listener(name, 80, "HTTP", host))
        ))];
        for (name, _) in listeners {
            let mut route = http(
                name,
                json!(hostnames),
                json!([to(&format!("/{name}"), "a")]),
            );
            route["spec"]["parentRefs"][0]["sectionName"] = json!(name);
            objects.push(route);
        }
        let outcome = resolved(&objects);
        for (host, owner) in [
            ("bar.com", "empty"),
            ("bar.example.com", "example"),
            ("bar.foo.example.com", "foo"),
            ("abc.foo.example.com", "abc"),
        ] {
            for (path, _) in listeners {
                let served = hostnames.is_empty() || hostnames.contains(&host);
                let expected = if path == owner && served {
                    "infra/a:80"
                } else {
                    "404"
                };
                let asked = ask(&outcome, get(host, &format!("/{path}")));
                assert_eq!(asked, expected, "{host} /{path}");
            }
        }
    };
    check(&[]);
    check(&[
        "bar.com",
        "bar.example.com",
        "bar.foo.example.com",
        "abc.foo.example.com",
    ]);
}

/// A client may send a request on a connection for another host.
#[test]
fn misdirected_requests_are_told_so() {
    let mut objects = vec![gateway(json!([
        listener("https", 443, "HTTPS", ""),
        listener("second", 443, "HTTPS", "second-example.org"),
        listener("wildcard", 443, "HTTPS", "*.wildcard.org"),
        listener("fourth", 443, "HTTPS", "fourth-example.wildcard.org"),
    ]))];
    for (section, service, hostnames) in [
        ("https", "a", json!(["example.org"])),
        ("second", "b", json!([])),
        ("wildcard", "c", json!([])),
        ("fourth", "a", json!([])),
    ] {
        let mut route = http(section, hostnames, json!([to("/detect", service)]));
        route["spec"]["parentRefs"][0]["sectionName"] = json!(section);
        objects.push(route);
    }
    let outcome = resolved(&objects);
    for (server_name, host, expected) in [
        ("example.org", "example.org", "infra/a:80"),
        ("example.org", "second-example.org", "421"),
        ("example.org", "unknown-example.org", "404"),
        ("second-example.org", "second-example.org", "infra/b:80"),
        ("second-example.org", "example.org", "421"),
        ("second-example.org", "unknown-example.org", "421"),
        (
            "third-example.wildcard.org",
            "third-example.wildcard.org",
            "infra/c:80",
        ),
        (
            "third-example.wildcard.org",
            "fith-example.wildcard.org",
            "infra/c:80",
        ),
        (
            "third-example.wildcard.org",
            "fourth-example.wildcard.org",
            "421",
        ),
        ("third-example.wildcard.org", "second-example.org", "421"),
        ("third-example.wildcard.org", "unknown-example.org", "421"),
        (
            "fourth-example.wildcard.org",
            "fourth-example.wildcard.org",
            "infra/a:80",
        ),
        (
            "fourth-example.wildcard.org",
            "fith-example.wildcard.org",
            "421",
        ),
        ("unknown-example.org", "example.org", "infra/a:80"),
        ("unknown-example.org", "unknown-example.org", "404"),
    ] {
        let asked = Asked {
            port: 443,
            server_name,
            ..get(host, "/detect")
        };
        assert_eq!(ask(&outcome, asked), expected, "{server_name} {host}");
    }
}

#[test]
fn a_closed_listener_leaves_its_host_to_nobody() {
    let mut unverified = listener("strict", 443, "HTTPS", "strict.test");
    unverified["tls"]["certificateRefs"] = json!([{"name": "missing"}]);
    let mut odd = listener("odd", 80, "HTTP", "odd.test");
    odd["protection"] = json!("high");
    let objects = [
        gateway(json!([
            listener("any", 443, "HTTPS", ""),
            unverified,
            listener("plain", 80, "HTTP", ""),
            odd,
        ])),
        http("r", json!([]), json!([to("/", "a")])),
    ];
    let outcome = resolved(&objects);
    let on_tls = |server_name, host| Asked {
        port: 443,
        server_name,
        ..get(host, "/")
    };
    assert_eq!(
        ask(&outcome, on_tls("strict.test", "strict.test")),
        "closed"
    );
    assert_eq!(ask(&outcome, on_tls("a.test", "a.test")), "infra/a:80");
    assert_eq!(ask(&outcome, on_tls("a.test", "strict.test")), "421");
    assert_eq!(ask(&outcome, get("odd.test", "/")), "404");
    assert_eq!(ask(&outcome, get("a.test", "/")), "infra/a:80");
}

/// Requests that no rule of the more specific route matches are for the other one.
#[test]
fn the_route_with_the_more_specific_host_comes_first() {
    let gateway = gateway(json!([listener("one", 80, "HTTP", "")]));
    let objects = [
        gateway,
        http(
            "any",
            json!([]),
            json!([to("/long/path", "c"), to("/", "c")]),
        ),
        later(
            1,
            http("wide", json!(["*.test"]), json!([to("/long", "b")])),
        ),
        later(
            2,
            http(
                "own",
                json!(["a.test"]),
                json!([to("/l", "a"), to("/own", "a")]),
            ),
        ),
    ];
    let outcome = resolved(&objects);
    for (host, path, expected) in [
        ("a.test", "/own", "infra/a:80"),
        ("a.test", "/long/path", "infra/b:80"),
        ("a.test", "/else", "infra/c:80"),
        ("b.test", "/long", "infra/b:80"),
        ("b.test", "/own", "infra/c:80"),
        ("else", "/own", "infra/c:80"),
    ] {
        assert_eq!(ask(&outcome, get(host, path)), expected, "{host}{path}");
    }
}

#[test]
fn references_that_lead_nowhere_are_answered() {
    let gateway = gateway(json!([listener("one", 80, "HTTP", "")]));
    let other = |name: &str| json!({"name": name, "namespace": "other", "port": 80});
    for (reference, expected) in [
        (json!({"name": "missing", "port": 80}), "BackendNotFound"),
        (json!({"name": "a", "port": 8080}), "BackendNotFound"),
        (json!({"name": "a"}), "BackendNotFound"),
        (json!({"name": "a", "port": 53}), "BackendNotFound"),
        (
            json!({"name": "a", "kind": "Odd", "port": 80}),
            "InvalidKind",
        ),
        (
            json!({"name": "a", "group": "g", "port": 80}),
            "InvalidKind",
        ),
        (other("a"), "RefNotPermitted"),
        (other("missing"), "RefNotPermitted"),
    ] {
        let rules = json!([
            {"matches": [{"path": {"value": "/bad"}}], "backendRefs": [reference]},
            {
                "matches": [{"path": {"value": "/part"}}],
                "backendRefs": [reference, {"name": "b", "port": 80, "weight": 3}],
            },
            to("/", "a"),
        ]);
        let objects = [gateway.clone(), http("r", json!([]), rules)];
        let expected = format!("Accepted !ResolvedRefs:{expected}");
        assert_eq!(said(&objects, "r"), [expected], "{reference}");
        let outcome = resolved(&objects);
        assert_eq!(ask(&outcome, get("a", "/bad")), "500");
        assert_eq!(ask(&outcome, get("a", "/part")), "500 3*infra/b:80");
        assert_eq!(ask(&outcome, get("a", "/")), "infra/a:80");
    }
}

#[test]
fn references_to_other_namespaces_need_a_grant() {
    let gateway = gateway(json!([listener("one", 80, "HTTP", "")]));
    let reference = json!({"name": "a", "namespace": "other", "port": 80});
    let route = http("r", json!([]), json!([{"backendRefs": [reference]}]));
    let service = json!({"group": "", "kind": "Service"});
    let from = ("HTTPRoute", "infra");
    for (grant, permits) in [
        (grant("other", from, service.clone()), true),
        (
            grant(
                "other",
                from,
                json!({"group": "", "kind": "Service", "name": "a"}),
            ),
            true,
        ),
        (
            grant(
                "other",
                from,
                json!({"group": "", "kind": "Service", "name": "b"}),
            ),
            false,
        ),
        (
            grant("other", from, json!({"group": "g", "kind": "Service"})),
            false,
        ),
        (
            grant("other", from, json!({"group": "", "kind": "Secret"})),
            false,
        ),
        (
            grant("other", ("GRPCRoute", "infra"), service.clone()),
            false,
        ),
        (
            grant("other", ("HTTPRoute", "other"), service.clone()),
            false,
        ),
        (grant("infra", from, service), false),
    ] {
        let objects = [gateway.clone(), grant.clone(), route.clone()];
        let (words, answer) = match permits {
            true => (GOOD, "other/a:80"),
            false => ("Accepted !ResolvedRefs:RefNotPermitted", "500"),
        };
        assert_eq!(said(&objects, "r"), [words], "{grant}");
        assert_eq!(ask(&resolved(&objects), get("a", "/")), answer, "{grant}");
    }
}

/// HTTPRoutes and GRPCRoutes do not share a host.
#[test]
fn the_older_of_two_kinds_has_a_host() {
    let gateway = gateway(json!([listener("one", 80, "HTTP", "")]));
    let grpc = |hosts: Value| {
        let rules = json!([{"backendRefs": [{"name": "b", "port": 80}]}]);
        later(1, route("GRPCRoute", "g", hosts, rules))
    };
    let own = http("h", json!(["a.test"]), json!([to("/", "a")]));
    let check = |objects: &[Value], http: &str, grpc: &str| {
        let outcome = resolved(objects);
        assert_eq!(of_route(&outcome, RouteKind::Http, "h"), [http]);
        assert_eq!(of_route(&outcome, RouteKind::Grpc, "g"), [grpc]);
    };
    let lost = "!Accepted:NotAllowedByListeners ResolvedRefs";
    check(
        &[gateway.clone(), own.clone(), grpc(json!(["*.test"]))],
        GOOD,
        lost,
    );
    check(
        &[gateway.clone(), own.clone(), grpc(json!(["b.test"]))],
        GOOD,
        GOOD,
    );
    check(&[gateway, later(2, own), grpc(json!([]))], lost, GOOD);
}

#[test]
fn a_broken_route_refuses_the_requests_of_its_hosts() {
    let mut broken = http("r", json!(["a.test"]), json!([]));
    broken["spec"]["rules"] = json!([{"timeouts": "soon"}]);
    let objects = [
        gateway(json!([listener("one", 80, "HTTP", "")])),
        broken,
        later(1, http("any", json!([]), json!([to("/", "a")]))),
    ];
    assert_eq!(
        said(&objects, "r"),
        ["!Accepted:UnsupportedValue ResolvedRefs"]
    );
    let outcome = resolved(&objects);
    assert_eq!(ask(&outcome, get("a.test", "/")), "500");
    assert_eq!(ask(&outcome, get("b.test", "/")), "infra/a:80");
    assert_eq!(
        of_gateway(&outcome)[1],
        "one [HTTPRoute GRPCRoute] 1: Accepted Programmed ResolvedRefs"
    );
}

#[test]
fn services_outside_of_the_cluster_are_no_backends() {
    let mut world = world(&[
        gateway(json!([listener("one", 80, "HTTP", "")])),
        http("r", json!([]), json!([to("/", "a")])),
    ]);
    let key = legate_gateway_api::Key::new("infra", "a");
    world.services.get_mut(&key).unwrap().external_name = true;
    let said = of_route(&resolve(&world), RouteKind::Http, "r");
    assert_eq!(said, ["Accepted !ResolvedRefs:BackendNotFound"]);
}

#[test]
fn a_mesh_service_is_a_service_of_the_mesh() {
    let reference = |name: &str| {
        json!([{"backendRefs": [{
            "group": "consul.hashicorp.com", "kind": "MeshService", "name": name,
        }]}])
    };
    let with = |name: &str| {
        let mut world = world(&[
            gateway(json!([listener("one", 80, "HTTP", "")])),
            http("r", json!([]), reference(name)),
        ]);
        let key = legate_gateway_api::Key::new("infra", "m");
        world.mesh_services.insert(key, "api".into());
        resolve(&world)
    };
    let outcome = with("m");
    assert_eq!(ask(&outcome, get("a", "/")), "api");
    assert_eq!(of_route(&outcome, RouteKind::Http, "r"), [GOOD]);
    let outcome = with("missing");
    assert_eq!(ask(&outcome, get("a", "/")), "500");
    let missing = "Accepted !ResolvedRefs:BackendNotFound";
    assert_eq!(of_route(&outcome, RouteKind::Http, "r"), [missing]);
}

/// A route for many hosts is repeated at each of them, but not without end.
#[test]
fn too_many_rules_do_not_fall_through() {
    let with = |hosts: usize| {
        let rules: Vec<_> = (0..16).map(|at| to(&format!("/{at}"), "a")).collect();
        let mut objects = vec![
            gateway(json!([listener("one", 80, "HTTP", "")])),
            http("any", json!(["*.test"]), json!(rules)),
        ];
        for at in 0..hosts {
            let hosts = json!([format!("h{at}.test")]);
            objects.push(http(&format!("r{at}"), hosts, json!([to("/own", "b")])));
        }
        resolved(&objects)
    };
    let few = with(10);
    assert_eq!(of_route(&few, RouteKind::Http, "any"), [GOOD]);
    assert_eq!(ask(&few, get("h1.test", "/own")), "infra/b:80");
    assert_eq!(ask(&few, get("h1.test", "/1")), "infra/a:80");
    let many = with(1_300);
    let said = of_route(&many, RouteKind::Http, "any");
    assert_eq!(said, ["Accepted ResolvedRefs !FallsThrough:TooManyRules"]);
    assert_eq!(of_route(&many, RouteKind::Http, "r1"), [GOOD]);
    assert_eq!(ask(&many, get("h1.test", "/own")), "infra/b:80");
    assert_eq!(ask(&many, get("h1.test", "/1")), "404");
    assert_eq!(ask(&many, get("else.test", "/1")), "infra/a:80");
}
