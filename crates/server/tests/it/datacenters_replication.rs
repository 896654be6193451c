//! A secondary datacenter follows its primary: rows that all datacenters have are written there, and replicated.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{Method, StatusCode};
use legate_model::Secret;
use legate_server::{AclConfig, DefaultPolicy, ServerConfig};
use legate_testkit::certs::TestCa;
use legate_testkit::jwt::TestSigner;
use legate_testkit::wait;
use serde_json::{Value, json};

use crate::datacenters::{PATIENCE, join, of_datacenter};
use crate::http_client::{Client, Reply, start};

pub(crate) const ROOT: &str = "7f6c2a1e-0d3b-4c55-9c1f-5a4d4b7c1b01";

fn with_acls(config: &mut ServerConfig) {
    config.acl = AclConfig {
        enabled: true,
        default_policy: DefaultPolicy::Deny,
        ..AclConfig::default()
    };
}

pub(crate) fn primary(ca: &TestCa) -> impl FnOnce(&mut ServerConfig) {
    let of_datacenter = of_datacenter(ca, "dc1");
    |config| {
        of_datacenter(config);
        with_acls(config);
        config.acl.initial_management = Some(Secret::new(ROOT));
    }
}

pub(crate) fn secondary(ca: &TestCa, token: &str) -> impl FnOnce(&mut ServerConfig) {
    let of_datacenter = of_datacenter(ca, "dc2");
    let token = Secret::new(token);
    |config| {
        of_datacenter(config);
        with_acls(config);
        config.primary_datacenter = Some("dc1".to_owned());
        config.agent.tokens.replication = Some(token);
    }
}

/// Reads until the answer is as expected.
pub(crate) async fn until(client: &Client, path: &str, expected: impl Fn(&Reply) -> bool) -> Reply {
    wait::until(async || {
        let reply = client.get(path).await;
        match expected(&reply) {
            true => Ok(reply),
            false => Err(format!("{path}: {}", reply.text())),
        }
    })
    .await
}

/// Waits until replication has failed for this reason.
async fn fails_with(client: &Client, path: &str, reason: &str) {
    let failed = |reply: &Reply| {
        let status = reply.json();
        let status = status.get("Replication").unwrap_or(&status);
        let error = status["LastErrorMessage"].as_str().unwrap();
        error.contains(reason)
    };
    until(client, path, failed).await;
}

