//! Gateways of clusters: equal content takes no index, what nothing leads to is removed, and rows
//! come back as they were.

use std::sync::Arc;

use legate_model::{Secret, Tenancy};
use legate_routes::{Datagrams, Endpoint, Listener, ServicePort};
use serde_json::json;

use super::durable::open;
use super::rows;
use crate::key::{Key, Table};
use crate::stored_tables::is_secret;
use crate::{GatewayContent, GatewayProblem, GatewaySecret, Store, Unavailable, WriteTxn};

/// A port that presents a certificate and leads to a Service.
fn listener(port: u16, service: &str) -> Arc<Listener> {
    let backend = json!({"Namespace": "shop", "Name": service, "Port": 80, "Protocol": "Http1"});
    let rule = json!({
        "Origin": {"Route": {"Name": "route"}, "Rule": 0},
        "Action": {"Forward": [{"Weight": 1, "Target": {"Backend": backend}}]},
    });
    let form = json!({
        "Port": port,
        "Chains": [{"Tls": {"Terminated": {"Certificates": [{"Secret": "shop/cert"}]}}, "Content": 0}],
        "Contents": [{"Http": [{"Domains": ["*"], "Otherwise": 404, "Rules": [rule]}]}],
        "HostPorts": "Any",
    });
    Arc::new(serde_json::from_value(form).unwrap())
}

fn port_of(service: &str) -> ServicePort {
    serde_json::from_value(json!({"Namespace": "shop", "Name": service, "Port": 80})).unwrap()
}

/// A port of UDP that leads to a Service.
fn datagrams(port: u16, service: &str) -> Arc<Datagrams> {
    let backend = json!({"Namespace": "shop", "Name": service, "Port": 53, "Protocol": "Udp"});
    let backends = json!([{"Weight": 1, "Target": {"Backend": backend}}]);
    Arc::new(serde_json::from_value(json!({"Port": port, "Backends": backends})).unwrap())
}

fn udp_port_of(service: &str) -> ServicePort {
    serde_json::from_value(
        json!({"Namespace": "shop", "Name": service, "Port": 53, "Transport": "Udp"}),
    )
    .unwrap()
}

fn at(addresses: &[&str]) -> Vec<Endpoint> {
    let endpoint = |address: &&str| Endpoint {
        address: address.parse().unwrap(),
        port: 8080,
        identity: None,
        application: None,
    };
    addresses.iter().map(endpoint).collect()
}

fn secret(certificate: &str) -> Arc<GatewaySecret> {
    Arc::new(GatewaySecret {
        name: "shop/cert".to_owned(),
        certificate: certificate.to_owned(),
        private_key: Secret::new("the key"),
    })
}

fn content() -> GatewayContent {
    GatewayContent {
        listeners: vec![listener(443, "web"), listener(8443, "api")],
        datagrams: vec![datagrams(443, "dns")],
        endpoints: vec![
            (port_of("web"), at(&["10.0.0.1", "10.0.0.2"])),
            (port_of("api"), at(&["10.0.0.3"])),
            (udp_port_of("dns"), at(&["10.0.0.4"])),
        ],
        secrets: vec![secret("a")],
        ..GatewayContent::default()
    }
}

/// A write that is refused, or cannot be stored.
#[derive(Debug, PartialEq)]
enum Refused {
    Problem(GatewayProblem),
    Unavailable,
}

impl From<GatewayProblem> for Refused {
    fn from(problem: GatewayProblem) -> Self {
        Self::Problem(problem)
    }
}

impl From<Unavailable> for Refused {
    fn from(_: Unavailable) -> Self {
        Self::Unavailable
    }
}

/// Whether a write takes an index.
async fn write(
    store: &Store,
    mut write: impl FnMut(&mut WriteTxn) -> Result<(), GatewayProblem> + Send + 'static,
) -> Result<bool, Refused> {
    let before = store.state().index();
    let written = store.write(move |txn| write(txn).map_err(Refused::from));
    written.await?;
    Ok(store.state().index() > before)
}

