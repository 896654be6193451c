//! Routes with Services as parents: how callers in the mesh reach Services.

use legate_gateway_api::{Key, Outcome, RouteKind, ServedFrontend, Service, resolve};
use legate_routes::{Action, BackendProtocol, Content, HostPorts, Listener, Target, Tls};
use serde_json::{Value, json};

use crate::clusters::{grant, later, object, world};
use crate::support::{Asked, Met, backends, get, of_route, resolved, to};

const GOOD: &str = "Accepted ResolvedRefs";
const SERVED: &str = "infra/c";

/// A route for a Service of the namespace `infra`.
fn route(kind: &str, name: &str, parent: Value, rules: Value) -> Value {
    let mut reference = json!({"group": "", "kind": "Service", "namespace": "infra"});
    for (field, value) in parent.as_object().unwrap() {
        reference[field] = value.clone();
    }
    object(
        kind,
        name,
        json!({"parentRefs": [reference], "rules": rules}),
    )
}

/// The frontend of a Service for the callers of a namespace, or of all.
fn frontend<'a>(outcome: &'a Outcome, service: &str, callers: &str) -> Option<&'a ServedFrontend> {
    let mut all = outcome.frontends.iter();
    all.find(|one| {
        let frontend = &one.frontend;
        format!("{}/{}", frontend.namespace, frontend.name) == service
            && frontend.callers.as_deref().unwrap_or_default() == callers
    })
}

/// What happens to a request for a port of a Service.
fn called(outcome: &Outcome, (service, callers): (&str, &str), port: u16, path: &str) -> String {
    let Some(served) = frontend(outcome, service, callers) else {
        return "no frontend".to_owned();
    };
    let asked = Asked {
        port,
        ..get("anything", path)
    };
    match Met::new(&served.listeners, asked) {
        Met::Words(words) => words,
        Met::Backends(all, _) => backends(all),
    }
}

fn names(outcome: &Outcome) -> Vec<String> {
    let all = outcome.frontends.iter().map(|one| {
        let frontend = &one.frontend;
        let callers = frontend.callers.as_deref().unwrap_or("all");
        format!("{}/{} for {callers}", frontend.namespace, frontend.name)
    });
    all.collect()
}

fn said(outcome: &Outcome, name: &str) -> String {
    of_route(outcome, RouteKind::Http, name).remove(0)
}

fn protocol(listener: &Listener) -> BackendProtocol {
    let target = listener.targets().next().unwrap();
    let Target::Backend(backend) = target else {
        panic!("{target:?}")
    };
    backend.protocol
}

#[test]
fn without_routes_ports_lead_to_themselves() {
    let outcome = resolved(&[]);
    assert_eq!(names(&outcome), ["infra/c for all", "other/c for all"]);
    let served = frontend(&outcome, SERVED, "").unwrap();
    assert_eq!(
        served.frontend.validate().map_err(|e| e.to_string()),
        Ok(())
    );
    let ports: Vec<_> = served.listeners.iter().map(|one| one.port).collect();
    assert_eq!(ports, [80, 81, 443]);
    for port in ports {
        let expected = format!("infra/c:{port}");
        assert_eq!(called(&outcome, (SERVED, ""), port, "/"), expected);
    }
    let [http, h2c, https] = &served.listeners[..] else {
        panic!("{served:?}")
    };
    assert_eq!(protocol(http), BackendProtocol::Http1);
    assert_eq!(protocol(h2c), BackendProtocol::Http2);
    assert!(matches!(https.contents[..], [Content::Tcp(_)]));
    for listener in &served.listeners {
        assert_eq!(listener.host_ports, HostPorts::Any);
        assert!(matches!(&listener.chains[..], [one] if one.tls == Tls::None));
        assert_eq!(listener.validate().map_err(|e| e.to_string()), Ok(()));
    }
    // Callers decide how long they wait.
    let rule = http.rules().next().unwrap();
    assert!(rule.timeouts.request.unwrap().is_zero());
}