fn exists(reply: &Reply) -> bool {
    reply.status == StatusCode::OK && reply.text() != "null"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_all_datacenters_are_written_in_the_primary_and_replicated() {
    let ca = TestCa::new();
    let (one, client) = start(primary(&ca)).await;
    let (two, other) = start(secondary(&ca, ROOT)).await;
    let (client, other) = (client.with_token(ROOT), other.with_token(ROOT));
    let web = json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http"});
    let refused = other.put("/v1/config", &web).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        refused.text().contains("No path to datacenter \"dc1\""),
        "{}",
        refused.text()
    );

    join(&client, &two).await;
    until(&other, "/v1/acl/token/self", exists).await;
    // Written through the secondary, they are rows of the primary, and come back.
    assert_eq!(other.write("/v1/config", &web).await, json!(true));
    let path = "/v1/config/service-defaults/web";
    assert_eq!(client.get(path).await.json()["Protocol"], json!("http"));
    let replicated = until(&other, path, exists).await.json();
    assert_eq!(replicated["Protocol"], json!("http"));
    compare_and_set(&client, &other, path).await;
    let intention = json!({"SourceName": "a", "DestinationName": "web", "Action": "deny"});
    let path = "/v1/connect/intentions/exact?source=a&destination=web";
    other.write(path, &intention).await;
    until(&other, path, exists).await;
    let policy = json!({"Name": "p", "Rules": "key_prefix \"\" { policy = \"write\" }"});
    let policy = other.write("/v1/acl/policy", &policy).await;
    let role = json!({"Name": "r", "Policies": [{"ID": policy["ID"]}]});
    other.write("/v1/acl/role", &role).await;
    until(&other, "/v1/acl/role/name/r", exists).await;
    let token = |local: bool| json!({"Roles": [{"Name": "r"}], "Local": local});
    let global = other.write("/v1/acl/token", &token(false)).await;
    let local = other.write("/v1/acl/token", &token(true)).await;
    let of = |token: &Value| format!("/v1/acl/token/{}", token["AccessorID"].as_str().unwrap());
    until(&other, &of(&global), exists).await;
    assert!(exists(&client.get(&of(&global)).await));
    assert!(exists(&other.get(&of(&local)).await));
    assert_eq!(client.get(&of(&local)).await.status, StatusCode::FORBIDDEN);
    // Both give the same right there.
    for token in [&global, &local] {
        let holder = other.with_token(token["SecretID"].as_str().unwrap());
        let written = holder.send(Method::PUT, "/v1/kv/a", "b").await;
        assert_eq!(written.json(), json!(true));
    }
    let namespace = json!({"Name": "team"});
    other.write("/v1/namespace", &namespace).await;
    until(&other, "/v1/namespace/team", exists).await;
    let named = json!({"Kind": "service-defaults", "Name": "db", "Namespace": "team"});
    client.write("/v1/config", &named).await;
    let path = "/v1/config/service-defaults/db?ns=team";
    until(&other, path, exists).await;

    // What is removed there is removed here.
    assert_eq!(other.delete(&of(&global)).await.status, StatusCode::OK);
    let gone = |reply: &Reply| reply.status == StatusCode::FORBIDDEN;
    until(&other, &of(&global), gone).await;
    assert_eq!(other.delete(&of(&local)).await.status, StatusCode::OK);
    client.delete("/v1/namespace/team").await;
    let missing = |reply: &Reply| reply.status == StatusCode::NOT_FOUND;
    until(&other, "/v1/namespace/team", missing).await;
    let again = other.put("/v1/acl/bootstrap", &json!({})).await;
    assert_eq!(again.status, StatusCode::FORBIDDEN, "{}", again.text());

    let status = other.get("/v1/acl/replication").await.json();
    assert_eq!(
        (
            &status["Enabled"],
            &status["Running"],
            &status["SourceDatacenter"]
        ),
        (&json!(true), &json!(true), &json!("dc1"))
    );
    assert!(
        status["ReplicatedTokenIndex"].as_u64().unwrap() > 0,
        "{status}"
    );
    let own = other.get("/v1/internal/legate/status").await.json();
    assert_eq!(own["Replication"]["Source"], json!("dc1"));
    let own = other.get("/v1/agent/self").await.json();
    assert_eq!(own["Config"]["PrimaryDatacenter"], json!("dc1"));

    // Without the primary, what is there is served, and what is local is written.
    one.stop(PATIENCE).await.unwrap();
    goes_on_alone(&other, &web).await;
    two.stop(PATIENCE).await.unwrap();
}

async fn goes_on_alone(other: &Client, web: &Value) {
    assert!(exists(&other.get("/v1/config/service-defaults/web").await));
    let written = other.send(Method::PUT, "/v1/kv/a", "c").await;
    assert_eq!(written.json(), json!(true));
    let refused = other.put("/v1/config", web).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(refused.text().contains("dc1"), "{}", refused.text());
}

