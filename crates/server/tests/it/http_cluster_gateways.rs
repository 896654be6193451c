//! `/v1/internal/legate/gateway`: gateways of Kubernetes clusters.

use std::net::SocketAddr;

use http::StatusCode;
use legate_api::discovery::DeltaDiscoveryRequest;
use legate_api::rpc;
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ROUTE};
use legate_model::{ServiceInstance, ServiceKind};
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::grpc::{self, STOP, register};
use crate::grpc_xds::{Ads, first_of, named, names};
use crate::http_api_gateways::pair;
use crate::http_client::{Client, start};

const GATEWAY: &str = "/v1/internal/legate/gateway/edge";
const STATUS: &str = "/v1/internal/legate/gateway/edge/status";
const STATUSES: &str = "/v1/internal/legate/gateways/status";

fn of() -> Value {
    json!({"Namespace": "shop", "Name": "web", "Port": 80, "Transport": "Tcp"})
}

fn listener(port: u16) -> Value {
    let backend = json!({"Namespace": "shop", "Name": "web", "Port": 80, "Protocol": "Http1"});
    let rule = json!({
        "Origin": {"Route": {"Name": "route"}, "Rule": 0},
        "Action": {"Forward": [{"Weight": 1, "Target": {"Backend": backend}}]},
    });
    json!({
        "Port": port,
        "Chains": [{"Tls": {"Terminated": {"Certificates": [{"Secret": "shop/cert"}]}}, "Content": 0}],
        "Contents": [{"Http": [{"Domains": ["*"], "Otherwise": 404, "Rules": [rule]}]}],
        "HostPorts": "Any",
    })
}

fn endpoints(address: &str) -> Value {
    let in_mesh = json!({"Address": address, "Port": 20000, "Identity": {"Name": "web"}});
    let endpoints = json!([{"Address": address, "Port": 8080}, in_mesh]);
    json!([{"Of": of(), "Endpoints": endpoints}])
}

/// A port of UDP.
fn datagrams(port: u16) -> Value {
    let backend = json!({"Namespace": "shop", "Name": "dns", "Port": 53, "Protocol": "Udp"});
    json!({"Port": port, "Backends": [{"Weight": 1, "Target": {"Backend": backend}}]})
}

fn gateway() -> Value {
    let (certificate, key) = pair();
    json!({
        "Listeners": [listener(443)],
        "Datagrams": [datagrams(443)],
        "Endpoints": endpoints("10.0.0.1"),
        "Secrets": [{"Name": "shop/cert", "Certificate": certificate, "PrivateKey": key}],
    })
}

async fn refused(client: &Client, path: &str, body: &Value) -> String {
    let reply = client.put(path, body).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.text());
    reply.text().to_owned()
}

#[tokio::test]
async fn a_gateway_is_written_read_and_removed() {
    let (server, client) = start(|_| {}).await;
    let index = || server.store().state().index();
    let gateway = gateway();
    client.write(GATEWAY, &gateway).await;
    let written = index();
    client.write(GATEWAY, &gateway).await;
    client
        .write(
            GATEWAY,
            &json!({"Listeners": [listener(443)], "Datagrams": [datagrams(443)]}),
        )
        .await;
    let path = format!("{GATEWAY}/endpoints");
    let same = json!({"Endpoints": endpoints("10.0.0.1")});
    client.write(&path, &same).await;
    let path = format!("{GATEWAY}/secrets");
    client
        .write(&path, &json!({"Secrets": gateway["Secrets"]}))
        .await;
    assert_eq!(index(), written, "what is equal takes no index");

    let shown = client.get(GATEWAY).await;
    assert!(!shown.text().contains("PRIVATE KEY"), "{}", shown.text());
    let shown = shown.json();
    assert_eq!(shown["Listeners"], gateway["Listeners"]);
    assert_eq!(shown["Datagrams"], gateway["Datagrams"]);
    assert_eq!(shown["Endpoints"], gateway["Endpoints"]);
    assert_eq!(shown["Secrets"][0]["Name"], "shop/cert");
    let list = "/v1/internal/legate/gateways";
    assert_eq!(client.get(list).await.json(), json!(["edge"]));

    let path = format!("{GATEWAY}/endpoints");
    let other = json!({"Endpoints": endpoints("10.0.0.2")});
    client.write(&path, &other).await;
    assert_eq!(
        client.get(GATEWAY).await.json()["Endpoints"],
        other["Endpoints"]
    );
    assert_eq!(client.delete(GATEWAY).await.status, StatusCode::OK);
    assert_eq!(client.get(GATEWAY).await.status, StatusCode::NOT_FOUND);
    let late = client.put(&path, &other).await;
    assert_eq!(late.status, StatusCode::NOT_FOUND, "{}", late.text());
    assert_eq!(client.get(list).await.json(), json!([]));
}

