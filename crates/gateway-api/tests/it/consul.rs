//! What is served with Consul's servers, and what is refused because of them.

use legate_gateway_api::{Key, Outcome, RouteKind, Servers, resolve};
use legate_model::{ServiceName, Tenancy};
use serde_json::{Value, json};

use crate::clusters::world;
use crate::support::{ask, gateway, get, listener, of_gateway, of_route, route, to};

/// A cluster in which port 80 of the Service `a` is that of the service `a` of the mesh.
fn resolved(objects: &[Value]) -> Outcome {
    let mut world = world(objects);
    world.servers = Servers::Consul;
    let service = world.services.get_mut(&Key::new("infra", "a")).unwrap();
    service.of_mesh = Some(ServiceName::new(&Tenancy::default(), "a"));
    service.ports[0].is_of_mesh = true;
    resolve(&world)
}

fn http(hostnames: Value, rules: Value) -> Value {
    route("HTTPRoute", "r", hostnames, rules)
}

fn plain() -> Value {
    gateway(json!([listener("a", 80, "HTTP", "")]))
}

fn said(outcome: &Outcome, kind: RouteKind) -> Vec<String> {
    of_route(outcome, kind, "r")
}

fn message(outcome: &Outcome, kind: RouteKind) -> String {
    let (_, route) = outcome
        .routes
        .iter()
        .find(|(id, _)| id.kind == kind)
        .unwrap();
    let conditions = route.parents[0].conditions.iter();
    let messages = conditions.map(|one| one.message.as_str());
    messages.collect::<Vec<_>>().join(" ")
}

#[test]
fn backends_are_services_of_the_mesh() {
    let to_port = |port: u16| json!({"backendRefs": [{"name": "a", "port": port}]});
    let outcome = resolved(&[plain(), http(json!([]), json!([to_port(80)]))]);
    assert_eq!(said(&outcome, RouteKind::Http), ["Accepted ResolvedRefs"]);
    assert_eq!(ask(&outcome, get("h", "/")), "a");

    for outside in [to_port(443), to("/", "b")] {
        let outcome = resolved(&[plain(), http(json!([]), json!([outside]))]);
        let expected = "Accepted !ResolvedRefs:UnsupportedValue";
        assert_eq!(said(&outcome, RouteKind::Http), [expected]);
        assert_eq!(ask(&outcome, get("h", "/")), "500");
    }
    assert!(outcome.frontends.is_empty());
}

#[test]
fn a_rule_that_entries_cannot_say_is_an_answer() {
    let filter = |name: &str, kind: &str, field: Value| json!({"type": kind, name: field});
    for (what, change) in [
        (
            "filters.requestRedirect",
            json!({"filters": [filter("requestRedirect", "RequestRedirect", json!({"scheme": "https"}))]}),
        ),
        (
            "filters.requestMirror",
            json!({"filters": [filter(
                "requestMirror",
                "RequestMirror",
                json!({"backendRef": {"name": "a", "port": 80}}),
            )]}),
        ),
        (
            "filters.cors",
            json!({"filters": [filter("cors", "CORS", json!({"allowOrigins": ["https://a.example"]}))]}),
        ),
        (
            "filters.urlRewrite.hostname",
            json!({"filters": [filter("urlRewrite", "URLRewrite", json!({"hostname": "other"}))]}),
        ),
        (
            "replaceFullPath",
            json!({"filters": [filter(
                "urlRewrite",
                "URLRewrite",
                json!({"path": {"type": "ReplaceFullPath", "replaceFullPath": "/x"}}),
            )]}),
        ),
    ] {
        let mut rule = to("/x", "a");
        rule["filters"] = change["filters"].clone();
        if what == "filters.requestRedirect" {
            rule.as_object_mut().unwrap().remove("backendRefs");
        }
        let outcome = resolved(&[plain(), http(json!([]), json!([rule, to("/", "a")]))]);
        let said = said(&outcome, RouteKind::Http);
        let expected = "Accepted ResolvedRefs PartiallyInvalid:UnsupportedValue";
        assert_eq!(said, [expected], "{what}");
        let message = message(&outcome, RouteKind::Http);
        assert!(message.contains(what), "{message}");
        assert!(message.contains("Consul"), "{message}");
        assert_eq!(ask(&outcome, get("h", "/x")), "500", "{what}");
        assert_eq!(ask(&outcome, get("h", "/y")), "a", "{what}");
    }
}

