//! Clusters, written by hand or generated. The tests of `legate-resources` use the same file.

use std::collections::BTreeMap;

use legate_gateway_api::types::GatewayAddress;
use legate_gateway_api::{Front, Key, Object, Service, ServicePort, World};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

/// The class of the gateways in tests.
pub(crate) const CLASS: &str = "mesh";

/// An object of the namespace `infra`, or of that before a slash.
pub(crate) fn object(kind: &str, name: &str, spec: Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap_or(("infra", name));
    json!({
        "kind": kind,
        "metadata": {
            "namespace": namespace, "name": name, "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": spec,
    })
}

/// The same object, made so many seconds later.
pub(crate) fn later(seconds: usize, mut object: Value) -> Value {
    object["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:{seconds:02}Z"));
    object
}

/// A grant for references from a kind of a namespace.
pub(crate) fn grant(namespace: &str, from: (&str, &str), to: Value) -> Value {
    let (kind, from) = from;
    object(
        "ReferenceGrant",
        &format!("{namespace}/grant"),
        json!({
            "from": [{"group": "gateway.networking.k8s.io", "kind": kind, "namespace": from}],
            "to": [to],
        }),
    )
}

fn key(document: &Value) -> Key {
    let text = |field: &str| document["metadata"][field].as_str().unwrap_or_default();
    Key::new(text("namespace"), text("name"))
}

fn labels(document: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(document["metadata"]["labels"].clone()).unwrap_or_default()
}

/// A cluster with these objects. It has Services `a`, `b` and `c` in the namespaces `infra` and
/// `other`, of which `c` needs a frontend, a certificate `cert` and an authority `ca` in both, and working proxies for each gateway.
pub(crate) fn world(objects: &[Value]) -> World {
    let mut world = World {
        controller: "legate".to_owned(),
        bundle: Some("v1.6.3".to_owned()),
        ..World::default()
    };
    let class = object("GatewayClass", CLASS, json!({"controllerName": "legate"}));
    world.classes.push(Object::decode(&class));
    for namespace in ["infra", "other"] {
        world.namespaces.insert(namespace.to_owned(), [].into());
        for name in ["a", "b", "c"] {
            let port = |port, name: &str, udp, protocol: &str| ServicePort {
                port,
                name: name.to_owned(),
                udp,
                app_protocol: Some(protocol.to_owned()),
                is_of_mesh: false,
            };
            let address = [10, 96, u8::from(namespace == "other"), name.as_bytes()[0]];
            let service = Service {
                external_name: false,
                addresses: vec![address.into()],
                needs_frontend: name == "c",
                of_mesh: None,
                ports: vec![
                    port(80, "http", false, "http"),
                    port(443, "https", false, "https"),
                    port(81, "h2c", false, "kubernetes.io/h2c"),
                    port(53, "dns", true, ""),
                ],
            };
            world.services.insert(Key::new(namespace, name), service);
        }
        let good = Ok("-----BEGIN CERTIFICATE-----".to_owned());
        world.authorities.insert(Key::new(namespace, "ca"), good);
        let bad = Err("ca.crt is empty".to_owned());
        world.authorities.insert(Key::new(namespace, "bad"), bad);
        world
            .certificates
            .insert(Key::new(namespace, "cert"), Ok(()));
        let bad = Err("tls.crt is not a certificate".to_owned());
        world.certificates.insert(Key::new(namespace, "bad"), bad);
    }
    for document in objects {
        add(&mut world, document);
    }
    world
}

fn add(world: &mut World, document: &Value) {
    match document["kind"].as_str().unwrap() {
        "GatewayClass" => world.classes.push(Object::decode(document)),
        "Gateway" => {
            let front = Front {
                addresses: vec![GatewayAddress {
                    r#type: Some("IPAddress".to_owned()),
                    value: "10.0.0.1".to_owned(),
                }],
                ready: true,
                generation: i64::MAX,
                ..Front::default()
            };
            world.fronts.insert(key(document), front);
            world.gateways.push(Object::decode(document));
        }
        "ListenerSet" => {
            for front in world.fronts.values_mut() {
                front.sets.insert(key(document), i64::MAX);
            }
            world.listener_sets.push(Object::decode(document));
        }
        "HTTPRoute" => world.http_routes.push(Object::decode(document)),
        "GRPCRoute" => world.grpc_routes.push(Object::decode(document)),
        "TLSRoute" => world.tls_routes.push(Object::decode(document)),
        "TCPRoute" => world.tcp_routes.push(Object::decode(document)),
        "UDPRoute" => world.udp_routes.push(Object::decode(document)),
        "ReferenceGrant" => world.grants.push(Object::decode(document)),
        "BackendTLSPolicy" => world.policies.push(Object::decode(document)),
        "Namespace" => {
            let name = key(document).name;
            world.namespaces.insert(name, labels(document));
        }
        other => panic!("{other}"),
    }
}

