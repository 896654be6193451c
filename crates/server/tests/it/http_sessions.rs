//! Sessions and locks over HTTP. Expected values are Consul 1.21's.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_acl_policies::{policy, token};
use crate::http_client::{Client, start};

async fn create(client: &Client, body: &Value) -> String {
    let made = client.write("/v1/session/create", body).await;
    made["ID"].as_str().unwrap().to_owned()
}

async fn info(client: &Client, id: &str) -> Value {
    client.get(&format!("/v1/session/info/{id}")).await.json()
}

async fn acquire(client: &Client, key: &str, session: &str) -> Value {
    let path = format!("/v1/kv/{key}?acquire={session}");
    client.send(Method::PUT, &path, "held").await.json()
}

async fn destroy(client: &Client, id: &str) -> Value {
    client
        .write(&format!("/v1/session/destroy/{id}"), &json!({}))
        .await
}

/// Registers a node check.
async fn check(client: &Client, node: &str, status: &str) {
    let body = json!({
        "Node": node, "Address": "10.0.0.1", "Check": { "CheckID": "c", "Status": status },
    });
    client.write("/v1/catalog/register", &body).await;
}

#[tokio::test]
async fn a_session_is_made_shown_renewed_and_destroyed() {
    let (server, client) = start(|config| config.agent.registers_itself = true).await;
    let id = client
        .send(Method::PUT, "/v1/session/create", "")
        .await
        .json();
    let id = id["ID"].as_str().unwrap();
    let shown = client.get(&format!("/v1/session/info/{id}")).await;
    let index = shown.index();
    let expected = json!([{
        "ID": id, "Name": "", "Node": "legate", "LockDelay": 15_000_000_000u64,
        "Behavior": "release", "TTL": "", "NodeChecks": ["serfHealth"], "ServiceChecks": null,
        "CreateIndex": index, "ModifyIndex": index,
    }]);
    assert_eq!(shown.json(), expected);
    for path in ["/v1/session/list", "/v1/session/node/legate"] {
        assert_eq!(client.get(path).await.json(), expected, "{path}");
    }
    assert_eq!(client.get("/v1/session/node/x").await.json(), json!([]));
    assert_eq!(info(&client, "nobody").await, json!([]));
    let renew = format!("/v1/session/renew/{id}");
    assert_eq!(client.write(&renew, &json!({})).await, expected);
    assert_eq!(info(&client, id).await, expected, "it is the same session");
    assert_eq!(destroy(&client, id).await, json!(true));
    assert_eq!(destroy(&client, id).await, json!(true));
    assert_eq!(info(&client, id).await, json!([]));
    let gone = client.put(&renew, &json!({})).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    assert_eq!(gone.text(), format!("Session id '{id}' not found"));
    let before = server.store().state().index();
    for (body, says) in [
        (json!({ "Node": "ghost" }), "Missing node registration"),
        (json!({ "Node": "" }), "Must provide Node"),
        (
            json!({ "NodeChecks": ["x"] }),
            "Missing check 'x' registration",
        ),
        (
            json!({ "ServiceChecks": [{ "ID": "x" }] }),
            "Missing check 'x'",
        ),
        (json!({ "TTL": "1s" }), "must be between [10s=24h0m0s]"),
        (json!({ "TTL": "x" }), "Session TTL 'x' invalid"),
        (
            json!({ "Behavior": "keep" }),
            "Invalid Behavior setting 'keep'",
        ),
    ] {
        let reply = client.put("/v1/session/create", &body).await;
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR, "{body}");
        assert!(reply.text().contains(says), "{body}: {}", reply.text());
    }
    let unnamed = client.get("/v1/session/info/").await;
    assert_eq!(
        (unnamed.status, unnamed.text()),
        (StatusCode::BAD_REQUEST, "Missing session")
    );
    for body in [
        json!({ "LockDelay": "x" }),
        json!({ "Nonsense": 1 }),
        json!([]),
    ] {
        let reply = client.put("/v1/session/create", &body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{body}");
    }
    assert_eq!(server.store().state().index(), before);
}

