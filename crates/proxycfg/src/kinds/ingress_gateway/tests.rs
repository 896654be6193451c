//! An ingress gateway's snapshot as a function of the store.

use std::sync::Arc;

use legate_ca::{Leaf, LeafId};
use legate_intentions::Action;
use legate_model::Protocol;
use legate_store::{Command, Follower, Store};
use serde_json::{Value, json};

use super::IngressGateway;
use crate::config::ManagerConfig;
use crate::gateways::ExposedService;
use crate::kinds::Parts;
use crate::kinds::test_store::{self, apply, entry, register, with_gateway};

/// A service in the mesh.
fn native(name: &str) -> Command {
    register(json!({"ID": name, "Service": name, "Port": 80, "Connect": {"Native": true}}))
}

fn exposing(fields: Value) -> Command {
    let mut document = json!({"Kind": "ingress-gateway", "Name": "edge"});
    let fields = fields.as_object().unwrap().clone();
    document.as_object_mut().unwrap().extend(fields);
    entry(document)
}

fn http_by_default() -> Command {
    entry(json!({
        "Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"},
    }))
}

fn mesh() -> Store {
    with_gateway("ingress-gateway", "edge")
}

fn computed(store: &Store, parts: &mut Parts) -> IngressGateway {
    let mut config = ManagerConfig::new("dc1", Action::Deny);
    config.dns_domains = Arc::new(["consul".into(), "mesh.example".into()]);
    let mut issue = |id: &LeafId| Some(Arc::new(Leaf::to_be_issued(id)));
    let snapshot = test_store::computed(store, &config, &mut issue, parts);
    let snapshot = snapshot.expect("it has all it needs");
    IngressGateway::of(&snapshot).unwrap().clone()
}

fn snapshot(store: &Store) -> IngressGateway {
    computed(store, &mut Parts::default())
}

fn names(services: &[ExposedService]) -> Vec<&str> {
    services.iter().map(|one| &*one.service.name).collect()
}

fn dns_names(gateway: &IngressGateway) -> Vec<&str> {
    gateway
        .leaf
        .id
        .dns_names
        .iter()
        .map(String::as_str)
        .collect()
}

#[test]
fn without_an_entry_it_exposes_nothing() {
    let gateway = snapshot(&mesh());
    assert!(gateway.exposed.listeners.is_empty() && gateway.upstreams.is_empty());
    assert_eq!(gateway.leaf.id, "edge".into());
}

#[test]
fn a_star_has_the_other_services_of_the_listeners_protocol() {
    let store = mesh();
    apply(&store, http_by_default());
    apply(
        &store,
        entry(json!({"Kind": "service-defaults", "Name": "db", "Protocol": "tcp"})),
    );
    for name in ["api", "db", "web"] {
        apply(&store, native(name));
    }
    apply(
        &store,
        register(json!({"ID": "outside", "Service": "outside", "Port": 80})),
    );
    apply(
        &store,
        exposing(json!({"Listeners": [
            {"Port": 80, "Protocol": "http", "Services": [
                {"Name": "*", "MaxConnections": 7}, {"Name": "api", "Hosts": ["api.example"]},
            ]},
            {"Port": 81, "Services": [{"Name": "db"}]},
        ]})),
    );
    let gateway = snapshot(&store);
    let [http, tcp] = &*gateway.exposed.listeners else {
        panic!("{:?}", gateway.exposed)
    };
    assert_eq!((http.port, http.protocol), (80, Protocol::Http));
    assert_eq!(names(&http.services), ["api", "web"]);
    assert_eq!(http.services[0].hosts, ["api.example"]);
    assert_eq!(
        (tcp.protocol, names(&tcp.services)),
        (Protocol::Tcp, vec!["db"])
    );
    let limits = |at: usize| gateway.upstreams[at].upstream.config.get("limits");
    assert_eq!(limits(0), None);
    assert_eq!(limits(1), Some(&json!({"max_connections": 7})));
    // A service that appears is exposed, too.
    apply(&store, native("shop"));
    let gateway = snapshot(&store);
    assert_eq!(
        names(&gateway.exposed.listeners[0].services),
        ["api", "shop", "web"]
    );
}