#[test]
fn protocols_are_those_that_ports_say() {
    for (written, expected) in [
        (Some("http"), Some(BackendProtocol::Http1)),
        (Some("ws"), Some(BackendProtocol::Http1)),
        (Some("kubernetes.io/ws"), Some(BackendProtocol::Http1)),
        (Some("http2"), Some(BackendProtocol::Http2)),
        (Some("grpc"), Some(BackendProtocol::Http2)),
        (Some("kubernetes.io/h2c"), Some(BackendProtocol::Http2)),
        (Some("kubernetes.io/wss"), None),
        (Some("mysql"), None),
        (None, None),
    ] {
        let mut world = world(&[]);
        let service = world.services.get_mut(&Key::new("infra", "c")).unwrap();
        service.ports.truncate(1);
        service.ports[0].app_protocol = written.map(str::to_owned);
        let outcome = resolve(&world);
        let listener = &frontend(&outcome, SERVED, "").unwrap().listeners[0];
        let is_http = matches!(listener.contents[..], [Content::Http(_)]);
        assert_eq!(is_http, expected.is_some(), "{written:?}");
        let expected = expected.unwrap_or(BackendProtocol::Tcp);
        assert_eq!(protocol(listener), expected, "{written:?}");
    }
}

#[test]
fn a_route_replaces_what_a_service_does() {
    let rules = json!([to("/b", "b"), to("/missing", "missing")]);
    let outcome = resolved(&[route("HTTPRoute", "r", json!({"name": "a"}), rules)]);
    assert_eq!(
        said(&outcome, "r"),
        "Accepted !ResolvedRefs:BackendNotFound"
    );
    for port in [80, 81, 443] {
        let ask = |path| called(&outcome, ("infra/a", ""), port, path);
        assert_eq!(ask("/b"), "infra/b:80");
        assert_eq!(ask("/missing"), "500");
        assert_eq!(ask("/"), "404");
    }
    // The Service as a backend is still itself: its frontend is for callers.
    assert_eq!(frontend(&outcome, "infra/b", ""), None);
}

#[test]
fn ports_without_routes_that_the_mesh_serves_are_named() {
    let mut world = world(&[
        route(
            "HTTPRoute",
            "r",
            json!({"name": "c", "port": 80}),
            json!([to("/", "b")]),
        ),
        route(
            "HTTPRoute",
            "other/s",
            json!({"name": "c", "port": 81}),
            json!([to("/", "b")]),
        ),
    ]);
    let service = world.services.get_mut(&Key::new("infra", "c")).unwrap();
    for port in service.ports.iter_mut().filter(|port| port.port != 443) {
        port.is_of_mesh = true;
    }
    let outcome = resolve(&world);
    let of = |callers| {
        let served = frontend(&outcome, SERVED, callers).unwrap();
        assert_eq!(
            served.listeners.len(),
            3,
            "callers without its chain have all"
        );
        served.frontend.mesh_ports.clone()
    };
    assert_eq!(of(""), [81]);
    assert!(of("other").is_empty(), "80 has a route for all");
}

#[test]
fn hosts_of_routes_mean_nothing_for_services() {
    let mut one = route(
        "HTTPRoute",
        "r",
        json!({"name": "a"}),
        json!([to("/", "b")]),
    );
    one["spec"]["hostnames"] = json!(["shop.test"]);
    let outcome = resolved(&[one]);
    assert_eq!(said(&outcome, "r"), GOOD);
    assert_eq!(called(&outcome, ("infra/a", ""), 80, "/"), "infra/b:80");
    let listener = &frontend(&outcome, "infra/a", "").unwrap().listeners[0];
    let [Content::Http(hosts)] = &listener.contents[..] else {
        panic!("{listener:?}")
    };
    assert_eq!(hosts.len(), 1);
    assert_eq!(hosts[0].domains, ["*"]);
}

#[test]
fn a_route_for_a_port_leaves_the_others() {
    for parent in [
        json!({"name": "c", "port": 80}),
        json!({"name": "c", "sectionName": "http"}),
    ] {
        let outcome = resolved(&[route("HTTPRoute", "r", parent, json!([to("/b", "b")]))]);
        assert_eq!(said(&outcome, "r"), GOOD);
        assert_eq!(called(&outcome, (SERVED, ""), 80, "/b"), "infra/b:80");
        assert_eq!(called(&outcome, (SERVED, ""), 80, "/"), "404");
        assert_eq!(called(&outcome, (SERVED, ""), 81, "/b"), "infra/c:81");
        assert_eq!(called(&outcome, (SERVED, ""), 443, "/b"), "infra/c:443");
    }
}

