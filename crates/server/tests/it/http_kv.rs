//! KV over HTTP. Expected values are Consul 1.21's, except for requests that are rejected here by name.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_acl_policies::{policy, token};
use crate::http_client::{Client, Reply, start};

async fn put(client: &Client, path: &str, value: &str) -> Reply {
    client
        .send(Method::PUT, &format!("/v1/kv/{path}"), value)
        .await
}

async fn get(client: &Client, path: &str) -> Reply {
    client.get(&format!("/v1/kv/{path}")).await
}

async fn delete(client: &Client, path: &str) -> Reply {
    client.delete(&format!("/v1/kv/{path}")).await
}

/// Writes that must succeed.
async fn fill(client: &Client, keys: &[&str]) {
    for key in keys {
        assert_eq!(put(client, key, key).await.json(), json!(true));
    }
}

async fn listed(client: &Client, path: &str) -> Vec<String> {
    let answer = get(client, path).await.json();
    let keys = answer.as_array().unwrap().iter();
    let name = |one: &Value| one.as_str().or(one["Key"].as_str()).unwrap().to_owned();
    keys.map(name).collect()
}

#[tokio::test]
async fn a_key_is_written_read_and_removed() {
    let (_server, client) = start(|_| {}).await;
    let absent = get(&client, "a/b").await;
    assert_eq!((absent.status, absent.text()), (StatusCode::NOT_FOUND, ""));
    // A blocking query on a missing key returns when the key is written.
    let waits = format!("a/b?index={}&wait=60s", absent.index());
    let (waited, written) =
        tokio::join!(get(&client, &waits), put(&client, "a/b?flags=42", "test"));
    assert_eq!(written.json(), json!(true));
    let index = waited.index();
    let expected = json!([{
        "LockIndex": 0, "Key": "a/b", "Flags": 42, "Value": "dGVzdA==",
        "CreateIndex": index, "ModifyIndex": index,
    }]);
    assert_eq!(waited.json(), expected);
    let raw = get(&client, "a/b?raw").await;
    assert_eq!((raw.text(), raw.index()), ("test", index));
    for (name, value) in [
        ("content-type", "text/plain"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox"),
    ] {
        assert_eq!(raw.header(name), value);
    }
    // An identical write is a no-op. No field is null.
    put(&client, "a/b?flags=42", "test").await;
    assert_eq!(get(&client, "a/b").await.index(), index);
    put(&client, "a/b", "").await;
    let empty = get(&client, "a/b").await.json();
    assert_eq!(
        (&empty[0]["Value"], &empty[0]["Flags"]),
        (&json!(null), &json!(0))
    );
    assert_eq!(delete(&client, "a/b").await.json(), json!(true));
    let gone = get(&client, "a/b").await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    assert!(gone.index() > index);
    assert_eq!(delete(&client, "a/b").await.json(), json!(true));
}

#[tokio::test]
async fn keys_are_listed_by_prefix_and_separator() {
    let (_server, client) = start(|_| {}).await;
    let none = get(&client, "?keys").await;
    assert_eq!(none.json(), json!([]));
    assert_eq!(get(&client, "?recurse").await.status, StatusCode::NOT_FOUND);
    assert_eq!(get(&client, "x?keys").await.status, StatusCode::NOT_FOUND);
    fill(
        &client,
        &["web", "web/a", "web/b/1", "web/b/2", "Web/c", "%C3%A9/%20"],
    )
    .await;
    let all = ["Web/c", "web", "web/a", "web/b/1", "web/b/2", "é/ "];
    assert_eq!(listed(&client, "?keys").await, all);
    assert_eq!(listed(&client, "?recurse").await, all);
    assert_eq!(listed(&client, "web/?recurse").await, all[2..5]);
    assert_eq!(listed(&client, "we?recurse").await, all[1..5]);
    for separator in ["separator", "seperator"] {
        let path = format!("web?keys&{separator}=/");
        assert_eq!(listed(&client, &path).await, ["web", "web/"]);
        let path = format!("web/?keys&{separator}=/");
        assert_eq!(listed(&client, &path).await, ["web/a", "web/b/"]);
    }
    assert_eq!(
        listed(&client, "web/?keys&separator=b/").await,
        ["web/a", "web/b/"]
    );

    // Deleting a key below a prefix increases the prefix's index and wakes blocking queries.
    let before = get(&client, "web/?recurse").await.index();
    let waits = format!("web/?keys&index={before}&wait=60s");
    let (waited, _) = tokio::join!(get(&client, &waits), delete(&client, "web/a"));
    assert!(waited.index() > before);
    assert_eq!(waited.json(), json!(["web/b/1", "web/b/2"]));
    assert_eq!(delete(&client, "web/b?recurse").await.json(), json!(true));
    assert_eq!(listed(&client, "?keys").await, ["Web/c", "web", "é/ "]);
    delete(&client, "?recurse").await;
    assert_eq!(get(&client, "?keys").await.json(), json!([]));
}

#[tokio::test]
async fn writes_support_compare_and_set() {
    let (_server, client) = start(|_| {}).await;
    let yes = json!(true);
    let no = json!(false);
    assert_eq!(put(&client, "k?cas=7", "x").await.json(), no);
    assert_eq!(put(&client, "k?cas=0", "x").await.json(), yes);
    assert_eq!(put(&client, "k?cas=0", "y").await.json(), no);
    let index = get(&client, "k").await.index();
    assert_eq!(
        put(&client, &format!("k?cas={index}"), "y").await.json(),
        yes
    );
    assert_eq!(delete(&client, &format!("k?cas={index}")).await.json(), no);
    let index = get(&client, "k").await.index();
    assert_eq!(delete(&client, &format!("k?cas={index}")).await.json(), yes);
    assert_eq!(delete(&client, "k?cas=7").await.json(), yes, "it is gone");
}

#[tokio::test]
async fn errors_have_consuls_statuses_and_texts() {
    let (server, client) = start(|config| config.sizes.kv_value = 10).await;
    let before = server.store().state().index();
    let bad = StatusCode::BAD_REQUEST;
    let long = "x/".repeat(2500);
    for (method, path, body, status, says) in [
        ("GET", "", "", bad, "Missing key name"),
        ("PUT", "", "x", bad, "Missing key name"),
        ("DELETE", "", "", bad, "Missing key name"),
        (
            "PUT",
            "k?cas=1&acquire=x",
            "",
            bad,
            "Conflicting flags: acquire=x&cas=1",
        ),
        ("PUT", "k?acquire=x&release=x", "", bad, "Conflicting flags"),
        ("DELETE", "k?recurse&cas=1", "", bad, "Conflicting flags"),
        ("PUT", "k?cas=x", "", bad, "cas"),
        ("PUT", "k?flags=-1", "", bad, "flags"),
        ("PUT", "k%00k", "", bad, "cannot be printed"),
        ("PUT", "k%FFk", "", bad, ""),
        ("PUT", &*long, "", bad, "too long"),
        ("GET", "k?filter=Key==k", "", bad, "filter"),
        ("GET", "k?ns=*", "", bad, "ns"),
        (
            "PUT",
            "k",
            "12345678901",
            StatusCode::PAYLOAD_TOO_LARGE,
            "Request body(11 bytes) too large, max size: 10 bytes",
        ),
        (
            "PUT",
            "k?acquire=nobody",
            "",
            StatusCode::INTERNAL_SERVER_ERROR,
            "invalid session \"nobody\"",
        ),
        (
            "PUT",
            "k?acquire=",
            "",
            StatusCode::INTERNAL_SERVER_ERROR,
            "missing session",
        ),
        (
            "PUT",
            "k?release=",
            "",
            StatusCode::INTERNAL_SERVER_ERROR,
            "missing session",
        ),
    ] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let reply = client.send(method, &format!("/v1/kv/{path}"), body).await;
        assert_eq!(reply.status, status, "{path}: {}", reply.text());
        assert!(reply.text().contains(says), "{path}: {}", reply.text());
    }
    assert_eq!(server.store().state().index(), before);
    let wrong = client.send(Method::POST, "/v1/kv/k", "").await;
    assert_eq!(wrong.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn tokens_see_and_change_the_keys_of_their_rules() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    fill(&management, &["app/a", "app/b", "app/secret", "other"]).await;
    let rules = r#"
        key_prefix "app/" { policy = "write" }
        key "app/secret" { policy = "deny" }
    "#;
    policy(&management, "app", rules).await;
    let (_, app) = token(&management, json!({ "Policies": [{ "Name": "app" }] })).await;
    let denied = StatusCode::FORBIDDEN;
    for path in ["other", "app/secret", "app"] {
        assert_eq!(get(&app, path).await.status, denied, "{path}");
        assert_eq!(put(&app, path, "x").await.status, denied, "{path}");
        assert_eq!(delete(&app, path).await.status, denied, "{path}");
    }
    let text = put(&app, "other", "x").await;
    assert!(
        text.text()
            .contains("lacks permission 'key:write' on \"other\"")
    );
    // Without the key to which access is denied.
    let list = get(&app, "?recurse").await;
    assert_eq!(list.header("x-consul-results-filtered-by-acls"), "true");
    assert_eq!(listed(&app, "?recurse").await, ["app/a", "app/b"]);
    assert_eq!(listed(&app, "?keys").await, ["app/a", "app/b"]);
    let hidden = get(&app, "o?recurse").await;
    assert_eq!(hidden.status, StatusCode::NOT_FOUND);
    assert_eq!(delete(&app, "app/?recurse").await.status, denied);
    assert_eq!(delete(&app, "app/a?recurse").await.json(), json!(true));
    assert_eq!(get(&client, "app/b").await.status, denied, "nobody");
}

#[tokio::test]
async fn listing_needs_its_own_right_where_the_settings_say_so() {
    let (_server, client) = start(|config| {
        deny_by_default(config);
        config.acl.key_list_policy = true;
    })
    .await;
    let management = client.with_token(MANAGEMENT);
    fill(&management, &["read/a", "list/a"]).await;
    let rules = r#"
        key_prefix "read/" { policy = "read" }
        key_prefix "list/" { policy = "list" }
    "#;
    policy(&management, "keys", rules).await;
    let (_, reader) = token(&management, json!({ "Policies": [{ "Name": "keys" }] })).await;
    assert_eq!(
        get(&reader, "read/?recurse").await.status,
        StatusCode::FORBIDDEN
    );
    assert_eq!(get(&reader, "?keys").await.status, StatusCode::FORBIDDEN);
    assert_eq!(listed(&reader, "list/?keys").await, ["list/a"]);
    assert_eq!(get(&reader, "read/a").await.status, StatusCode::OK);
}
