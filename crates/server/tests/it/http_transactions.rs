//! Transactions over HTTP. Expected values are Consul 1.21's, except for requests that are rejected here by
//! name.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_acl_policies::{policy, token};
use crate::http_client::{Client, start};

const TXN: &str = "/v1/txn";

fn kv(verb: &str, key: &str, more: Value) -> Value {
    let mut operation = json!({ "Verb": verb, "Key": key });
    operation
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({ "KV": operation })
}

fn set(key: &str) -> Value {
    kv("set", key, json!({ "Value": "dGVzdA==" }))
}

/// The results of successful operations.
async fn done(client: &Client, operations: Value) -> Value {
    let answer = client.write(TXN, &operations).await;
    assert_eq!(answer["Errors"], Value::Null);
    answer["Results"].clone()
}

/// The indexes and texts of rejected operations.
async fn refused(client: &Client, operations: Value) -> Vec<(u64, String)> {
    let reply = client.put(TXN, &operations).await;
    assert_eq!(reply.status, StatusCode::CONFLICT, "{}", reply.text());
    let answer: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(answer["Results"], Value::Null);
    let errors = answer["Errors"].as_array().unwrap().iter();
    errors
        .map(|error| {
            (
                error["OpIndex"].as_u64().unwrap(),
                error["What"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

async fn why_not(client: &Client, operation: Value) -> String {
    let mut errors = refused(client, json!([operation])).await;
    assert_eq!(errors.len(), 1);
    errors.remove(0).1
}

#[tokio::test]
async fn key_operations_are_atomic() {
    let (server, client) = start(|_| {}).await;
    let session = client.write("/v1/session/create", &json!({})).await["ID"].clone();
    let locks = kv(
        "lock",
        "a/lock",
        json!({ "Value": "dGVzdA==", "Session": session }),
    );
    let results = done(
        &client,
        json!([
            set("a/1"),
            locks,
            kv("get", "a/lock", json!({})),
            kv("get-tree", "a/", json!({})),
            kv("get-or-empty", "none", json!({})),
            kv("check-not-exists", "none", json!({})),
            kv("check-session", "a/lock", json!({ "Session": session })),
            kv("delete", "a/1", json!({})),
        ]),
    )
    .await;
    let index = server.store().state().index();
    let entry = |key: &str, value: Value| {
        json!({
            "LockIndex": 0, "Key": key, "Flags": 0, "Value": value,
            "CreateIndex": index, "ModifyIndex": index,
        })
    };
    let lock = |value: Value| {
        let mut lock = entry("a/lock", value);
        lock["LockIndex"] = json!(1);
        lock["Session"] = session.clone();
        json!({ "KV": lock })
    };
    let text = json!("dGVzdA==");
    let mut none = entry("none", Value::Null);
    (none["CreateIndex"], none["ModifyIndex"]) = (json!(0), json!(0));
    let expected = json!([
        { "KV": entry("a/1", Value::Null) }, lock(Value::Null), lock(text.clone()),
        { "KV": entry("a/1", text.clone()) }, lock(text), { "KV": none }, lock(Value::Null),
    ]);
    assert_eq!(results, expected);
    // Read-only transactions have no index of their own.
    let read = client
        .write(TXN, &json!([kv("get", "a/lock", json!({}))]))
        .await;
    assert_eq!(read["KnownLeader"], json!(true));
    assert_eq!(read["ResultsFilteredByACLs"], json!(false));
    assert_eq!(server.store().state().index(), index);
    assert_eq!(client.write(TXN, &json!([])).await["Results"], json!([]));
}

#[tokio::test]
async fn a_failed_operation_rolls_back_all() {
    let (server, client) = start(|_| {}).await;
    done(&client, json!([set("k")])).await;
    let index = server.store().state().index();
    let errors = refused(
        &client,
        json!([
            set("new"),
            kv("lock", "k", json!({})),
            kv("lock", "k", json!({ "Session": "nobody" })),
            kv("get", "none", json!({})),
            kv("cas", "k", json!({ "Index": 1 })),
            kv("delete-cas", "k", json!({ "Index": 1 })),
            kv("unlock", "k", json!({ "Session": "nobody" })),
            kv("check-index", "k", json!({ "Index": 1 })),
            kv("check-session", "none", json!({ "Session": "x" })),
            kv("check-not-exists", "k", json!({})),
            json!({ "Node": { "Verb": "get", "Node": { "Node": "ghost" } } }),
            json!({ "Service": { "Verb": "get", "Node": "ghost", "Service": { "ID": "web" } } }),
            json!({ "Check": { "Verb": "get", "Check": { "Node": "ghost", "CheckID": "c" } } }),
        ]),
    )
    .await;
    let expected = [
        (1, "missing session".to_owned()),
        (2, "invalid session \"nobody\"".to_owned()),
        (3, "key \"none\" doesn't exist".to_owned()),
        (4, "failed to set key \"k\", index is stale".to_owned()),
        (5, "failed to delete key \"k\", index is stale".to_owned()),
        (
            6,
            "failed to unlock key \"k\", lock isn't held, or is held by another session".to_owned(),
        ),
        (
            7,
            format!("failed index check for key \"k\", current modify index {index} != 1"),
        ),
        (
            8,
            "failed to check session, key \"none\" doesn't exist".to_owned(),
        ),
        (9, "key \"k\" exists".to_owned()),
        (10, "node \"ghost\" doesn't exist".to_owned()),
        (
            11,
            "service \"web\" on node \"ghost\" doesn't exist".to_owned(),
        ),
        (12, "check \"c\" on node \"ghost\" doesn't exist".to_owned()),
    ];
    assert_eq!(errors, expected);
    assert_eq!(server.store().state().index(), index);
}

#[tokio::test]
async fn the_catalog_and_sessions_are_changed_with_keys() {
    let (_server, client) = start(|_| {}).await;
    let node = json!({ "Node": "n1", "Address": "10.0.0.1", "Meta": { "a": "b" } });
    let web = json!({ "ID": "w", "Service": "web", "Port": 80 });
    let check = json!({ "Node": "n1", "CheckID": "c", "ServiceID": "w", "Status": "passing" });
    let results = done(
        &client,
        json!([
            { "Node": { "Verb": "set", "Node": node } },
            { "Service": { "Verb": "set", "Node": "n1", "Service": web } },
            { "Check": { "Verb": "set", "Check": check } },
            set("k"),
        ]),
    )
    .await;
    assert_eq!(results[0]["Node"]["Meta"], json!({ "a": "b" }));
    assert_eq!(results[0]["Node"]["TaggedAddresses"], Value::Null);
    assert_eq!(results[1]["Service"]["Port"], json!(80));
    assert_eq!(results[1]["Service"]["Tags"], Value::Null);
    assert_eq!(results[2]["Check"]["ServiceName"], json!("web"));
    let index = results[1]["Service"]["ModifyIndex"].as_u64().unwrap();
    let cas = |verb: &str, index: u64| {
        let (mut node, mut web, mut check) = (node.clone(), web.clone(), check.clone());
        for one in [&mut node, &mut web, &mut check] {
            one["ModifyIndex"] = json!(index);
        }
        json!([
            { "Node": { "Verb": verb, "Node": node } },
            { "Service": { "Verb": verb, "Node": "n1", "Service": web } },
            { "Check": { "Verb": verb, "Check": check } },
        ])
    };
    for verb in ["cas", "delete-cas"] {
        let stale = refused(&client, cas(verb, index + 7)).await;
        assert_eq!(stale.len(), 3);
        assert!(
            stale
                .iter()
                .all(|(_, what)| what.contains("index is stale"))
        );
    }
    done(&client, cas("cas", index)).await;
    let session = client
        .write("/v1/session/create", &json!({ "Node": "n1" }))
        .await["ID"]
        .clone();
    done(
        &client,
        json!([kv("lock", "k", json!({ "Session": session }))]),
    )
    .await;
    let ends = json!({ "Session": { "Verb": "delete", "Session": { "ID": session } } });
    done(&client, json!([ends])).await;
    assert_eq!(client.get("/v1/session/list").await.json(), json!([]));
    let delayed = client.write("/v1/session/create", &json!({})).await["ID"].clone();
    let delayed = why_not(&client, kv("lock", "k", json!({ "Session": delayed }))).await;
    assert_eq!(delayed, "failed to lock key \"k\" due to lock delay");
    done(
        &client,
        json!([
            { "Check": { "Verb": "delete", "Check": { "Node": "n1", "CheckID": "c" } } },
            { "Service": { "Verb": "delete", "Node": "n1", "Service": { "ID": "w" } } },
            { "Node": { "Verb": "delete", "Node": { "Node": "n1" } } },
        ]),
    )
    .await;
    assert_eq!(client.get("/v1/catalog/node/n1").await.text(), "null");
}

/// Operations, and their error texts.
fn senseless() -> Vec<(Value, &'static str)> {
    vec![
        (
            kv("nonsense", "k", json!({})),
            "unknown KV operation: nonsense",
        ),
        (kv("set", "", json!({})), "Must provide key"),
        (kv("get-tree", "", json!({})), "Must provide key"),
        (kv("set", &"x".repeat(5000), json!({})), "too long"),
        (json!({}), "unknown operation type"),
        (
            json!({ "Node": { "Verb": "x" } }),
            "unknown node operation: x",
        ),
        (json!({ "Node": { "Verb": "set" } }), "Node"),
        (
            json!({ "Service": { "Verb": "x" } }),
            "unknown service operation: x",
        ),
        (
            json!({ "Service": { "Verb": "delete", "Node": "legate" } }),
            "Must provide service ID",
        ),
        (
            json!({ "Service": { "Verb": "set", "Node": "ghost", "Service": { "Service": "w" } } }),
            "\"ghost\" is not registered",
        ),
        (
            json!({ "Check": { "Verb": "set", "Check": { "Node": "ghost", "Name": "c" } } }),
            "\"ghost\" is not registered",
        ),
        (
            json!({ "Check": { "Verb": "x" } }),
            "unknown check operation: x",
        ),
        (
            json!({ "Check": { "Verb": "delete", "Check": { "Node": "legate" } } }),
            "Must provide check ID",
        ),
        (
            json!({ "Session": { "Verb": "create" } }),
            "unknown session operation: create",
        ),
    ]
}

#[tokio::test]
async fn invalid_operations_are_refused_and_change_nothing() {
    let (server, client) = start(|config| config.sizes.kv_value = 3).await;
    let before = server.store().state().index();
    for (operation, what) in senseless() {
        let found = why_not(&client, operation.clone()).await;
        assert!(found.contains(what), "{operation}: {found}");
    }
    let many = vec![set("k"); 129];
    for (body, status, says) in [
        (
            json!(many),
            StatusCode::PAYLOAD_TOO_LARGE,
            "too many operations (129 > 128)",
        ),
        (
            json!([set("k")]),
            StatusCode::PAYLOAD_TOO_LARGE,
            "Value for key \"k\" is too large (4 > 3 bytes)",
        ),
        (
            json!([kv("set", "k", json!({ "Value": "%" }))]),
            StatusCode::BAD_REQUEST,
            "base64",
        ),
        (
            json!([kv("set", "k", json!({ "Nonsense": 1 }))]),
            StatusCode::BAD_REQUEST,
            "Nonsense",
        ),
        (
            json!([kv("set", "k", json!({ "Namespace": "x" }))]),
            StatusCode::CONFLICT,
            "Namespace",
        ),
        (json!({}), StatusCode::BAD_REQUEST, ""),
        (json!([[]]), StatusCode::BAD_REQUEST, ""),
        (json!([{ "KV": [] }]), StatusCode::BAD_REQUEST, ""),
        (
            json!("x".repeat(600_000)),
            StatusCode::PAYLOAD_TOO_LARGE,
            "too large, max size: 524288 bytes",
        ),
    ] {
        let reply = client.put(TXN, &body).await;
        assert_eq!(reply.status, status, "{}", reply.text());
        assert!(reply.text().contains(says), "{}", reply.text());
    }
    let deep = "[".repeat(100_000);
    let reply = client.send(Method::PUT, TXN, &deep).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert_eq!(server.store().state().index(), before);
}

#[tokio::test]
async fn each_operation_requires_permission() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let web =
        json!({ "Service": { "Verb": "set", "Node": "legate", "Service": { "Service": "web" } } });
    done(&management, json!([set("app/a"), set("other"), web])).await;
    let rules = r#"
        key_prefix "app/" { policy = "write" }
        service "api" { policy = "write" }
    "#;
    policy(&management, "app", rules).await;
    let (_, app) = token(&management, json!({ "Policies": [{ "Name": "app" }] })).await;
    // Results without read permission are removed; a write without permission fails the transaction.
    let found = done(
        &app,
        json!([kv("get", "app/a", json!({})), kv("get", "other", json!({}))]),
    )
    .await;
    assert_eq!(found.as_array().unwrap().len(), 1);
    let on = |verb: &str, service: &str| {
        let service = json!({ "ID": service, "Service": service });
        json!({ "Service": { "Verb": verb, "Node": "legate", "Service": service } })
    };
    let node = json!({ "Node": "legate", "Address": "10.0.0.9" });
    let check = json!({ "Node": "legate", "Name": "c", "Status": "passing" });
    for (operation, right) in [
        (set("other"), "key:write"),
        (kv("delete-tree", "", json!({})), "key:write"),
        (
            kv("check-index", "other", json!({ "Index": 7 })),
            "key:read",
        ),
        (kv("check-not-exists", "other", json!({})), "key:write"),
        (on("set", "web"), "service:write"),
        (on("delete", "web"), "service:write"),
        (
            json!({ "Node": { "Verb": "set", "Node": node } }),
            "node:write",
        ),
        (
            json!({ "Node": { "Verb": "delete", "Node": node } }),
            "node:write",
        ),
        (
            json!({ "Check": { "Verb": "set", "Check": check } }),
            "node:write",
        ),
    ] {
        let errors = refused(&app, json!([set("app/b"), operation])).await;
        assert!(errors.len() == 1 && errors[0].0 == 1, "{errors:?}");
        assert!(errors[0].1.contains(&format!("'{right}'")), "{errors:?}");
    }
    done(
        &app,
        json!([set("app/b"), on("set", "api"), on("delete", "api")]),
    )
    .await;
}