#[test]
fn what_would_be_tried_in_another_order_is_not_attached() {
    let mut expression = to("/", "a");
    expression["matches"][0]["path"] = json!({"type": "RegularExpression", "value": "/a.*"});
    for (hosts, rule, what) in [
        (json!([]), expression, "RegularExpression"),
        (json!(["*.example.com"]), to("/", "a"), "*.example.com"),
    ] {
        let outcome = resolved(&[plain(), http(hosts, json!([rule]))]);
        let said = said(&outcome, RouteKind::Http);
        assert!(
            said[0].starts_with("!Accepted:UnsupportedValue"),
            "{said:?}"
        );
        assert!(message(&outcome, RouteKind::Http).contains(what));
        assert_eq!(ask(&outcome, get("a.example.com", "/a")), "404");
    }
}

#[test]
fn a_host_has_the_routes_that_name_it_and_no_others() {
    let named = http(json!(["h"]), json!([to("/named", "a")]));
    let mut others = http(json!([]), json!([to("/", "a")]));
    others["metadata"]["name"] = json!("others");
    let outcome = resolved(&[plain(), named, others]);
    assert_eq!(ask(&outcome, get("h", "/named")), "a");
    assert_eq!(ask(&outcome, get("h", "/")), "404");
    assert_eq!(ask(&outcome, get("other", "/")), "a");
    let others = of_route(&outcome, RouteKind::Http, "others");
    assert_eq!(
        others,
        ["Accepted ResolvedRefs !FallsThrough:UnsupportedValue"]
    );
}

#[test]
fn listeners_are_one_a_port_for_http_and_tcp() {
    let outcome = resolved(&[gateway(json!([
        listener("first", 80, "HTTP", "a.example"),
        listener("second", 80, "HTTP", "b.example"),
        listener("tls", 443, "TLS", ""),
        listener("udp", 53, "UDP", ""),
        listener("tcp", 5432, "TCP", ""),
    ]))]);
    let lines = of_gateway(&outcome);
    assert!(lines[1].contains(": Accepted"), "{lines:?}");
    for line in &lines[2..5] {
        assert!(line.contains("!Accepted:UnsupportedValue"), "{lines:?}");
    }
    assert!(lines[5].contains(": Accepted"), "{lines:?}");
}

#[test]
fn other_routes() {
    let tcp = |backends: Value| {
        let rules = json!([{"backendRefs": backends}]);
        let gateway = gateway(json!([listener("a", 80, "TCP", "")]));
        resolved(&[gateway, route("TCPRoute", "r", json!([]), rules)])
    };
    let one = json!({"name": "a", "port": 80});
    let outcome = tcp(json!([one]));
    assert_eq!(said(&outcome, RouteKind::Tcp), ["Accepted ResolvedRefs"]);
    assert_eq!(ask(&outcome, get("", "")), "a");
    let outcome = tcp(json!([one, one]));
    let said_of_two = said(&outcome, RouteKind::Tcp);
    assert!(said_of_two[0].starts_with("!Accepted:UnsupportedValue"));

    let grpc = route("GRPCRoute", "r", json!([]), json!([{"backendRefs": [one]}]));
    let outcome = resolved(&[plain(), grpc]);
    let said_of_grpc = said(&outcome, RouteKind::Grpc);
    assert!(said_of_grpc[0].starts_with("!Accepted:UnsupportedValue"));

    let mut at_service = http(json!([]), json!([to("/", "a")]));
    at_service["spec"]["parentRefs"] = json!([{"group": "", "kind": "Service", "name": "a"}]);
    let outcome = resolved(&[at_service]);
    let said_at_service = said(&outcome, RouteKind::Http);
    assert!(said_at_service[0].starts_with("!Accepted:UnsupportedValue"));
    assert!(outcome.frontends.is_empty());
}

#[test]
fn the_class_says_less() {
    let features = |servers| {
        let mut world = world(&[]);
        world.servers = servers;
        let outcome = resolve(&world);
        outcome.classes["mesh"].supported_features.clone()
    };
    let (all, fewer) = (features(Servers::Legate), features(Servers::Consul));
    assert!(fewer.len() < all.len());
    assert!(!fewer.contains(&"HTTPRouteRequestMirror"));
}
