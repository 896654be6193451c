//! Discovery chains over HTTP.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::start;

const WEB: &str = "/v1/discovery-chain/web";

#[tokio::test]
async fn a_chain_reflects_config_entries() {
    let (_server, client) = start(|_| {}).await;
    let native = json!({ "Node": "n1", "Address": "10.0.0.1", "Service": {
        "Service": "web", "Port": 80, "Connect": { "Native": true },
    }});
    client.write("/v1/catalog/register", &native).await;
    let first = client.get(WEB).await;
    let chain = &first.json()["Chain"];
    assert_eq!(chain["Protocol"], "tcp");
    assert_eq!(chain["Default"], true);
    assert_eq!(chain["StartNode"], "resolver:web.default.default.dc1");
    assert_eq!(chain["AutoVirtualIPs"], json!(["240.0.0.1"]));
    assert_eq!(chain["ManualVirtualIPs"], json!(null));
    let target = &chain["Targets"]["web.default.default.dc1"];
    assert_eq!(target["ConnectTimeout"], "5s");
    let name = target["SNI"].as_str().unwrap();
    assert!(name.starts_with("web.default.dc1.internal."), "{name}");

    // A blocking query returns after a change of an entry.
    let path = format!("{WEB}?wait=60s&index={}", first.index());
    let defaults = json!({
        "Kind": "service-defaults", "Name": "web", "Protocol": "grpc", "Meta": { "team": "a" },
    });
    let (changed, _) = tokio::join!(client.get(&path), client.write("/v1/config", &defaults));
    assert_eq!(changed.json()["Chain"]["Protocol"], "grpc");
    assert_eq!(changed.json()["Chain"]["ServiceMeta"]["team"], "a");
}

#[tokio::test]
async fn a_caller_may_override_settings() {
    let (_server, client) = start(|_| {}).await;
    let overrides = json!({
        "OverrideProtocol": "grpc", "OverrideConnectTimeout": "33s",
        "OverrideMeshGateway": { "Mode": "remote" },
    });
    let ask = async |body: &Value| client.send(Method::POST, WEB, &body.to_string()).await;
    let chain = ask(&overrides).await.json()["Chain"].clone();
    assert_eq!(chain["Protocol"], "grpc");
    assert_eq!(chain["CustomizationHash"], "8559080e");
    let target = &chain["Targets"]["web.default.default.dc1"];
    assert_eq!(target["ConnectTimeout"], "33s");
    assert_eq!(target["MeshGateway"]["Mode"], "remote");
    for wrong in [
        json!({ "OverrideProtocol": "smtp" }),
        json!({ "OverrideConnectTimeout": "-1s" }),
        json!({ "OverrideMeshGateway": { "Mode": "none at all" } }),
        json!({ "Unknown": 1 }),
    ] {
        let refused = ask(&wrong).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{wrong}");
    }
    let elsewhere = client.get(&format!("{WEB}?compile-dc=dc2")).await.json();
    assert_eq!(elsewhere["Chain"]["Datacenter"], "dc2");
    assert_eq!(
        elsewhere["Chain"]["StartNode"],
        "resolver:web.default.default.dc2"
    );
}

#[tokio::test]
async fn a_chain_requires_service_read() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let refused = client.get(WEB).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(
        refused.text().contains("service:read"),
        "{}",
        refused.text()
    );
    assert_eq!(management.get(WEB).await.status, StatusCode::OK);
}