/// Changes an entry by the index that it has in the secondary, and removes it so.
async fn compare_and_set(client: &Client, other: &Client, path: &str) {
    let entry = json!({"Kind": "service-defaults", "Name": "cas", "Protocol": "http"});
    // The datacenter may be named.
    assert_eq!(
        other.write("/v1/config?dc=dc2&cas=0", &entry).await,
        json!(true)
    );
    let path = path.replace("web", "cas");
    let index = |reply: &Reply| reply.json()["ModifyIndex"].as_u64().unwrap();
    let here = index(&until(other, &path, exists).await);
    let changed = json!({"Kind": "service-defaults", "Name": "cas", "Protocol": "grpc"});
    let put = |index: u64| format!("/v1/config?cas={index}");
    assert_eq!(other.write(&put(here + 1000), &changed).await, json!(false));
    assert_eq!(other.write(&put(here), &changed).await, json!(true));
    assert_eq!(client.get(&path).await.json()["Protocol"], json!("grpc"));
    let arrived = |reply: &Reply| reply.json()["Protocol"] == json!("grpc");
    let here = index(&until(other, &path, arrived).await);
    // Changed there, and not known here yet or known already: it is not removed by an older index.
    let again = json!({"Kind": "service-defaults", "Name": "cas", "Protocol": "http2"});
    client.write("/v1/config", &again).await;
    let removed = other.delete(&format!("{path}?cas={here}")).await;
    assert_eq!(removed.json(), json!(false));
    let arrived = |reply: &Reply| reply.json()["Protocol"] == json!("http2");
    let here = index(&until(other, &path, arrived).await);
    let removed = other.delete(&format!("{path}?cas={here}")).await;
    assert_eq!(removed.json(), json!(true));
    assert_eq!(client.get(&path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_cannot_be_applied_holds_up_no_other_and_is_tried_again() {
    let ca = TestCa::new();
    let (one, client) = start(primary(&ca)).await;
    let (two, other) = start(secondary(&ca, ROOT)).await;
    let (client, other) = (client.with_token(ROOT), other.with_token(ROOT));
    join(&client, &two).await;
    until(&other, "/v1/acl/token/self", exists).await;
    let signer = TestSigner::generate();
    let method = |locality: &str| {
        json!({"Name": "m", "Type": "jwt", "TokenLocality": locality, "Config": {
            "JWTValidationPubKeys": [signer.public_key_pem()], "JWTSupportedAlgs": ["ES256"],
            "ClaimMappings": {"sub": "name"},
        }})
    };
    other.write("/v1/acl/auth-method", &method("local")).await;
    client.write("/v1/acl/auth-method", &method("global")).await;
    let rule = json!({"AuthMethod": "m", "BindType": "service", "BindName": "${value.name}"});
    client.write("/v1/acl/binding-rule", &rule).await;
    fails_with(&other, "/v1/acl/replication", "is local to this datacenter").await;
    client
        .write("/v1/acl/policy", &json!({"Name": "later"}))
        .await;
    until(&other, "/v1/acl/policy/name/later", exists).await;
    let status = other.get("/v1/internal/legate/status").await.json();
    let problem = status["Problems"][0]["What"].clone();
    assert_eq!(problem, json!("replication of some rows"), "{status}");

    // The name is free: the method and its rule arrive, and a login here gives a token of all datacenters.
    other.delete("/v1/acl/auth-method/m").await;
    let arrived = |reply: &Reply| exists(reply) && reply.text().contains("\"m\"");
    until(&other, "/v1/acl/binding-rules?authmethod=m", arrived).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let claims = json!({"sub": "web", "exp": now.as_secs() + 60});
    let login = json!({"AuthMethod": "m", "BearerToken": signer.sign(&claims)});
    let login = login.to_string();
    let login = other.send(Method::POST, "/v1/acl/login", &login);
    let token = login.await.json();
    assert_eq!(token["Local"], json!(false));
    let holder = token["SecretID"].as_str().unwrap();
    // It is known in both datacenters at once.
    for client in [&other, &client] {
        let own = client.with_token(holder).get("/v1/acl/token/self").await;
        assert!(exists(&own), "{}", own.text());
    }
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_for_replication_needs_rights() {
    let ca = TestCa::new();
    let (one, client) = start(primary(&ca)).await;
    let client = client.with_token(ROOT);
    let weak = client.write("/v1/acl/token", &json!({})).await;
    let weak = weak["SecretID"].as_str().unwrap().to_owned();
    let (two, other) = start(secondary(&ca, &weak)).await;
    join(&client, &two).await;
    fails_with(&other, "/v1/acl/replication", "acl:write").await;
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secondary_is_no_primary() {
    let ca = TestCa::new();
    let (one, client) = start(|config| {
        of_datacenter(&ca, "dc1")(config);
        config.primary_datacenter = Some("dc3".to_owned());
    })
    .await;
    let (two, other) = start(|config| {
        of_datacenter(&ca, "dc2")(config);
        config.primary_datacenter = Some("dc1".to_owned());
    })
    .await;
    join(&client, &two).await;
    let web = json!({"Kind": "service-defaults", "Name": "web"});
    let refused = other.put("/v1/config", &web).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        refused
            .text()
            .contains("\"dc1\" is not the primary datacenter"),
        "{}",
        refused.text()
    );
    let path = "/v1/internal/legate/status";
    fails_with(&other, path, "is not the primary datacenter").await;
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_without_acls_does_not_remove_those_of_a_secondary() {
    let ca = TestCa::new();
    let (one, client) = start(of_datacenter(&ca, "dc1")).await;
    let (two, other) = start(secondary(&ca, ROOT)).await;
    join(&client, &two).await;
    fails_with(&other, "/v1/acl/replication", "has no ACLs").await;
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}