const HOSTS: [&str; 6] = ["", "*.test", "a.test", "b.test", "*.b.test", "x.b.test"];
const NAMESPACES: [&str; 2] = ["infra", "other"];
const GATEWAYS: [&str; 3] = ["infra/g1", "infra/g2", "other/g1"];

fn hosts() -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(select(&HOSTS[1..]), 0..4)
}

fn reference() -> impl Strategy<Value = Value> {
    let names = select(vec!["a", "a", "b", "missing"]);
    let namespaces = select(vec![None, Some("infra"), Some("other")]);
    let ports = select(vec![80, 80, 80, 81, 53, 9]);
    (names, namespaces, ports, 0..6).prop_map(|(name, namespace, port, weight)| {
        json!({"name": name, "namespace": namespace, "port": port, "weight": weight})
    })
}

fn listener() -> impl Strategy<Value = Value> {
    // Most protocols have a port of their own, or nothing would be left without a conflict.
    let protocols = select(vec![
        ("HTTP", 80_u16),
        ("HTTP", 80),
        ("HTTP", 80),
        ("HTTPS", 443),
        ("HTTPS", 443),
        ("TLS", 443),
        ("TCP", 81),
        ("TCP", 80),
        ("UDP", 53),
        ("ODD", 80),
    ]);
    let certificates = select(vec![
        json!([{"name": "cert"}]),
        json!([{"name": "cert"}]),
        json!([{"name": "cert", "namespace": "other"}]),
        json!([{"name": "bad"}]),
    ]);
    let from = select(vec!["All", "All", "All", "Same"]);
    let odd = prop::bool::weighted(0.05);
    (protocols, select(&HOSTS[..]), certificates, from, odd).prop_map(
        |((protocol, port), host, certificates, from, odd)| {
            let mut listener = json!({
                "port": port, "protocol": protocol, "hostname": host,
                "allowedRoutes": {"namespaces": {"from": from}},
            });
            match protocol {
                "HTTPS" => listener["tls"] = json!({"certificateRefs": certificates}),
                "TLS" => listener["tls"] = json!({"mode": "Passthrough"}),
                _ => {}
            }
            if odd {
                listener["odd"] = json!(true);
            }
            listener
        },
    )
}

fn listeners() -> impl Strategy<Value = Value> {
    prop::collection::vec(listener(), 1..5).prop_map(|mut all| {
        for (at, listener) in all.iter_mut().enumerate() {
            listener["name"] = json!(format!("l{at}"));
        }
        json!(all)
    })
}

fn parents() -> impl Strategy<Value = Value> {
    let one = prop_oneof![4 => parent(), 1 => service_parent()];
    prop::collection::vec(one, 1..4).prop_map(|all| json!(all))
}

fn service_parent() -> impl Strategy<Value = Value> {
    let ports = select(vec![None, None, Some(80), Some(81), Some(53)]);
    let names = select(vec!["a", "b", "c", "missing"]);
    (names, select(&NAMESPACES[..]), ports).prop_map(|(name, namespace, port)| {
        json!({"group": "", "kind": "Service", "name": name, "namespace": namespace, "port": port})
    })
}

fn parent() -> impl Strategy<Value = Value> {
    let gateways = select(vec!["g1", "g1", "g1", "g2", "unknown", "s"]);
    let sections = select(vec![None, None, None, None, Some("l0"), Some("l1")]);
    (gateways, select(&NAMESPACES[..]), sections).prop_map(|(name, namespace, section)| {
        let kind = if name == "s" {
            "ListenerSet"
        } else {
            "Gateway"
        };
        json!({"kind": kind, "name": name, "namespace": namespace, "sectionName": section})
    })
}