#[test]
fn among_routes_the_more_specific_condition_and_then_the_older_one_wins() {
    let parent = || json!({"name": "a"});
    let rules = json!([to("/x", "c"), to("/x/y", "b")]);
    let objects = [
        later(1, route("HTTPRoute", "young", parent(), rules)),
        route(
            "HTTPRoute",
            "old",
            parent(),
            json!([to("/x", "missing"), to("/", "a")]),
        ),
    ];
    let outcome = resolved(&objects);
    let ask = |path| called(&outcome, ("infra/a", ""), 80, path);
    assert_eq!(ask("/x/y"), "infra/b:80");
    // A rule that cannot be served keeps its place.
    assert_eq!(ask("/x"), "500");
    assert_eq!(ask("/"), "infra/a:80");
    let [one, other] = objects;
    assert_eq!(outcome, resolved(&[other, one]));
}

#[test]
fn a_route_of_another_namespace_is_for_its_callers_only() {
    let producer = route(
        "HTTPRoute",
        "r",
        json!({"name": "a"}),
        json!([to("/p", "b")]),
    );
    let consumer = |parent: Value| {
        let reference = json!([{"backendRefs": [{"name": "a", "namespace": "infra", "port": 80}]}]);
        route("HTTPRoute", "other/r", parent, reference)
    };
    // The Service that it is attached to needs no grant.
    let outcome = resolved(&[producer.clone(), consumer(json!({"name": "a", "port": 80}))]);
    assert_eq!(said(&outcome, "other/r"), GOOD);
    let ask = |callers, port, path| called(&outcome, ("infra/a", callers), port, path);
    assert_eq!(ask("", 80, "/p"), "infra/b:80");
    assert_eq!(ask("", 80, "/"), "404");
    // The two are never merged, and other ports have the routes of the Service's own namespace.
    assert_eq!(ask("other", 80, "/p"), "infra/a:80");
    assert_eq!(ask("other", 81, "/p"), "infra/b:80");
    assert_eq!(ask("other", 81, "/"), "404");

    // Callers of other namespaces reach the Service as without the route.
    let outcome = resolved(&[consumer(json!({"name": "a", "port": 80}))]);
    assert_eq!(
        names(&outcome),
        ["infra/a for other", "infra/c for all", "other/c for all"]
    );
    assert_eq!(
        called(&outcome, ("infra/a", "other"), 81, "/"),
        "infra/a:81"
    );
}

#[test]
fn other_services_of_another_namespace_need_a_grant() {
    let rules = json!([{"backendRefs": [{"name": "b", "namespace": "infra", "port": 80}]}]);
    let consumer = route("HTTPRoute", "other/r", json!({"name": "a"}), rules);
    let outcome = resolved(std::slice::from_ref(&consumer));
    assert_eq!(
        said(&outcome, "other/r"),
        "Accepted !ResolvedRefs:RefNotPermitted"
    );
    assert_eq!(called(&outcome, ("infra/a", "other"), 80, "/"), "500");
    let to = json!({"group": "", "kind": "Service"});
    let outcome = resolved(&[consumer, grant("infra", ("HTTPRoute", "other"), to)]);
    assert_eq!(said(&outcome, "other/r"), GOOD);
    assert_eq!(
        called(&outcome, ("infra/a", "other"), 80, "/"),
        "infra/b:80"
    );
}

#[test]
fn parents_that_do_not_exist_are_named() {
    let mut world = world(&[
        route("HTTPRoute", "r1", json!({"name": "missing"}), json!([])),
        route(
            "HTTPRoute",
            "r2",
            json!({"name": "a", "port": 8080}),
            json!([]),
        ),
        route(
            "HTTPRoute",
            "r3",
            json!({"name": "a", "port": 53}),
            json!([]),
        ),
        route("HTTPRoute", "r4", json!({"name": "headless"}), json!([])),
        route(
            "HTTPRoute",
            "r5",
            json!({"name": "a", "port": 80, "sectionName": "h2c"}),
            json!([]),
        ),
        route("TCPRoute", "t", json!({"name": "a"}), json!([])),
    ]);
    let headless = Service {
        addresses: Vec::new(),
        ..world.services[&Key::new("infra", "a")].clone()
    };
    world
        .services
        .insert(Key::new("infra", "headless"), headless);
    let outcome = resolve(&world);
    for name in ["r1", "r2", "r3", "r4", "r5"] {
        assert_eq!(
            said(&outcome, name),
            "!Accepted:NoMatchingParent ResolvedRefs",
            "{name}"
        );
    }
    let tcp = of_route(&outcome, RouteKind::Tcp, "t");
    assert_eq!(tcp, ["!Accepted:UnsupportedValue ResolvedRefs"]);
    assert_eq!(frontend(&outcome, "infra/a", ""), None);
}

