//! TLSRoutes, TCPRoutes and UDPRoutes.

use legate_gateway_api::{Outcome, RouteKind};
use serde_json::{Value, json};

use crate::clusters::{grant, later};
use crate::support::{
    Asked, ask, backends, gateway, get, listener, of_gateway, of_route, resolved, route, served,
};

const GOOD: &str = "Accepted ResolvedRefs";

fn rule(service: &str) -> Value {
    json!([{"backendRefs": [{"name": service, "port": 443}]}])
}

fn connect(outcome: &Outcome, server_name: &str) -> String {
    let asked = Asked {
        port: 443,
        server_name,
        ..get("", "/")
    };
    ask(outcome, asked)
}

fn terminated(name: &str, hostname: &str) -> Value {
    let mut listener = listener(name, 443, "TLS", hostname);
    listener["tls"] = json!({"mode": "Terminate", "certificateRefs": [{"name": "cert"}]});
    listener
}

#[test]
fn connections_are_chosen_by_server_name() {
    let outcome = resolved(&[
        gateway(json!([
            listener("any", 443, "TLS", "*.test"),
            listener("own", 443, "TLS", "own.test"),
            terminated("ended", "ended.test"),
            listener("idle", 443, "TLS", "idle.test"),
        ])),
        route("TLSRoute", "any", json!(["*.test"]), rule("a")),
        later(
            1,
            route("TLSRoute", "one", json!(["one.test", "else"]), rule("b")),
        ),
        later(
            2,
            route("TLSRoute", "younger", json!(["one.test"]), rule("c")),
        ),
        {
            let mut ended = route("TLSRoute", "ended", json!([]), rule("c"));
            ended["spec"]["parentRefs"][0]["sectionName"] = json!("ended");
            ended
        },
    ]);
    for (name, expected) in [
        ("one.test", "infra/b:443"),
        ("two.test", "infra/a:443"),
        // `any` is attached to every listener.
        ("own.test", "infra/a:443"),
        ("idle.test", "infra/a:443"),
        ("ended.test", "ended infra/a:443"),
        ("else", "closed"),
        ("test", "closed"),
    ] {
        assert_eq!(connect(&outcome, name), expected, "{name}");
    }
    let kinds = of_gateway(&outcome);
    assert!(
        kinds[1].starts_with("any [TLSRoute] 3: Accepted"),
        "{kinds:?}"
    );
}

#[test]
fn names_without_a_route_are_closed() {
    let mut only = route("TLSRoute", "any", json!(["*.test"]), rule("a"));
    only["spec"]["parentRefs"][0]["sectionName"] = json!("any");
    let outcome = resolved(&[
        gateway(json!([
            listener("any", 443, "TLS", "*.test"),
            listener("idle", 443, "TLS", "idle.test"),
        ])),
        only,
    ]);
    assert_eq!(connect(&outcome, "a.test"), "infra/a:443");
    assert_eq!(connect(&outcome, "idle.test"), "closed");
}

#[test]
fn attachment_of_routes_without_conditions() {
    let gateway = gateway(json!([
        listener("http", 80, "HTTP", ""),
        listener("https", 444, "HTTPS", ""),
        listener("tls", 443, "TLS", "a.test"),
        listener("tcp", 81, "TCP", ""),
        listener("udp", 53, "UDP", ""),
    ]));
    for (kind, section, hosts, expected) in [
        (
            "TLSRoute",
            "http",
            json!([]),
            "!Accepted:NotAllowedByListeners",
        ),
        (
            "TLSRoute",
            "https",
            json!([]),
            "!Accepted:NotAllowedByListeners",
        ),
        (
            "TLSRoute",
            "missing",
            json!([]),
            "!Accepted:NoMatchingParent",
        ),
        (
            "TLSRoute",
            "tls",
            json!(["b.test"]),
            "!Accepted:NoMatchingListenerHostname",
        ),
        ("TLSRoute", "tls", json!(["a.test"]), "Accepted"),
        (
            "TCPRoute",
            "http",
            json!([]),
            "!Accepted:NotAllowedByListeners",
        ),
        ("TCPRoute", "tcp", json!([]), "Accepted"),
        (
            "UDPRoute",
            "tcp",
            json!([]),
            "!Accepted:NotAllowedByListeners",
        ),
        ("UDPRoute", "udp", json!([]), "Accepted"),
    ] {
        let mut one = route(kind, "r", hosts, json!([{"backendRefs": []}]));
        one["spec"]["parentRefs"][0]["sectionName"] = json!(section);
        let outcome = resolved(&[gateway.clone(), one]);
        let kind = match kind {
            "TLSRoute" => RouteKind::Tls,
            "TCPRoute" => RouteKind::Tcp,
            _ => RouteKind::Udp,
        };
        let expected = format!("{expected} ResolvedRefs");
        assert_eq!(of_route(&outcome, kind, "r"), [expected], "{section}");
    }
}