#[test]
fn settings_of_a_service_precede_the_defaults() {
    let store = mesh();
    apply(&store, http_by_default());
    let check = |fields: Value| json!({"PassiveHealthCheck": fields});
    let mut defaults = check(json!({"Interval": "2s", "MaxFailures": 7}));
    defaults["MaxConnections"] = json!(1);
    let mut own = check(json!({"MaxFailures": 3, "EnforcingConsecutive5xx": 0}));
    own["Name"] = json!("api");
    own["MaxPendingRequests"] = json!(2);
    apply(
        &store,
        exposing(json!({"Defaults": defaults, "Listeners": [
            {"Port": 80, "Protocol": "http", "Services": [own]},
            {"Port": 81, "Protocol": "http", "Services": [{"Name": "api", "MaxConnections": 9}]},
        ]})),
    );
    let gateway = snapshot(&store);
    let [api] = &*gateway.upstreams else {
        panic!("{:?}", gateway.upstreams)
    };
    let expected = json!({
        "limits": {"max_connections": 1, "max_pending_requests": 2},
        "passive_health_check": {"interval": 2_000_000_000, "max_failures": 3},
    });
    assert_eq!(Value::Object(api.upstream.config.clone()), expected);
    let ports = gateway.exposed.listeners.iter();
    assert!(
        ports
            .flat_map(|port| &port.services)
            .all(|one| one.upstream == 0)
    );
}

#[test]
fn the_certificate_has_the_names_that_clients_use() {
    let store = mesh();
    apply(&store, http_by_default());
    let listeners = |tls: bool| {
        exposing(json!({"Listeners": [
            {"Port": 80, "Protocol": "http", "Services": [
                {"Name": "api", "Hosts": ["*", "api.example:80", "*.api.example"]},
            ]},
            {"Port": 443, "Protocol": "http", "TLS": {"Enabled": tls}, "Services": [
                {"Name": "web"},
            ]},
        ]}))
    };
    apply(&store, listeners(false));
    assert_eq!(dns_names(&snapshot(&store)), [""; 0]);
    apply(&store, listeners(true));
    assert_eq!(
        dns_names(&snapshot(&store)),
        [
            "*.api.example",
            "*.ingress.consul",
            "*.ingress.dc1.consul",
            "*.ingress.dc1.mesh.example",
            "*.ingress.mesh.example",
            "api.example",
        ]
    );
}

#[test]
fn a_listener_inherits_what_it_does_not_set() {
    let store = mesh();
    apply(&store, http_by_default());
    apply(
        &store,
        exposing(json!({
            "TLS": {
                "SDS": {"ClusterName": "sds", "CertResource": "general"},
                "TLSMinVersion": "TLSv1_2",
            },
            "Listeners": [{
                "Port": 80, "Protocol": "http", "Services": [{"Name": "api"}],
                "TLS": {"SDS": {"CertResource": "own"}, "TLSMaxVersion": "TLSv1_3"},
            }],
        })),
    );
    let gateway = snapshot(&store);
    let tls = &gateway.exposed.listeners[0].tls;
    let sds = tls.sds.as_ref().unwrap();
    assert_eq!((&*sds.cluster_name, &*sds.cert_resource), ("sds", "own"));
    assert_eq!(
        (&*tls.tls_min_version, &*tls.tls_max_version, tls.enabled),
        ("TLSv1_2", "TLSv1_3", false)
    );
}

#[test]
fn a_change_of_one_service_changes_nothing_else() {
    let store = mesh();
    apply(&store, http_by_default());
    apply(&store, native("api"));
    apply(&store, native("web"));
    apply(
        &store,
        exposing(json!({"Listeners": [
            {"Port": 80, "Protocol": "http", "Services": [{"Name": "*"}]},
        ]})),
    );
    let mut parts = Parts::of(Follower::default());
    let before = computed(&store, &mut parts);
    apply(
        &store,
        entry(json!({"Kind": "service-resolver", "Name": "web", "ConnectTimeout": "3s"})),
    );
    let after = computed(&store, &mut parts);
    assert!(Arc::ptr_eq(&before.exposed, &after.exposed));
    let same = |at: usize| {
        let (before, after) = (&before.upstreams[at], &after.upstreams[at]);
        Arc::ptr_eq(&before.resolved, &after.resolved)
    };
    assert!(same(0) && !same(1), "only web has changed");
}