fn rule() -> impl Strategy<Value = Value> {
    let paths = prop::collection::vec(select(vec!["/", "/a", "/b/"]), 0..3);
    let references = prop::collection::vec(reference(), 1..3);
    (paths, references, prop::bool::weighted(0.1)).prop_map(|(paths, references, odd)| {
        let matches: Vec<_> = paths
            .iter()
            .map(|path| json!({"path": {"value": path}}))
            .collect();
        let mut rule = json!({"matches": matches, "backendRefs": references});
        if odd {
            rule["odd"] = json!(true);
        }
        rule
    })
}

fn route() -> impl Strategy<Value = (&'static str, Value, usize, &'static str)> {
    let kinds = select(vec![
        "HTTPRoute",
        "HTTPRoute",
        "HTTPRoute",
        "GRPCRoute",
        "TLSRoute",
        "TCPRoute",
        "UDPRoute",
    ]);
    let rules = prop::collection::vec(rule(), 1..4);
    (
        kinds,
        parents(),
        hosts(),
        rules,
        0_usize..3,
        select(&NAMESPACES[..]),
    )
        .prop_map(|(kind, parents, hosts, rules, age, namespace)| {
            let rules: Vec<_> = match kind {
                "HTTPRoute" => rules,
                // These have other conditions, or none.
                _ => rules
                    .into_iter()
                    .take(if kind == "GRPCRoute" { 3 } else { 1 })
                    .map(|rule| json!({"backendRefs": rule["backendRefs"]}))
                    .collect(),
            };
            let mut spec = json!({"parentRefs": parents, "rules": rules});
            if matches!(kind, "HTTPRoute" | "GRPCRoute" | "TLSRoute") {
                spec["hostnames"] = json!(hosts);
            }
            (kind, spec, age, namespace)
        })
}

/// The objects of a cluster.
pub(crate) fn documents() -> impl Strategy<Value = Vec<Value>> {
    let gateways = prop::collection::vec((select(&GATEWAYS[..]), listeners()), 2..5);
    let sets = prop::option::of((select(&NAMESPACES[..]), listeners(), 0_usize..3));
    let routes = prop::collection::vec(route(), 1..8);
    let policy = prop::option::weighted(0.7, select(vec!["ca", "ca", "ca", "bad"]));
    let from = select(vec!["HTTPRoute", "TCPRoute", "Gateway", "ListenerSet"]);
    let to = select(vec!["Service", "Secret"]);
    let grants = prop::collection::vec((from, to, select(&NAMESPACES[..])), 0..4);
    let all = (gateways, sets, routes, grants, policy, any::<bool>());
    all.prop_map(|(gateways, set, routes, grants, policy, verifies)| {
        let mut all = BTreeMap::new();
        let authority = |name: &str| json!([{"group": "", "kind": "ConfigMap", "name": name}]);
        if let Some(name) = policy {
            let validation = json!({"hostname": "a.test", "caCertificateRefs": authority(name)});
            let target = json!({"group": "", "kind": "Service", "name": "a"});
            let spec = json!({"targetRefs": [target], "validation": validation});
            all.insert("policy".to_owned(), object("BackendTLSPolicy", "p", spec));
        }
        for (name, listeners) in gateways {
            let mut spec = json!({
                "gatewayClassName": CLASS, "listeners": listeners,
                "allowedListeners": {"namespaces": {"from": "All"}},
            });
            if verifies {
                let validation = json!({"caCertificateRefs": authority("ca")});
                spec["tls"]["frontend"]["default"]["validation"] = validation;
            }
            all.insert(name.to_owned(), object("Gateway", name, spec));
        }
        if let Some((namespace, listeners, age)) = set {
            let parent = json!({"name": "g1", "namespace": "infra"});
            let spec = json!({"parentRef": parent, "listeners": listeners});
            let set = object("ListenerSet", &format!("{namespace}/s"), spec);
            all.insert("set".to_owned(), later(age, set));
        }
        for (at, (kind, spec, age, namespace)) in routes.into_iter().enumerate() {
            let name = format!("{namespace}/r{at}");
            let route = later(age, object(kind, &name, spec));
            all.insert(name, route);
        }
        for (at, (from, to, namespace)) in grants.into_iter().enumerate() {
            let other = if namespace == "infra" {
                "other"
            } else {
                "infra"
            };
            let mut grant = grant(namespace, (from, other), json!({"group": "", "kind": to}));
            let name = format!("grant{at}");
            grant["metadata"]["name"] = json!(name);
            all.insert(name, grant);
        }
        all.into_values().collect()
    })
}
