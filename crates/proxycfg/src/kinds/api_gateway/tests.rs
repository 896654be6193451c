//! The snapshot of a gateway of a cluster: what changes changes one value.

use std::sync::Arc;

use futures_util::FutureExt;
use legate_ca::{Leaf, LeafId};
use legate_intentions::Action;
use legate_routes::{Listener, ServicePort};
use legate_store::{
    Follower, GatewayContent, GatewayProblem, GatewaySecret, Store, Unavailable, WriteTxn,
};
use serde_json::json;

use super::ApiGateway;
use crate::config::ManagerConfig;
use crate::gateways::api::CertificateSource;
use crate::kinds::Parts;
use crate::kinds::test_store::{self, apply, entry, with_gateway};

#[derive(Debug)]
struct Refused;

impl From<GatewayProblem> for Refused {
    fn from(_: GatewayProblem) -> Self {
        Self
    }
}

impl From<Unavailable> for Refused {
    fn from(_: Unavailable) -> Self {
        Self
    }
}

fn write(
    store: &Store,
    mut write: impl FnMut(&mut WriteTxn) -> Result<(), GatewayProblem> + Send + 'static,
) {
    let written = store.write(move |txn| write(txn).map_err(Refused::from));
    written.now_or_never().unwrap().unwrap();
}

fn listener(port: u16, service: &str, secret: &str) -> Arc<Listener> {
    let backend = json!({"Namespace": "shop", "Name": service, "Port": 80, "Protocol": "Http1"});
    let rule = json!({
        "Origin": {"Route": {"Name": "route"}, "Rule": 0},
        "Action": {"Forward": [
            {"Weight": 1, "Target": {"Backend": backend}},
            {"Weight": 1, "Target": {"Service": {"Name": "api"}}},
        ]},
    });
    let form = json!({
        "Port": port,
        "Chains": [{"Tls": {"Terminated": {"Certificates": [{"Secret": secret}]}}, "Content": 0}],
        "Contents": [{"Http": [{"Domains": ["*"], "Otherwise": 404, "Rules": [rule]}]}],
        "HostPorts": "Any",
    });
    Arc::new(serde_json::from_value(form).unwrap())
}

fn put_endpoints(store: &Store, service: &str, address: &str) {
    let of: ServicePort =
        serde_json::from_value(json!({"Namespace": "shop", "Name": service, "Port": 80})).unwrap();
    let endpoint = serde_json::from_value(json!({"Address": address, "Port": 8080})).unwrap();
    let all = [(of, vec![endpoint])];
    write(store, move |txn| txn.put_gateway_endpoints("edge", &all));
}

fn put_secret(store: &Store, name: &str, certificate: &str) {
    let secret = Arc::new(GatewaySecret {
        name: name.to_owned(),
        certificate: certificate.to_owned(),
        private_key: "key".into(),
    });
    write(store, move |txn| {
        txn.put_gateway_secrets("edge", std::slice::from_ref(&secret))
    });
}

/// A gateway with two ports, each with a Service and a secret of its own.
fn put(store: &Store) {
    let content = GatewayContent {
        listeners: vec![
            listener(443, "web", "shop/a"),
            listener(8443, "books", "shop/b"),
        ],
        ..GatewayContent::default()
    };
    write(store, move |txn| txn.put_gateway("edge", &content));
}

fn snapshot(store: &Store, parts: &mut Parts) -> ApiGateway {
    let config = ManagerConfig::new("dc1", Action::Deny);
    let mut issue = |id: &LeafId| Some(Arc::new(Leaf::to_be_issued(id)));
    let snapshot = test_store::computed(store, &config, &mut issue, parts).unwrap();
    ApiGateway::of(&snapshot).unwrap().clone()
}

/// Where an endpoint of each backend is.
fn addresses(gateway: &ApiGateway) -> Vec<(String, String)> {
    let backends = gateway.backends.iter().map(|one| {
        let addresses: Vec<_> = one
            .endpoints
            .iter()
            .map(|e| e.address.to_string())
            .collect();
        (one.backend.name.clone(), addresses.join(" "))
    });
    backends.collect()
}