async fn put(
    store: &Store,
    gateway: &'static str,
    content: GatewayContent,
) -> Result<bool, Refused> {
    write(store, move |txn| txn.put_gateway(gateway, &content)).await
}

async fn put_endpoints(store: &Store, service: &str, addresses: &[&str]) -> Result<bool, Refused> {
    let all = [(port_of(service), at(addresses))];
    write(store, move |txn| txn.put_gateway_endpoints("edge", &all)).await
}

async fn put_secret(store: &Store, certificate: &str) -> Result<bool, Refused> {
    let all = [secret(certificate)];
    write(store, move |txn| txn.put_gateway_secrets("edge", &all)).await
}

#[tokio::test]
async fn what_is_equal_takes_no_index() {
    let store = Store::new();
    assert_eq!(put(&store, "edge", content()).await, Ok(true));
    assert_eq!(put(&store, "edge", content()).await, Ok(false));
    let only_listeners = GatewayContent {
        endpoints: Vec::new(),
        secrets: Vec::new(),
        ..content()
    };
    assert_eq!(put(&store, "edge", only_listeners).await, Ok(false));

    let before = store.state().read().gateway_listeners("edge");
    let again = put_endpoints(&store, "web", &["10.0.0.2", "10.0.0.1", "10.0.0.2"]).await;
    assert_eq!(again, Ok(false), "the order says nothing");
    assert_eq!(put_endpoints(&store, "web", &["10.0.0.9"]).await, Ok(true));
    assert_eq!(put_secret(&store, "a").await, Ok(false));
    assert_eq!(put_secret(&store, "b").await, Ok(true));
    let after = store.state().read().gateway_listeners("edge");
    assert!(
        std::iter::zip(&before, &after).all(|(a, b)| Arc::ptr_eq(a, b)),
        "neither an endpoint nor a certificate changes a listener"
    );

    let mut one = content();
    one.listeners[1] = listener(8443, "web");
    one.endpoints.remove(1);
    assert_eq!(put(&store, "edge", one).await, Ok(true));
    let state = store.state();
    let read = state.read();
    assert!(Arc::ptr_eq(&before[0], &read.gateway_listeners("edge")[0]));
    assert!(read.gateway_endpoints("edge", &port_of("api")).is_none());
    assert_eq!(read.gateway_datagrams("edge"), [datagrams(443, "dns")]);

    let mut without = one_listener();
    assert_eq!(put(&store, "edge", without.clone()).await, Ok(true));
    let state = store.state();
    let read = state.read();
    assert!(read.gateway_datagrams("edge").is_empty());
    assert!(
        read.gateway_endpoints("edge", &udp_port_of("dns"))
            .is_none()
    );
    without.datagrams = vec![datagrams(443, "web")];
    assert_eq!(put(&store, "edge", without).await, Ok(true));
    let listeners = store.state().read().gateway_listeners("edge");
    assert_eq!(listeners, [listener(443, "web")], "of the same port");
}

fn one_listener() -> GatewayContent {
    GatewayContent {
        listeners: vec![listener(443, "web")],
        ..GatewayContent::default()
    }
}

#[tokio::test]
async fn a_gateway_is_removed_with_everything_that_it_has() {
    let store = Store::new();
    for name in ["edge", "other"] {
        put(&store, name, content()).await.unwrap();
    }
    let remove = |txn: &mut WriteTxn| {
        txn.remove_gateway("edge");
        Ok(())
    };
    assert_eq!(write(&store, remove).await, Ok(true));
    assert_eq!(write(&store, remove).await, Ok(false));
    let state = store.state();
    let read = state.read();
    assert_eq!(read.gateways(), ["other"]);
    assert!(read.gateway_listeners("edge").is_empty());
    assert!(read.gateway_endpoints("edge", &port_of("web")).is_none());
    assert!(read.gateway_secret("edge", "shop/cert").is_none());
    assert!(read.gateway_secret("other", "shop/cert").is_some());
}