#[tokio::test]
async fn one_session_holds_a_lock_until_it_releases_it() {
    let (_server, client) = start(|_| {}).await;
    let quick = json!({ "LockDelay": 0 });
    let (a, b) = (create(&client, &quick).await, create(&client, &quick).await);
    assert_eq!(acquire(&client, "lock", &a).await, json!(true));
    assert_eq!(acquire(&client, "lock", &a).await, json!(true));
    assert_eq!(acquire(&client, "lock", &b).await, json!(false));
    let held = client.get("/v1/kv/lock").await.json();
    assert_eq!(
        (&held[0]["LockIndex"], &held[0]["Session"]),
        (&json!(1), &json!(a))
    );
    let release = |session: &str| format!("/v1/kv/lock?release={session}");
    let not_mine = client.send(Method::PUT, &release(&b), "").await.json();
    assert_eq!(not_mine, json!(false));
    // A plain write changes the value and keeps the lock.
    client.send(Method::PUT, "/v1/kv/lock", "changed").await;
    assert_eq!(
        client.get("/v1/kv/lock").await.json()[0]["Session"],
        json!(a)
    );
    assert_eq!(
        client.send(Method::PUT, &release(&a), "free").await.json(),
        json!(true)
    );
    let free = client.get("/v1/kv/lock").await.json();
    assert_eq!(
        (&free[0]["LockIndex"], &free[0]["Session"]),
        (&json!(1), &Value::Null)
    );
    assert_eq!(acquire(&client, "lock", &b).await, json!(true));
    assert_eq!(
        client.get("/v1/kv/lock").await.json()[0]["LockIndex"],
        json!(2)
    );
    destroy(&client, &b).await;
    assert_eq!(acquire(&client, "lock", &a).await, json!(true), "no delay");
    let deleting = create(&client, &json!({ "LockDelay": 0, "Behavior": "delete" })).await;
    assert_eq!(acquire(&client, "mine", &deleting).await, json!(true));
    destroy(&client, &deleting).await;
    assert_eq!(
        client.get("/v1/kv/mine").await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_failing_check_ends_its_session() {
    let (_server, client) = start(|_| {}).await;
    check(&client, "n1", "passing").await;
    let body = json!({ "Node": "n1", "NodeChecks": ["c"], "LockDelay": 0 });
    let failing = create(&client, &body).await;
    assert_eq!(acquire(&client, "k", &failing).await, json!(true));
    check(&client, "n1", "warning").await;
    assert_ne!(info(&client, &failing).await, json!([]));
    let index = client.get("/v1/kv/k").await.index();
    let waits = format!("/v1/kv/k?index={index}&wait=60s");
    let (freed, ()) = tokio::join!(client.get(&waits), check(&client, "n1", "critical"));
    assert_eq!(freed.json()[0]["Session"], Value::Null);
    assert_eq!(info(&client, &failing).await, json!([]));
    let refused = client.put("/v1/session/create", &body).await;
    assert_eq!(refused.text(), "Check 'c' is in critical state");
    check(&client, "n1", "passing").await;
    for gone in [
        json!({ "Node": "n1", "CheckID": "c" }),
        json!({ "Node": "n1" }),
    ] {
        check(&client, "n1", "passing").await;
        let session = create(&client, &body).await;
        client.write("/v1/catalog/deregister", &gone).await;
        assert_eq!(info(&client, &session).await, json!([]), "{gone}");
    }
}

#[tokio::test]
async fn an_expired_session_ends_with_a_lock_delay() {
    let (_server, client) = start(|config| {
        config.session_ttl_min = Duration::from_millis(1);
    })
    .await;
    let brief = create(&client, &json!({ "TTL": "200ms", "LockDelay": "300ms" })).await;
    let other = create(&client, &json!({})).await;
    assert_eq!(acquire(&client, "k", &brief).await, json!(true));
    // Renewed in time, the session stays.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let renewed = client
            .put(&format!("/v1/session/renew/{brief}"), &json!({}))
            .await;
        assert_eq!(renewed.status, StatusCode::OK);
    }
    let index = client.get("/v1/kv/k").await.index();
    let waits = format!("/v1/kv/k?index={index}&wait=60s");
    let freed = client.get(&waits).await.json();
    assert_eq!(freed[0]["Session"], Value::Null);
    assert_eq!(info(&client, &brief).await, json!([]));
    assert_eq!(acquire(&client, "k", &other).await, json!(false), "delayed");
    while acquire(&client, "k", &other).await == json!(false) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn renewals_are_not_stored() {
    let (server, client) = start(|_| {}).await;
    server.store().leadership().held().await;
    let session = create(&client, &json!({ "TTL": "10s" })).await;
    let index = server.store().state().index();
    for _ in 0..5 {
        let path = format!("/v1/session/renew/{session}");
        let renewed = client.write(&path, &json!({})).await;
        assert_eq!(renewed, info(&client, &session).await);
    }
    assert_eq!(server.store().state().index(), index);
}

#[tokio::test]
async fn tokens_make_and_see_the_sessions_of_their_nodes() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    check(&management, "n1", "passing").await;
    let rules = r#"
        session "n1" { policy = "write" }
        session "legate" { policy = "read" }
    "#;
    policy(&management, "s", rules).await;
    let (_, app) = token(&management, json!({ "Policies": [{ "Name": "s" }] })).await;
    let on = |node: &str| json!({ "Node": node });
    let own = create(&app, &on("n1")).await;
    let refused = app.put("/v1/session/create", &on("legate")).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.text().contains("'session:write' on \"legate\""));
    let others = create(&management, &on("legate")).await;
    for verb in ["destroy", "renew"] {
        let path = format!("/v1/session/{verb}/{others}");
        let refused = app.put(&path, &json!({})).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{verb}");
    }
    assert_ne!(info(&app, &others).await, json!([]));
    assert_eq!(client.get("/v1/session/list").await.json(), json!([]));
    let nobody = client.get(&format!("/v1/session/info/{own}")).await.json();
    assert_eq!(nobody, json!([]));
    assert_eq!(destroy(&app, &own).await, json!(true));
}
