//! `/v1/operator` and `/v1/acl/replication`: the status of a single server, and operations without an
//! equivalent.

use http::{Method, StatusCode};
use serde_json::json;

use crate::http_client::start;

#[tokio::test]
async fn a_server_answers_for_itself() {
    let (_server, client) = start(|config| config.agent.registers_itself = true).await;
    let raft = client.get("/v1/operator/raft/configuration").await.json();
    let server = &raft["Servers"][0];
    assert_eq!(raft["Servers"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&server["Leader"], &server["Voter"]),
        (&json!(true), &json!(true))
    );
    let id = server["ID"].as_str().unwrap();
    assert_eq!(id.len(), 36, "{raft}");

    let health = client.get("/v1/operator/autopilot/health").await.json();
    assert_eq!(health["Healthy"], true);
    assert_eq!(health["Servers"][0]["ID"], id);
    assert_eq!(health["Servers"][0]["SerfStatus"], "alive");
    let state = client.get("/v1/operator/autopilot/state").await.json();
    assert_eq!(
        (&state["Leader"], &state["Voters"]),
        (&json!(id), &json!([id]))
    );
    assert_eq!(state["Servers"][id]["Status"], "leader");
}

#[tokio::test]
async fn operations_on_other_servers_are_errors() {
    let (_server, client) = start(|config| config.agent.registers_itself = true).await;
    let raft = client.get("/v1/operator/raft/configuration").await.json();
    let server = &raft["Servers"][0];
    let (id, address) = (&server["ID"], server["Address"].as_str().unwrap());
    let peer = "/v1/operator/raft/peer";
    for (query, status, says) in [
        (
            String::new(),
            StatusCode::BAD_REQUEST,
            "Must specify either ?id",
        ),
        (
            "?id=a&address=b".to_owned(),
            StatusCode::BAD_REQUEST,
            "only one of",
        ),
        (
            "?id=x".to_owned(),
            StatusCode::INTERNAL_SERVER_ERROR,
            "id \"x\" was not found in the Raft configuration",
        ),
        (
            format!("?id={}", id.as_str().unwrap()),
            StatusCode::INTERNAL_SERVER_ERROR,
            "is this server, the only one",
        ),
        (
            format!("?address={address}"),
            StatusCode::INTERNAL_SERVER_ERROR,
            "is this server, the only one",
        ),
    ] {
        let reply = client.delete(&format!("{peer}{query}")).await;
        assert_eq!(reply.status, status, "{query}");
        assert!(reply.text().contains(says), "{}", reply.text());
    }
    let transfer = "/v1/operator/raft/transfer-leader";
    let transfer = client.send(Method::POST, transfer, "").await;
    assert!(
        transfer.text().contains("cannot find peer"),
        "{}",
        transfer.text()
    );
    for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE] {
        let reply = client.send(method, "/v1/operator/keyring", "{}").await;
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(
            reply.text().contains("Keyring is empty"),
            "{}",
            reply.text()
        );
    }
    for path in [
        "/v1/operator/area",
        "/v1/operator/area/x",
        "/v1/operator/segment",
    ] {
        assert_eq!(
            client.get(path).await.status,
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_autopilot_configuration_is_kept_and_reported_as_without_effect() {
    let (_server, client) = start(|_| {}).await;
    let path = "/v1/operator/autopilot/configuration";
    let before = client.get(path).await.json();
    assert_eq!(before["CleanupDeadServers"], true);
    assert_eq!(before["LastContactThreshold"], "200ms");
    assert_eq!(before["ServerStabilizationTime"], "10s");
    assert_eq!(before["MaxTrailingLogs"], 250);

    let change = json!({ "CleanupDeadServers": false, "LastContactThreshold": "5s" });
    assert_eq!(
        client.write(&format!("{path}?cas=77"), &change).await,
        false
    );
    let written = client.put(&format!("{path}?cas=0"), &change).await;
    assert_eq!(written.json(), true);
    assert_eq!(
        written.header("x-legate-not-served"),
        "LastContactThreshold"
    );
    let after = client.get(path).await.json();
    assert_eq!(after["CleanupDeadServers"], false);
    assert_eq!(after["LastContactThreshold"], "5s");
    // Omitted fields get Consul's defaults, not the previous values.
    assert_eq!(client.write(path, &json!({})).await, true);
    let last = client.get(path).await.json();
    assert_eq!(last["LastContactThreshold"], "200ms");
    assert_eq!(last["CreateIndex"], after["CreateIndex"]);
}

#[tokio::test]
async fn usage_counts_services_and_nodes() {
    let (_server, client) = start(|config| config.agent.registers_itself = true).await;
    let service = |service: serde_json::Value| json!({ "Node": "n", "Address": "10.0.0.1", "Service": service });
    for one in [
        json!({ "ID": "r1", "Service": "redis" }),
        json!({ "ID": "r2", "Service": "redis" }),
        json!({ "Service": "native", "Port": 1, "Connect": { "Native": true } }),
        json!({
            "Kind": "connect-proxy", "Service": "proxy", "Port": 1,
            "Proxy": { "DestinationServiceName": "redis" },
        }),
    ] {
        client.write("/v1/catalog/register", &service(one)).await;
    }
    let reply = client.get("/v1/operator/usage?global").await;
    assert!(reply.index() > 0);
    let usage = &reply.json()["Usage"]["dc1"];
    assert_eq!(usage["Nodes"], 2);
    assert_eq!(usage["Services"], 4);
    assert_eq!(usage["ServiceInstances"], 5);
    assert_eq!(usage["BillableServiceInstances"], 3);
    assert_eq!(
        usage["ConnectServiceInstances"],
        json!({
            "api-gateway": 0, "connect-native": 1, "connect-proxy": 1, "ingress-gateway": 0,
            "mesh-gateway": 0, "terminating-gateway": 0,
        })
    );
}

/// With Consul's text, which names the token.
#[tokio::test]
async fn a_token_without_the_right_is_named() {
    let (_server, client) = start(|config| {
        config.acl.enabled = true;
        config.acl.default_policy = legate_server::DefaultPolicy::Deny;
    })
    .await;
    let early = client.with_token("root").get("/v1/operator/usage").await;
    assert_eq!(
        (early.status, early.text()),
        (
            StatusCode::FORBIDDEN,
            "ACL system must be bootstrapped before making any requests that require authorization: \
             ACL not found"
        )
    );
    let anonymous = client.get("/v1/operator/usage").await;
    assert_eq!(
        (anonymous.status, anonymous.text()),
        (
            StatusCode::FORBIDDEN,
            "Permission denied: anonymous token lacks permission 'operator:read'. The anonymous token \
             is used implicitly when a request does not specify a token."
        )
    );
    let root = client.put("/v1/acl/bootstrap", &json!({})).await.json();
    let root = client.with_token(root["SecretID"].as_str().unwrap());
    let weak = root.write("/v1/acl/token", &json!({})).await;
    let accessor = weak["AccessorID"].as_str().unwrap();
    let weak = root.with_token(weak["SecretID"].as_str().unwrap());
    let denied = weak.get("/v1/config/service-defaults/web").await;
    assert_eq!(
        denied.text(),
        format!(
            "Permission denied: token with AccessorID '{accessor}' lacks permission 'service:read' \
             on \"web\""
        )
    );
    for (method, path) in [
        (Method::GET, "/v1/operator/raft/configuration"),
        (Method::DELETE, "/v1/operator/raft/peer?id=x"),
        (Method::POST, "/v1/operator/raft/transfer-leader"),
        (Method::GET, "/v1/operator/autopilot/configuration"),
        (Method::PUT, "/v1/operator/autopilot/configuration"),
        (Method::GET, "/v1/operator/autopilot/health"),
        (Method::GET, "/v1/operator/autopilot/state"),
        (Method::GET, "/v1/operator/usage"),
        (Method::GET, "/v1/operator/keyring"),
        (Method::PUT, "/v1/operator/keyring"),
        (Method::GET, "/v1/exported-services"),
        (Method::GET, "/v1/peerings"),
        (Method::GET, "/v1/peering/x"),
        (Method::DELETE, "/v1/peering/x"),
        (Method::POST, "/v1/peering/token"),
        (Method::POST, "/v1/peering/establish"),
    ] {
        let reply = weak.send(method.clone(), path, "{}").await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{method} {path}");
    }
    // Health checks call it without a token.
    let replication = client.get("/v1/acl/replication").await.json();
    assert_eq!(replication["Enabled"], false);
    assert_eq!(replication["LastSuccess"], "0001-01-01T00:00:00Z");
}