fn same<T>(a: &[T], b: &[T], same: impl Fn(&T, &T) -> bool) -> Vec<bool> {
    std::iter::zip(a, b).map(|(a, b)| same(a, b)).collect()
}

#[test]
fn rows_precede_an_entry_of_the_same_name() {
    let (store, mut parts) = (
        with_gateway("api-gateway", "edge"),
        Parts::of(Follower::default()),
    );
    let listener = json!({"Name": "l", "Port": 80, "Protocol": "tcp"});
    let of_entry = json!({"Kind": "api-gateway", "Name": "edge", "Listeners": [listener]});
    apply(&store, entry(of_entry));
    let gateway = snapshot(&store, &mut parts);
    assert!(!gateway.served.is_of_cluster && !gateway.hides_entry);

    write(&store, |txn| {
        txn.put_gateway("edge", &GatewayContent::default())
    });
    let gateway = snapshot(&store, &mut parts);
    assert!(gateway.served.is_of_cluster && gateway.hides_entry);
    assert!(gateway.served.listeners.is_empty(), "nothing is served");

    put(&store);
    let gateway = snapshot(&store, &mut parts);
    let ports: Vec<_> = gateway.served.listeners.iter().map(|l| l.port).collect();
    assert_eq!(ports, [443, 8443]);
    assert_eq!(gateway.upstreams.len(), 1, "the service of the mesh");

    write(&store, |txn| {
        txn.remove_gateway("edge");
        Ok(())
    });
    assert!(!snapshot(&store, &mut parts).served.is_of_cluster);
}

#[test]
fn an_endpoint_changes_only_the_endpoints_of_its_backend() {
    let (store, mut parts) = (
        with_gateway("api-gateway", "edge"),
        Parts::of(Follower::default()),
    );
    put(&store);
    put_endpoints(&store, "web", "10.0.0.1");
    let before = snapshot(&store, &mut parts);
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        addresses(&before),
        [pair("books", ""), pair("web", "10.0.0.1")]
    );

    put_endpoints(&store, "web", "10.0.0.2");
    let after = snapshot(&store, &mut parts);
    assert_eq!(
        addresses(&after),
        [pair("books", ""), pair("web", "10.0.0.2")]
    );
    assert!(Arc::ptr_eq(&before.served, &after.served));
    let kept = same(&before.backends, &after.backends, |a, b| {
        Arc::ptr_eq(&a.endpoints, &b.endpoints)
    });
    assert_eq!(kept, [true, false]);
}

#[test]
fn a_renewed_secret_changes_no_listener_and_no_other_secret() {
    let (store, mut parts) = (
        with_gateway("api-gateway", "edge"),
        Parts::of(Follower::default()),
    );
    put(&store);
    put_secret(&store, "shop/a", "first");
    let before = snapshot(&store, &mut parts);
    let missing: Vec<_> = before
        .served
        .certificates
        .iter()
        .map(|one| one.is_none())
        .collect();
    assert_eq!(missing, [false, true]);

    put_secret(&store, "shop/a", "second");
    let after = snapshot(&store, &mut parts);
    let kept = same(
        &before.served.certificates,
        &after.served.certificates,
        Arc::ptr_eq,
    );
    assert_eq!(kept, [false, true]);
    let kept = same(
        &before.served.listeners,
        &after.served.listeners,
        Arc::ptr_eq,
    );
    assert_eq!(kept, [true, true]);
    let kept = same(&before.backends, &after.backends, |a, b| {
        Arc::ptr_eq(&a.backend, &b.backend) && Arc::ptr_eq(&a.endpoints, &b.endpoints)
    });
    assert_eq!(kept, [true, true]);
    let found = after.served.certificates[0].as_ref().as_ref().unwrap();
    let CertificateSource::Inline { certificate, .. } = &found.source else {
        panic!("it is in no file");
    };
    assert_eq!(certificate, "second");
}
