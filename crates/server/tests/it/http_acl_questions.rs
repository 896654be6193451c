//! ACL endpoints over HTTP for readers, for anonymous callers, and with ACLs disabled.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_acl_policies::{ANONYMOUS, may, policy, text, token};
use crate::http_client::{Client, start};

#[tokio::test]
async fn read_permission_shows_no_secrets() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let (_, reader) = token(
        &management,
        json!({ "Policies": [{ "Name": "builtin/global-read-only" }] }),
    )
    .await;
    let (made, _) = token(&management, json!({})).await;
    let path = format!("/v1/acl/token/{}", text(&made, "AccessorID"));
    assert_eq!(
        text(&reader.get(&path).await.json(), "SecretID"),
        "<hidden>"
    );
    let listed = reader.get("/v1/acl/tokens").await.text().to_owned();
    assert!(
        !listed.contains(MANAGEMENT) && listed.contains("<hidden>"),
        "{listed}"
    );
    let refused = reader.put("/v1/acl/policy", &json!({ "Name": "p" })).await;
    assert!(refused.text().contains("acl:write"), "{}", refused.text());
    assert_eq!(reader.get("/v1/acl/policies").await.status, StatusCode::OK);
    for path in [
        "/v1/acl/policies",
        "/v1/acl/roles",
        "/v1/acl/templated-policies",
        "/v1/acl/policy/x",
        "/v1/acl/role/x",
        "/v1/acl/policy/name/x",
        "/v1/acl/role/name/x",
        "/v1/acl/templated-policy/name/builtin/dns",
    ] {
        let refused = client.get(path).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
        assert!(
            refused.text().contains("acl:read"),
            "{path}: {}",
            refused.text()
        );
    }
}

#[tokio::test]
async fn the_anonymous_token_can_have_policies() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let path = format!("/v1/acl/token/{ANONYMOUS}");
    assert_eq!(
        text(&management.get(&path).await.json(), "SecretID"),
        "anonymous"
    );
    assert!(!may(&client, "service", "read", "web").await);
    policy(
        &management,
        "dns",
        "service_prefix \"\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }",
    )
    .await;
    let links = json!({ "Policies": [{ "Name": "dns" }], "Description": "everybody" });
    let changed = management.write(&path, &links).await;
    assert_eq!(text(&changed, "SecretID"), "anonymous");
    assert!(may(&client, "service", "read", "web").await);
    let named = client.with_token("anonymous");
    let own = named.get("/v1/acl/token/self").await.json();
    assert_eq!(text(&own, "Description"), "everybody");
    // A request without a token has no own token.
    let none = client.get("/v1/acl/token/self").await;
    assert_eq!(none.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn templates_are_shown_and_filled() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let all = management.get("/v1/acl/templated-policies").await.json();
    let names: Vec<&String> = all.as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "builtin/api-gateway",
            "builtin/dns",
            "builtin/node",
            "builtin/nomad-client",
            "builtin/nomad-server",
            "builtin/service"
        ]
    );
    let one = management
        .get("/v1/acl/templated-policy/name/builtin/dns")
        .await
        .json();
    assert_eq!(one, all["builtin/dns"]);
    let unknown = management
        .get("/v1/acl/templated-policy/name/builtin/x")
        .await;
    assert_eq!(
        (unknown.status, unknown.text()),
        (
            StatusCode::BAD_REQUEST,
            "Invalid templated policy Name: builtin/x"
        )
    );
    let preview = async |name: &str, body: &str| {
        let path = format!("/v1/acl/templated-policy/preview/{name}");
        management.send(Method::POST, &path, body).await
    };
    let filled = preview("builtin/node", r#"{"Name": "n1"}"#).await.json();
    assert_eq!(
        text(&filled, "Rules"),
        "\nnode \"n1\" {\n\tpolicy = \"write\"\n}\nservice_prefix \"\" {\n\tpolicy = \"read\"\n}"
    );
    // Clients send null for templates without variables.
    let bare = preview("builtin/dns", "null").await;
    assert_eq!(bare.status, StatusCode::OK, "{}", bare.text());
    for (name, body) in [
        ("builtin/node", "{}"),
        ("builtin/node", "null"),
        ("builtin/service", r#"{"Name": "\" {"}"#),
        ("builtin/x", "{}"),
    ] {
        let refused = preview(name, body).await;
        assert_eq!(
            refused.status,
            StatusCode::BAD_REQUEST,
            "{}",
            refused.text()
        );
    }
}

#[tokio::test]
async fn permission_checks_are_answered() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let path = "/v1/internal/acl/authorize";
    let ask = async |client: &Client, body: &Value| {
        client.send(Method::POST, path, &body.to_string()).await
    };
    let two = json!([
        { "Resource": "service", "Access": "read", "Segment": "a" },
        { "Resource": "acl", "Access": "write" },
    ]);
    let answer = ask(&management, &two).await.json();
    assert_eq!(
        answer,
        json!([
            { "Resource": "service", "Segment": "a", "Access": "read", "Allow": true },
            { "Resource": "acl", "Access": "write", "Allow": true },
        ])
    );
    assert_eq!(ask(&client, &two).await.json()[0]["Allow"], json!(false));
    assert_eq!(ask(&management, &json!([])).await.json(), json!([]));
    let many: Vec<Value> = (0..65).map(|_| two[1].clone()).collect();
    for (body, says) in [
        (
            json!([{ "Resource": "foo", "Access": "read" }]),
            "Invalid ACL resource requested: \"foo\"",
        ),
        (
            json!([{ "Resource": "service", "Access": "list" }]),
            "Invalid access level for service resource: list",
        ),
        (json!({}), "decoding"),
        (json!(many), "more than 64"),
    ] {
        let refused = ask(&management, &body).await;
        assert_eq!(
            refused.status,
            StatusCode::BAD_REQUEST,
            "{}",
            refused.text()
        );
        assert!(refused.text().contains(says), "{}", refused.text());
    }
    let unknown = ask(&client.with_token("b0b0"), &two).await;
    assert_eq!(unknown.status, StatusCode::FORBIDDEN);
    // Consul 1.21 no longer translates legacy rules.
    let translate = client
        .send(Method::POST, "/v1/acl/rules/translate", "")
        .await;
    assert_eq!(translate.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn without_acls_their_endpoints_are_errors() {
    let (_server, client) = start(|_| {}).await;
    for path in [
        "/v1/acl/policies",
        "/v1/acl/roles",
        "/v1/acl/tokens",
        "/v1/acl/templated-policies",
        "/v1/acl/policy/x",
        "/v1/acl/role/name/x",
    ] {
        let reply = client.get(path).await;
        assert_eq!(
            (reply.status, reply.text()),
            (StatusCode::UNAUTHORIZED, "ACL support disabled"),
            "{path}"
        );
    }
    let reply = client
        .send(Method::POST, "/v1/internal/acl/authorize", "[]")
        .await;
    assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
}