#[test]
fn a_mesh_service_is_not_reached_from_services() {
    let backend = json!({"group": "consul.hashicorp.com", "kind": "MeshService", "name": "far"});
    let rules = json!([{"backendRefs": [backend, {"name": "b", "port": 80}]}]);
    let mut one = route("HTTPRoute", "r", json!({"name": "a"}), rules);
    let gateway = json!({"name": "gw", "namespace": "infra"});
    one["spec"]["parentRefs"]
        .as_array_mut()
        .unwrap()
        .push(gateway);
    let listener = crate::support::listener("http", 80, "HTTP", "");
    let mut world = world(&[one, crate::support::gateway(json!([listener]))]);
    let far = legate_model::ServiceName::new(&legate_model::Tenancy::default(), "far");
    world.mesh_services.insert(Key::new("infra", "far"), far);
    let outcome = resolve(&world);
    // What one parent cannot serve, another one can.
    assert_eq!(
        of_route(&outcome, RouteKind::Http, "r"),
        ["Accepted !ResolvedRefs:UnsupportedValue", GOOD]
    );
    assert_eq!(called(&outcome, ("infra/a", ""), 80, "/"), "500 infra/b:80");
    let verdict = outcome.routes.values().next().unwrap();
    let message = &verdict.parents[0].conditions[1].message;
    assert!(message.contains("MeshService infra/far"), "{message}");
}

#[test]
fn routes_for_grpc_have_their_ports_alone() {
    let of_grpc = |parent| {
        let rules = json!([{
            "matches": [{"method": {"service": "s.S"}}], "backendRefs": [{"name": "b", "port": 80}],
        }]);
        route("GRPCRoute", "g", parent, rules)
    };
    let of_http = route(
        "HTTPRoute",
        "r",
        json!({"name": "a"}),
        json!([to("/", "c")]),
    );
    let of_http = || of_http.clone();
    let outcome = resolved(&[
        of_http(),
        later(1, of_grpc(json!({"name": "a", "port": 81}))),
    ]);
    assert_eq!(said(&outcome, "r"), GOOD);
    assert_eq!(called(&outcome, ("infra/a", ""), 80, "/"), "infra/c:80");
    assert_eq!(called(&outcome, ("infra/a", ""), 81, "/"), "404");
    assert_eq!(
        called(&outcome, ("infra/a", ""), 81, "/s.S/M"),
        "infra/b:80"
    );
    let served = frontend(&outcome, "infra/a", "").unwrap();
    assert_eq!(protocol(&served.listeners[1]), BackendProtocol::Http2);

    let outcome = resolved(&[of_http(), of_grpc(json!({"name": "a"}))]);
    assert_eq!(said(&outcome, "r"), "!Accepted:Conflicted ResolvedRefs");
    assert_eq!(of_route(&outcome, RouteKind::Grpc, "g"), [GOOD]);
    assert_eq!(called(&outcome, ("infra/a", ""), 80, "/"), "404");
}

#[test]
fn routes_say_why_a_frontend_is_not_written() {
    let mut world = world(&[
        route("HTTPRoute", "r", json!({"name": "a"}), json!([])),
        route("HTTPRoute", "s", json!({"name": "a", "port": 9}), json!([])),
        route("HTTPRoute", "t", json!({"name": "b"}), json!([])),
    ]);
    let reason = "the servers do not answer";
    world
        .unwritten
        .insert(Key::new("infra", "a"), reason.to_owned());
    let outcome = resolve(&world);
    assert_eq!(said(&outcome, "r"), format!("{GOOD} !Programmed:Pending"));
    assert_eq!(
        said(&outcome, "s"),
        "!Accepted:NoMatchingParent ResolvedRefs"
    );
    assert_eq!(said(&outcome, "t"), GOOD);
}

#[test]
fn redirects_name_the_port_of_the_service() {
    let rules = json!([{"filters": [
        {"type": "RequestRedirect", "requestRedirect": {"path": {
            "type": "ReplaceFullPath", "replaceFullPath": "/x",
        }}},
    ]}]);
    let outcome = resolved(&[route("HTTPRoute", "r", json!({"name": "a"}), rules)]);
    let served = frontend(&outcome, "infra/a", "").unwrap();
    for listener in &served.listeners {
        let rule = listener.rules().next().unwrap();
        let Action::Redirect(redirect) = &rule.action else {
            panic!("{rule:?}")
        };
        assert_eq!(redirect.port, Some(listener.port));
    }
}
