//! `/v1/internal/legate/gateway`: gateways of Kubernetes clusters.

use http::StatusCode;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_api_gateways::pair;
use crate::http_client::{Client, start};

const GATEWAY: &str = "/v1/internal/legate/gateway/edge";

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
    json!([{"Of": of(), "Endpoints": [{"Address": address, "Port": 8080}]}])
}

fn gateway() -> Value {
    let (certificate, key) = pair();
    json!({
        "Listeners": [listener(443)],
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
        .write(GATEWAY, &json!({"Listeners": [listener(443)]}))
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
            with(&format!("{rule}/Action/Forward/0/Weight"), json!(0)),
            "Listeners[0].Contents[0].Http[0].Rules[0].Action.Forward[0].Weight: ",
        ),
        (with("/Endpoints/0/Of", stray), "Endpoints[0].Of: "),
        (
            with("/Endpoints/0/Endpoints/0/Address", json!("0.0.0.0")),
            "Endpoints[0].Endpoints[0].Address: ",
        ),
        (
            with("/Secrets/0/PrivateKey", json!(pair().1)),
            "Secrets[0].PrivateKey: ",
        ),
        (
            with("/Secrets/0/Name", json!("shop/other")),
            "Secrets[0].Name: ",
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
    assert_eq!(client.get(GATEWAY).await.status, StatusCode::FORBIDDEN);
    management.write(GATEWAY, &body).await;
    assert_eq!(reader.get(GATEWAY).await.status, StatusCode::OK);
}