fn many_objects() -> Value {
    let all = (0..66).map(|at| (format!("shop/{at}"), json!(1)));
    Value::Object(all.collect())
}

#[tokio::test]
async fn errors_name_the_field() {
    let (server, client) = start(|_| {}).await;
    let before = server.store().state().index();
    let with = |field: &str, value: Value| {
        let mut body = gateway();
        *body.pointer_mut(field).expect(field) = value;
        body
    };
    let rule = "/Listeners/0/Contents/0/Http/0/Rules/0";
    let stray = json!({"Namespace": "shop", "Name": "stray", "Port": 80});
    for (body, expected) in [
        (json!({}), "missing field `Listeners`"),
        (json!({"Listeners": [], "Surprise": 1}), "`Surprise`"),
        (
            with(&format!("{rule}/Action"), json!({"Teleport": 1})),
            "`Teleport`",
        ),
        (
            json!({"Listeners": [listener(443), listener(443)]}),
            "Listeners[1].Port: ",
        ),
        (
            json!({"Listeners": [], "Datagrams": [datagrams(53), datagrams(53)]}),
            "Datagrams[1].Port: ",
        ),
        (
            with("/Datagrams/0/Backends/0/Weight", json!(0)),
            "Datagrams[0].Backends[0].Weight: ",
        ),
        (
            with(
                "/Datagrams/0/Backends/0/Target",
                json!({"Service": {"Name": "api"}}),
            ),
            "Datagrams[0].Backends[0].Target: ",
        ),
        (
            with(&format!("{rule}/Action/Forward/0/Weight"), json!(0)),
            "Listeners[0].Contents[0].Http[0].Rules[0].Action.Forward[0].Weight: ",
        ),
        (with("/Endpoints/0/Of", stray), "Endpoints[0].Of: "),
        (
            with("/Endpoints/0/Endpoints/0/Address", json!("0.0.0.0")),
            "Endpoints[0].Endpoints[0].Address: ",
        ),
        (
            with("/Endpoints/0/Endpoints/1/Identity", json!({"Name": ""})),
            "Endpoints[0].Endpoints[1].Identity.Name: ",
        ),
        (
            with(
                "/Endpoints/0/Of",
                json!({"Namespace": "shop", "Name": "dns", "Port": 53, "Transport": "Udp"}),
            ),
            "Endpoints[0].Endpoints[1].Identity: sidecars take no datagrams",
        ),
        (
            with("/Secrets/0/PrivateKey", json!(pair().1)),
            "Secrets[0].PrivateKey: ",
        ),
        (
            with("/Secrets/0/Name", json!("shop/other")),
            "Secrets[0].Name: ",
        ),
        (
            json!({"Listeners": [], "Generations": {"a".repeat(513): 1}}),
            "a key of Generations: ",
        ),
        (
            json!({"Listeners": [], "Generations": many_objects()}),
            "Generations: 66 is more than 65",
        ),
    ] {
        let text = refused(&client, GATEWAY, &body).await;
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let name = "/v1/internal/legate/gateway/*";
    refused(&client, name, &json!({"Listeners": []})).await;
    let long = "a".repeat(1024 * 1024);
    let large = client.put(GATEWAY, &json!({"Listeners": long})).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(server.store().state().index(), before);
}

/// What sidecars serve for a Service.
fn frontend() -> Value {
    let plain = json!([{"Tls": "None", "Content": 0}]);
    let mut listener = listener(80);
    listener["Chains"] = plain;
    json!({
        "Owner": "cluster",
        "Frontend": {
            "Namespace": "shop", "Name": "web", "Addresses": ["10.96.0.5"], "Callers": "other",
        },
        "Listeners": [listener],
        "Endpoints": endpoints("10.0.0.1"),
    })
}

#[tokio::test]
async fn a_frontend_is_what_sidecars_can_serve() {
    const FRONTEND: &str = "/v1/internal/legate/gateway/_web.shop.other";
    let (server, client) = start(|_| {}).await;
    let before = server.store().state().index();
    let with = |pointer: &str, value: Value| {
        let mut changed = frontend();
        *changed.pointer_mut(pointer).unwrap() = value;
        changed
    };
    let mut datagrams_too = frontend();
    datagrams_too["Datagrams"] = json!([datagrams(53)]);
    for (body, expected) in [
        (with("/Owner", json!("")), "Owner: "),
        (
            with("/Frontend/Namespace", json!("Shop")),
            "Frontend.Namespace: ",
        ),
        (with("/Frontend/Name", json!("")), "Frontend.Name: "),
        (
            with("/Frontend/Addresses", json!([])),
            "Frontend.Addresses: ",
        ),
        (
            with("/Frontend/Addresses/0", json!("0.0.0.0")),
            "Frontend.Addresses[0].Address: ",
        ),
        (with("/Frontend/Callers", json!("*")), "Frontend.Callers: "),
        (with("/Listeners/0", listener(80)), "Listeners[0].Chains: "),
        (datagrams_too, "Datagrams: "),
        (
            with(
                "/Endpoints/0/Endpoints/0",
                json!({"Address": "10.0.0.1", "Port": 1, "Application": 2}),
            ),
            "Endpoints[0].Endpoints[0].Application: ",
        ),
    ] {
        let text = refused(&client, FRONTEND, &body).await;
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(server.store().state().index(), before);
    client.write(FRONTEND, &frontend()).await;
    let shown = client.get(FRONTEND).await.json();
    assert_eq!(shown["Frontend"], frontend()["Frontend"]);
    let written = server.store().state().index();
    client.write(FRONTEND, &frontend()).await;
    assert_eq!(server.store().state().index(), written, "it is equal");
    let moved = with("/Frontend/Addresses/0", json!("10.96.0.6"));
    client.write(FRONTEND, &moved).await;
    let shown = client.get(FRONTEND).await.json();
    assert_eq!(shown["Frontend"], moved["Frontend"]);
}

#[tokio::test]
async fn a_token_needs_rights_to_the_mesh() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let policy = json!({"Name": "reader", "Rules": "mesh = \"read\"\noperator = \"write\""});
    management.write("/v1/acl/policy", &policy).await;
    let token = json!({"Policies": [{"Name": "reader"}]});
    let token = management.write("/v1/acl/token", &token).await;
    let reader = management.with_token(token["SecretID"].as_str().unwrap());
    let body = json!({"Listeners": []});
    for one in [&client, &reader] {
        for path in ["", "/endpoints", "/secrets"] {
            let reply = one.put(&format!("{GATEWAY}{path}"), &body).await;
            assert_eq!(reply.status, StatusCode::FORBIDDEN, "{path}");
        }
        assert_eq!(one.delete(GATEWAY).await.status, StatusCode::FORBIDDEN);
    }
    management.write(GATEWAY, &body).await;
    for path in [GATEWAY, STATUS, STATUSES] {
        assert_eq!(client.get(path).await.status, StatusCode::FORBIDDEN);
        assert_eq!(reader.get(path).await.status, StatusCode::OK);
    }
}

/// Ports without TLS.
async fn write(client: &Client, ports: &[u16], generation: i64) {
    let listeners = ports.iter().map(|port| {
        let mut listener = listener(*port);
        listener["Chains"][0]["Tls"] = json!("None");
        listener
    });
    let listeners: Vec<_> = listeners.collect();
    let body = json!({
        "Listeners": listeners, "Generations": {"": generation}, "Owner": "cluster",
    });
    client.write(GATEWAY, &body).await;
}

/// The status of all gateways once it is another than at this index.
async fn next_status(client: &Client, index: &mut u64) -> Value {
    let reply = client
        .get(&format!("{STATUSES}?index={index}&wait=60s"))
        .await;
    assert!(reply.index() > *index, "{}", reply.text());
    *index = reply.index();
    reply.json()["edge"].take()
}

/// The status once it is this one.
async fn until_status(client: &Client, index: &mut u64, expected: Value) {
    while next_status(client, index).await != expected {}
    assert_eq!(client.get(STATUS).await.json(), expected);
}

#[tokio::test]
async fn the_status_is_what_proxies_answer() {
    let server =
        grpc::start(|config| config.http = Some(SocketAddr::from(([127, 0, 0, 1], 0)))).await;
    let client = Client::of(&server);
    assert_eq!(client.get(STATUS).await.status, StatusCode::NOT_FOUND);
    write(&client, &[80], 1).await;
    let gateway = ServiceInstance {
        kind: ServiceKind::ApiGateway,
        id: "edge-1".to_owned(),
        service: "edge".to_owned(),
        port: 8_443,
        ..ServiceInstance::default()
    };
    register(&server, gateway).await;
    let mut ads = Ads::open(&server, "").await.unwrap();
    ads.send(first_of("edge-1", CLUSTER)).await;
    let cluster = names(&ads.accept().await)[0].to_owned();
    ads.send(named(ENDPOINT, &[&cluster])).await;
    ads.accept().await;
    ads.send(named(LISTENER, &[])).await;
    let listener = ads.accept().await;
    let nothing = json!({"Owner": "cluster", "Acknowledged": {}, "Rejected": {}});
    let shown = client.get(STATUSES).await;
    let mut index = shown.index();
    assert_eq!(shown.json()["edge"], nothing, "its routes are missing");
    ads.send(named(ROUTE, &["80"])).await;
    ads.accept().await;
    let first = json!({"Owner": "cluster", "Acknowledged": {"": 1}, "Rejected": {}});
    until_status(&client, &mut index, first.clone()).await;

    let other = json!({"Listeners": [], "Owner": "another cluster"});
    let refused = client.put(GATEWAY, &other).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(
        refused.text().contains("another cluster's"),
        "{}",
        refused.text()
    );

    // Nothing has to be sent.
    write(&client, &[80], 2).await;
    let second = json!({"Owner": "cluster", "Acknowledged": {"": 2}, "Rejected": {}});
    until_status(&client, &mut index, second).await;

    write(&client, &[80, 81], 3).await;
    let other = ads.next().await.unwrap();
    assert_eq!(other.type_url, listener.type_url);
    ads.send(DeltaDiscoveryRequest {
        response_nonce: other.nonce,
        error_detail: Some(rpc::Status {
            code: 13,
            message: "the port is taken".to_owned(),
            details: Vec::new(),
        }),
        ..named(LISTENER, &[])
    })
    .await;
    let rejected = json!({"Owner": "cluster", "Acknowledged": {"": 2}, "Rejected": {"81": "the port is taken"}});
    until_status(&client, &mut index, rejected).await;

    write(&client, &[80], 4).await;
    assert_eq!(ads.accept().await.removed_resources.len(), 1);
    let fourth = json!({"Owner": "cluster", "Acknowledged": {"": 4}, "Rejected": {}});
    while next_status(&client, &mut index).await != fourth {}
    assert_eq!(client.delete(GATEWAY).await.status, StatusCode::OK);
    assert_eq!(client.get(STATUSES).await.json(), json!({}));
    drop(ads);
    server.stop(STOP).await.unwrap();
}