#[test]
fn the_oldest_route_has_a_port() {
    let gateway = gateway(json!([
        listener("tcp", 81, "TCP", ""),
        listener("udp", 53, "UDP", ""),
    ]));
    let to = |service: &str, port: u16| json!([{"backendRefs": [{"name": service, "port": port}]}]);
    let outcome = resolved(&[
        gateway,
        later(1, route("TCPRoute", "a", json!([]), to("b", 80))),
        route("TCPRoute", "z", json!([]), to("a", 80)),
        later(1, route("UDPRoute", "a", json!([]), to("b", 53))),
        route("UDPRoute", "z", json!([]), to("a", 53)),
    ]);
    for kind in [RouteKind::Tcp, RouteKind::Udp] {
        for name in ["a", "z"] {
            assert_eq!(of_route(&outcome, kind, name), [GOOD]);
        }
    }
    let said = of_gateway(&outcome);
    assert!(said[1].starts_with("tcp [TCPRoute] 2:"), "{said:?}");
    assert!(said[2].starts_with("udp [UDPRoute] 2:"), "{said:?}");
    let asked = Asked {
        port: 81,
        ..get("", "/")
    };
    assert_eq!(ask(&outcome, asked), "infra/a:80");
    let datagrams = &served(&outcome).datagrams[0];
    assert_eq!(
        (datagrams.port, backends(&datagrams.backends)),
        (53, "infra/a:53".to_owned())
    );
}

#[test]
fn shares_that_cannot_be_served_are_closed() {
    let other = json!({"name": "b", "namespace": "other", "port": 80, "weight": 2});
    let rules = json!([{"backendRefs": [{"name": "a", "port": 80, "weight": 7}, other]}]);
    let objects = [
        gateway(json!([listener("tcp", 81, "TCP", "")])),
        route("TCPRoute", "r", json!([]), rules),
    ];
    let asked = Asked {
        port: 81,
        ..get("", "/")
    };
    let outcome = resolved(&objects);
    assert_eq!(ask(&outcome, asked), "7*infra/a:80 2*500");
    let refused = "Accepted !ResolvedRefs:RefNotPermitted";
    assert_eq!(of_route(&outcome, RouteKind::Tcp, "r"), [refused]);
    let service = json!({"group": "", "kind": "Service"});
    let [gateway, route] = objects;
    let outcome = resolved(&[
        gateway,
        route,
        grant("other", ("TCPRoute", "infra"), service),
    ]);
    assert_eq!(ask(&outcome, asked), "7*infra/a:80 2*other/b:80");
    assert_eq!(of_route(&outcome, RouteKind::Tcp, "r"), [GOOD]);
}

#[test]
fn ports_are_of_one_transport() {
    let rules = json!([{"backendRefs": [{"name": "a", "port": 80}]}]);
    let outcome = resolved(&[
        gateway(json!([listener("udp", 53, "UDP", "")])),
        route("UDPRoute", "r", json!([]), rules),
    ]);
    let missing = "Accepted !ResolvedRefs:BackendNotFound";
    assert_eq!(of_route(&outcome, RouteKind::Udp, "r"), [missing]);
}

#[test]
fn a_rule_with_an_odd_field_is_closed() {
    let rules = json!([{
        "backendRefs": [{"name": "a", "port": 80}], "only": {"from": "here"},
    }]);
    let outcome = resolved(&[
        gateway(json!([listener("tcp", 81, "TCP", "")])),
        route("TCPRoute", "r", json!([]), rules),
    ]);
    let asked = Asked {
        port: 81,
        ..get("", "/")
    };
    assert_eq!(ask(&outcome, asked), "500");
    let refused = "!Accepted:UnsupportedValue ResolvedRefs";
    assert_eq!(of_route(&outcome, RouteKind::Tcp, "r"), [refused]);
}
