//! CA configuration, root rotation, and leaves over HTTP.

use std::time::Duration;

use http::StatusCode;
use legate_api::connectca::connect_ca_service_client::ConnectCaServiceClient;
use legate_api::connectca::{SignRequest, WatchRootsRequest};
use legate_identity::{Authority, CertificateInfo, RootRequest, is_issued_by, split_certificates};
use legate_model::Secret;
use legate_server::ServerConfig;
use serde_json::{Value, json};
use tonic::Code;

use crate::grpc::{self, channel, csr};
use crate::http_client::{Client, start};

const STOP: Duration = Duration::from_secs(5);
const CONFIGURATION: &str = "/v1/connect/ca/configuration";
const MANAGEMENT: &str = "4ed1b1c2-0c3d-4f6c-9a9b-1c0f2f7a5e11";

/// Reads the configuration, changes keys of `Config`, and writes it back.
async fn change(client: &Client, keys: Value) {
    let mut now = client.get(CONFIGURATION).await.json();
    let keys = keys.as_object().unwrap().clone();
    now["Config"].as_object_mut().unwrap().extend(keys);
    client.write(CONFIGURATION, &now).await;
}

async fn roots(client: &Client) -> Value {
    client.get("/v1/connect/ca/roots").await.json()
}

#[tokio::test]
async fn the_configuration_is_read_and_written_as_with_consul() {
    let (server, client) = start(|_| {}).await;
    let first = client.get(CONFIGURATION).await.json();
    assert_eq!(first["Provider"], "consul");
    assert_eq!(first["State"], Value::Null);
    let expected = json!({
        "LeafCertTTL": "72h", "IntermediateCertTTL": "8760h", "RootCertTTL": "87600h",
    });
    assert_eq!(first["Config"], expected);
    let before = roots(&client).await;

    // Like the Go client's test: durations are in nanoseconds, and state is passed through.
    change(
        &client,
        json!({
            "PrivateKey": "", "IntermediateCertTTL": 25_920_000_000_000_000_u64,
            "test_state": {"foo": "bar"},
        }),
    )
    .await;
    let second = client.get(CONFIGURATION).await.json();
    assert_eq!(second["State"]["foo"], "bar");
    assert!(second["ModifyIndex"].as_u64() > first["ModifyIndex"].as_u64());
    assert_eq!(roots(&client).await["ActiveRootID"], before["ActiveRootID"]);
    // Writing the same configuration again is a no-op.
    client.write(CONFIGURATION, &second).await;
    assert_eq!(client.get(CONFIGURATION).await.json(), second);

    for (body, status, expected) in [
        (
            json!({"Provider": "consul", "Config": {"LeafCertTTL": "1m"}}),
            500,
            "error configuring provider: leaf cert TTL must be greater or equal than 1h0m0s",
        ),
        (
            json!({"Provider": "aws-pca", "Config": {}}),
            500,
            "CA provider \"aws-pca\" is not served",
        ),
        (
            json!({"Provider": "consul", "Config": {}, "State": {"a": "b"}}),
            400,
            "Provider State is read-only. It must be omitted or identical to the current value",
        ),
        (
            json!({"Provider": "consul", "Config": {"PrivateKey": "hunter2"}}),
            500,
            "PrivateKey cannot be used: not a private key",
        ),
        (json!({"Provider": "consul", "Colour": 1}), 400, "Colour"),
    ] {
        let reply = client.put(CONFIGURATION, &body).await;
        assert_eq!(reply.status.as_u16(), status, "{}", reply.text());
        assert!(reply.text().contains(expected), "{}", reply.text());
        assert!(!reply.text().contains("hunter2"));
    }
    assert_eq!(client.get(CONFIGURATION).await.json(), second);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_rotated_root_is_cross_signed_and_the_old_one_stays_trusted() {
    let server = grpc::start(|config| {
        config.http = Some("127.0.0.1:0".parse().unwrap());
    })
    .await;
    let client = Client {
        address: server.http_addr().unwrap(),
        token: String::new(),
    };
    let mut watch = ConnectCaServiceClient::new(channel(&server).await);
    let watched = watch.watch_roots(WatchRootsRequest {}).await.unwrap();
    let mut watched = watched.into_inner();
    watched.message().await.unwrap().unwrap();
    let before = roots(&client).await;
    let old = before["Roots"][0]["RootCert"].as_str().unwrap().to_owned();
    change(
        &client,
        json!({"PrivateKeyType": "rsa", "PrivateKeyBits": 2048}),
    )
    .await;

    let after = roots(&client).await;
    let all = after["Roots"].as_array().unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(
        (&all[0]["Active"], &all[1]["Active"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(all[1]["ID"], after["ActiveRootID"]);
    assert_eq!(
        (&all[1]["PrivateKeyType"], &all[1]["PrivateKeyBits"]),
        (&json!("rsa"), &json!(2048))
    );
    let new = all[1]["RootCert"].as_str().unwrap();
    let watched_now = watched.message().await.unwrap().unwrap();
    assert_eq!(watched_now.active_root_id, after["ActiveRootID"]);
    let rotated_out = |id: &Value| {
        let root = watched_now
            .roots
            .iter()
            .find(|root| root.id == *id)
            .unwrap();
        root.rotated_out_at.is_some()
    };
    assert!(rotated_out(&all[0]["ID"]) && !rotated_out(&all[1]["ID"]));

    let leaf = client.get("/v1/agent/connect/ca/leaf/web").await.json();
    let chain = split_certificates(leaf["CertPEM"].as_str().unwrap()).unwrap();
    assert_eq!(chain.len(), 2);
    assert!(is_issued_by(&chain[0], new).unwrap());
    assert!(is_issued_by(&chain[0], &chain[1]).unwrap());
    assert!(is_issued_by(&chain[1], &old).unwrap());

    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn operator_roots_are_accepted_and_missing_cross_signing_needs_force() {
    let (server, client) = start(|_| {}).await;
    change(
        &client,
        json!({"PrivateKeyType": "rsa", "PrivateKeyBits": 2048}),
    )
    .await;

    // An operator-provided root. Its key is never returned.
    let own = Authority::generate_root(RootRequest {
        common_name: "ours".to_owned(),
        uri: format!("spiffe://{}", server.ca().trust_domain()),
        serial: 1000,
        now: std::time::SystemTime::now(),
        ttl: Duration::from_secs(24 * 3600),
    })
    .unwrap();
    change(
        &client,
        json!({"PrivateKey": own.key_pem(), "RootCert": own.cert_pem()}),
    )
    .await;
    let shown = client.get(CONFIGURATION).await.json();
    assert_eq!(shown["Config"]["PrivateKey"], "hidden");
    let last = roots(&client).await;
    assert_eq!(last["ActiveRootID"], own.info().id.as_str());
    change(&client, json!({"LeafCertTTL": "3h"})).await;
    assert_eq!(roots(&client).await, last, "the key is still the same");

    // Rotation without cross-signing requires `ForceWithoutCrossSigning`.
    change(&client, json!({"DisableCrossSigning": true})).await;
    let mut forced = json!({"Provider": "consul", "Config": {}});
    let reply = client.put(CONFIGURATION, &forced).await;
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        reply
            .text()
            .starts_with("The current CA Provider does not support cross-signing.")
    );
    forced["ForceWithoutCrossSigning"] = json!(true);
    client.write(CONFIGURATION, &forced).await;
    let active = &roots(&client).await["Roots"][3];
    assert_eq!(active["IntermediateCerts"], json!([]));
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_rotation_survives_a_restart() {
    let (server, client) = start(|_| {}).await;
    change(&client, json!({"PrivateKeyBits": 384, "LeafCertTTL": "5h"})).await;
    let before = (roots(&client).await, client.get(CONFIGURATION).await.json());
    let kept = server.stop_and_keep(STOP).await;
    let config = ServerConfig {
        http: Some("127.0.0.1:0".parse().unwrap()),
        grpc: None,
        grpc_tls: None,
        dns: None,
        ..ServerConfig::default()
    };
    let server = kept.start(config).await;
    let client = Client {
        address: server.http_addr().unwrap(),
        token: String::new(),
    };
    let after = (roots(&client).await, client.get(CONFIGURATION).await.json());
    assert_eq!(after, before);
    let leaf = client.get("/v1/agent/connect/ca/leaf/web").await.json();
    let info = CertificateInfo::from_pem(leaf["CertPEM"].as_str().unwrap()).unwrap();
    let life = info.not_after.duration_since(info.not_before).unwrap();
    assert_eq!(life, Duration::from_secs(5 * 3600));
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_leaf_requires_service_write() {
    let (server, client) = start(|config| {
        config.acl.enabled = true;
        config.acl.default_policy = legate_server::DefaultPolicy::Deny;
        config.acl.initial_management = Some(Secret::new(MANAGEMENT));
    })
    .await;
    let path = "/v1/agent/connect/ca/leaf/web";
    for path in [path, CONFIGURATION] {
        let denied = client.get(path).await;
        assert_eq!(denied.status, StatusCode::FORBIDDEN, "{path}");
        assert!(
            denied.text().contains("Permission denied"),
            "{}",
            denied.text()
        );
    }
    let management = client.with_token(MANAGEMENT);
    let own = json!({ "ServiceIdentities": [{ "ServiceName": "web" }] });
    let token = management.write("/v1/acl/token", &own).await;
    let web = client.with_token(token["SecretID"].as_str().unwrap());
    let reply = web.get(path).await;
    let leaf = reply.json();
    assert_eq!(reply.index(), leaf["ModifyIndex"].as_u64().unwrap());
    let uri = format!(
        "spiffe://{}/ns/default/dc/dc1/svc/web",
        server.ca().trust_domain()
    );
    assert_eq!(
        (&leaf["Service"], &leaf["ServiceURI"]),
        (&json!("web"), &json!(uri))
    );
    assert!(
        leaf["PrivateKeyPEM"]
            .as_str()
            .unwrap()
            .contains("PRIVATE KEY")
    );
    // All callers get the same leaf. A blocking query for a newer one times out.
    assert_eq!(web.get(path).await.json(), leaf);
    let waited = format!("{path}?index={}&wait=100ms", reply.index());
    assert_eq!(web.get(&waited).await.json(), leaf);
    for other in ["/v1/agent/connect/ca/leaf/api", CONFIGURATION] {
        assert_eq!(web.get(other).await.status, StatusCode::FORBIDDEN);
    }
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn too_many_requests_for_certificates_are_refused() {
    let server = grpc::start(|config| {
        config.http = Some("127.0.0.1:0".parse().unwrap());
    })
    .await;
    let client = Client {
        address: server.http_addr().unwrap(),
        token: String::new(),
    };
    change(&client, json!({"CSRMaxPerSecond": 0.1})).await;
    let leaf = |service: &str| format!("/v1/agent/connect/ca/leaf/{service}");
    client.get(&leaf("web")).await.json();
    let refused = client.get(&leaf("api")).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.text(), "Rate limit reached, try again later");
    // Cached leaves need no signature.
    client.get(&leaf("web")).await.json();
    let mut grpc = ConnectCaServiceClient::new(channel(&server).await);
    let uri = format!(
        "spiffe://{}/ns/default/dc/dc1/svc/web",
        server.ca().trust_domain()
    );
    let request = SignRequest { csr: csr(&[&uri]) };
    let status = grpc.sign(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    change(&client, json!({"CSRMaxPerSecond": 0})).await;
    grpc.sign(request).await.unwrap();
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn without_connect_there_is_no_ca() {
    let (server, client) = start(|config| config.connect = false).await;
    for path in [
        "/v1/connect/ca/roots",
        "/v1/agent/connect/ca/roots",
        "/v1/agent/connect/ca/leaf/web",
        CONFIGURATION,
    ] {
        let reply = client.get(path).await;
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(
            reply.text(),
            "Connect must be enabled in order to use this endpoint"
        );
    }
    server.stop(STOP).await.unwrap();
}