#[tokio::test]
async fn what_nothing_leads_to_is_refused() {
    let store = Store::new();
    let missing = Refused::Problem(GatewayProblem::Missing);
    assert_eq!(put_secret(&store, "a").await, Err(missing));
    let mut stray = content();
    stray.endpoints[1].0 = port_of("stray");
    let unused = Refused::Problem(GatewayProblem::UnusedEndpoints(1));
    assert_eq!(put(&store, "edge", stray).await, Err(unused));
    assert!(store.state().read().gateways().is_empty());
}

#[tokio::test]
async fn gateways_come_back_after_a_restart_and_from_a_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    put(&opened.store, "edge", content()).await.unwrap();
    let before = rows(&opened.store);
    let mut saved = Vec::new();
    opened.store.save(&mut saved).unwrap();
    opened.stop().await;

    let opened = open(directory.path()).await;
    assert_eq!(rows(&opened.store), before);
    let remove = |txn: &mut WriteTxn| {
        txn.remove_gateway("edge");
        Ok(())
    };
    assert_eq!(write(&opened.store, remove).await, Ok(true));
    let snapshot = opened.store.read_snapshot(std::io::Cursor::new(saved));
    opened.store.restore(snapshot.unwrap()).await.unwrap();
    assert_eq!(rows(&opened.store).1, before.1);
    opened.stop().await;
}

#[tokio::test]
async fn a_snapshot_with_something_invalid_is_refused() {
    let mut form = serde_json::to_value(&*listener(443, "web")).unwrap();
    form["Contents"][0]["Http"][0]["Otherwise"] = json!(42);
    let invalid = GatewayContent {
        listeners: vec![Arc::new(serde_json::from_value(form).unwrap())],
        ..GatewayContent::default()
    };
    let nowhere = GatewayContent {
        endpoints: vec![(port_of("web"), at(&["10.0.0.1", "224.0.0.1"]))],
        ..content()
    };
    let of_nothing = json!({"Namespace": "shop", "Name": "web", "Addresses": []});
    let unreachable = GatewayContent {
        frontend: Some(serde_json::from_value(of_nothing).unwrap()),
        ..GatewayContent::default()
    };
    for (content, field) in [
        (unreachable, "Addresses"),
        (invalid, "Contents[0].Http[0].Otherwise"),
        (nowhere, "Endpoints[1].Address"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let opened = open(folder.path()).await;
        put(&opened.store, "edge", content).await.unwrap();
        let mut saved = Vec::new();
        opened.store.save(&mut saved).unwrap();
        let refused = opened.store.read_snapshot(std::io::Cursor::new(saved));
        let error = refused.expect_err("it is refused").to_string();
        assert!(error.contains(field), "{error}");
        opened.stop().await;
        // The server starts with it.
        open(folder.path()).await.stop().await;
    }
}

#[test]
fn keys_of_certificates_are_sealed() {
    let key = |table, names: &[&str]| Key::new(table, &Tenancy::default(), names);
    let listener = key(Table::GatewayListeners, &["edge", "tcp", "00443"]);
    assert!(!is_secret(&listener));
    assert!(is_secret(&key(
        Table::GatewaySecrets,
        &["edge", "shop/cert"]
    )));
}

#[tokio::test]
async fn a_gateway_is_its_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    let of = |owner: &str| GatewayContent {
        owner: owner.to_owned(),
        ..content()
    };
    assert_eq!(put(&opened.store, "edge", of("")).await, Ok(true));
    assert_eq!(put(&opened.store, "edge", of("a")).await, Ok(true));
    for other in ["", "b"] {
        let refused = put(&opened.store, "edge", of(other)).await;
        assert_eq!(refused, Err(Refused::Problem(GatewayProblem::Owned)));
    }
    assert_eq!(put(&opened.store, "edge", of("a")).await, Ok(false));
    let status = opened.store.state().read().gateway_status("edge");
    assert_eq!(status.unwrap().owner, "a");
    opened.stop().await;
}
