//! ACL tokens over HTTP: permissions and management.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use legate_testkit::jwt::TestSigner;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, start};

fn register(service: &str) -> Value {
    json!({ "Node": "vm-1", "Address": "10.0.0.1", "Service": { "Service": service, "Port": 1 } })
}

/// A token with one service identity, created with the management token.
async fn identity(management: &Client, service: &str) -> (String, String) {
    let token = json!({ "ServiceIdentities": [{ "ServiceName": service }] });
    let made = management.write("/v1/acl/token", &token).await;
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    (text("AccessorID"), text("SecretID"))
}

#[tokio::test]
async fn without_permission_nothing_is_written_or_returned() {
    let (server, anonymous) = start(deny_by_default).await;
    let management = anonymous.with_token(MANAGEMENT);
    management
        .write("/v1/catalog/register", &register("web"))
        .await;
    let (_, secret) = identity(&management, "web").await;
    let web = anonymous.with_token(&secret);

    let before = server.store().state().index();
    let intention = "/v1/connect/intentions/exact?source=web&destination=api";
    let entry = json!({ "Kind": "mesh" });
    for (client, path, body, permission) in [
        (
            &anonymous,
            "/v1/catalog/register",
            register("web"),
            "service:write",
        ),
        (
            &anonymous,
            "/v1/agent/service/register",
            json!({ "Name": "web" }),
            "service:write",
        ),
        (
            &anonymous,
            "/v1/catalog/deregister",
            json!({ "Node": "vm-1" }),
            "node:write",
        ),
        (
            &web,
            "/v1/agent/service/register",
            json!({ "Name": "api" }),
            "service:write",
        ),
        (
            &web,
            intention,
            json!({ "Action": "allow" }),
            "intention:write",
        ),
        (&web, "/v1/config", entry, "mesh:write"),
        (&web, "/v1/acl/token", json!({}), "acl:write"),
    ] {
        let reply = client.put(path, &body).await;
        assert_eq!(
            reply.status,
            StatusCode::FORBIDDEN,
            "{path}: {}",
            reply.text()
        );
        assert!(
            reply.text().contains(permission),
            "{path}: {}",
            reply.text()
        );
    }
    assert_eq!(server.store().state().index(), before);

    let hidden = anonymous.get("/v1/health/service/web").await;
    assert_eq!(hidden.json(), json!([]));
    assert_eq!(
        hidden.header("x-consul-results-filtered-by-acls"),
        "",
        "nobody learns whether it exists"
    );
    assert_eq!(hidden.header("x-consul-default-acl-policy"), "deny");
    let seen = web.get("/v1/health/service/web").await.json();
    assert_eq!(seen.as_array().unwrap().len(), 1);
    web.write("/v1/agent/service/register", &json!({ "Name": "web" }))
        .await;
    assert_eq!(
        anonymous.get("/v1/status/leader").await.status,
        StatusCode::OK
    );
    assert_eq!(
        anonymous.get("/v1/connect/ca/roots").await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_token_is_taken_from_three_places_and_an_unknown_one_is_refused() {
    let (_server, client) = start(deny_by_default).await;
    let get = async |path: &str, header: Option<(&str, String)>| {
        let mut request = Request::get(path);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::new())).unwrap();
        client.exchange(request).await.status
    };
    let path = "/v1/acl/tokens";
    assert_eq!(get(path, None).await, StatusCode::FORBIDDEN);
    let own = Some(("x-consul-token", MANAGEMENT.to_owned()));
    assert_eq!(get(path, own).await, StatusCode::OK);
    let bearer = Some(("authorization", format!("Bearer {MANAGEMENT}")));
    assert_eq!(get(path, bearer).await, StatusCode::OK);
    let query = format!("{path}?token={MANAGEMENT}");
    let wrong = Some(("x-consul-token", "wrong".to_owned()));
    assert_eq!(
        get(&query, wrong.clone()).await,
        StatusCode::OK,
        "the query comes first"
    );
    assert_eq!(get(path, wrong).await, StatusCode::FORBIDDEN);
    let no_text = Some(("x-consul-token", "wröng".to_owned()));
    assert_eq!(
        get("/v1/health/service/web", no_text).await,
        StatusCode::FORBIDDEN,
        "it is not the absence of a token"
    );

    let unknown = client
        .with_token("b0b0")
        .get("/v1/health/service/web")
        .await;
    assert_eq!(unknown.status, StatusCode::FORBIDDEN);
    assert!(
        unknown.text().contains("ACL not found"),
        "{}",
        unknown.text()
    );
}

#[tokio::test]
async fn a_token_is_made_read_changed_and_removed() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let (accessor, secret) = identity(&management, "web").await;
    let path = format!("/v1/acl/token/{accessor}");
    let read = management.get(&path).await.json();
    assert_eq!(read["SecretID"], secret.as_str());
    let own = client
        .with_token(&secret)
        .get("/v1/acl/token/self")
        .await
        .json();
    assert_eq!(own, read);

    let changed =
        json!({ "Description": "for web", "ServiceIdentities": [{ "ServiceName": "api" }] });
    let changed = management.write(&path, &changed).await;
    assert_eq!(changed["ServiceIdentities"][0]["ServiceName"], "api");
    assert_eq!(changed["SecretID"], secret.as_str());
    assert_eq!(changed["CreateTime"], read["CreateTime"]);
    let by_service = management
        .get("/v1/acl/tokens?servicename=api")
        .await
        .json();
    assert_eq!(by_service.as_array().unwrap().len(), 1);

    for (path, body, says) in [
        (path.as_str(), json!({ "SecretID": MANAGEMENT }), "SecretID"),
        (
            path.as_str(),
            json!({ "AccessorID": MANAGEMENT }),
            "AccessorID",
        ),
        (
            "/v1/acl/token",
            json!({ "AccessorID": accessor }),
            "exists already",
        ),
        (
            "/v1/acl/token",
            json!({ "Policies": [{ "Name": "mine" }] }),
            "No such ACL policy with name \"mine\"",
        ),
        (
            "/v1/acl/token",
            json!({ "ExpirationTTL": "1s" }),
            "ExpirationTTL",
        ),
    ] {
        let reply = management.put(path, &body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.text());
        assert!(reply.text().contains(says), "{}", reply.text());
    }

    assert_eq!(management.delete(&path).await.json(), json!(true));
    // Consul's status and text, on which clients match.
    let missing = management.get(&path).await;
    assert_eq!(missing.status, StatusCode::FORBIDDEN);
    assert_eq!(missing.text(), "token does not exist: ACL not found");
    let again = management.delete(&path).await;
    assert_eq!(again.status, StatusCode::NOT_FOUND);
    let gone = client.with_token(&secret).get("/v1/catalog/nodes").await;
    assert_eq!(gone.status, StatusCode::FORBIDDEN);
    let unknown = management.put(&path, &json!({})).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_login_makes_a_token_and_a_logout_ends_it() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let signer = TestSigner::generate();
    let method = json!({
        "Name": "jwt", "Type": "jwt", "MaxTokenTTL": "1h",
        "Config": {
            "JWTValidationPubKeys": [signer.public_key_pem()],
            "JWTSupportedAlgs": ["ES256"],
            "BoundAudiences": ["mesh"],
            "ClaimMappings": { "service": "service" },
        },
    });
    let rule =
        json!({ "AuthMethod": "jwt", "BindType": "service", "BindName": "${value.service}" });
    let early = management.put("/v1/acl/binding-rule", &rule).await;
    assert_eq!(early.status, StatusCode::BAD_REQUEST, "{}", early.text());
    management.write("/v1/acl/auth-method", &method).await;
    let rule = management.write("/v1/acl/binding-rule", &rule).await;
    let read = management.get("/v1/acl/auth-method/jwt").await.json();
    assert_eq!(read["MaxTokenTTL"], "1h0m0s");
    let rule_path = format!("/v1/acl/binding-rule/{}", rule["ID"].as_str().unwrap());
    assert_eq!(
        management.get(&rule_path).await.json()["BindName"],
        "${value.service}"
    );

    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let claims = json!({ "aud": "mesh", "nbf": now, "exp": now + 600, "service": "web" });
    let bearer = signer.sign(&claims);
    let login = async |bearer: &str| {
        let body = json!({ "AuthMethod": "jwt", "BearerToken": bearer }).to_string();
        client
            .send(http::Method::POST, "/v1/acl/login", &body)
            .await
    };
    let token = login(&bearer).await.json();
    assert_eq!(token["ServiceIdentities"][0]["ServiceName"], "web");
    assert_eq!(token["AuthMethod"], "jwt");
    let refused = login("not.a.token").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text());

    let own = client.with_token(token["SecretID"].as_str().unwrap());
    own.write("/v1/agent/service/register", &json!({ "Name": "web" }))
        .await;
    let logout = own.send(http::Method::POST, "/v1/acl/logout", "").await;
    assert_eq!(logout.json(), json!(true));
    let after = own.get("/v1/catalog/services").await;
    assert_eq!(after.status, StatusCode::FORBIDDEN);

    assert_eq!(
        management.delete("/v1/acl/auth-method/jwt").await.json(),
        json!(true)
    );
    let rules = management.get("/v1/acl/binding-rules").await.json();
    assert_eq!(rules, json!([]), "rules go with their method");
}

#[tokio::test]
async fn hidden_rows_are_removed_and_reported() {
    let (server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    management
        .write("/v1/catalog/register", &register("web"))
        .await;
    let token = json!({ "NodeIdentities": [{ "NodeName": "vm-9", "Datacenter": "dc1" }] });
    let made = management.write("/v1/acl/token", &token).await;
    let node = client.with_token(made["SecretID"].as_str().unwrap());
    let reply = node.get("/v1/catalog/nodes").await;
    assert_eq!(reply.json(), json!([]));
    assert_eq!(reply.header("x-consul-results-filtered-by-acls"), "true");
    let deadline = Duration::from_secs(10);
    server.stop(deadline).await.unwrap();
}

#[tokio::test]
async fn the_first_management_token_is_made_once() {
    let without_token = |config: &mut legate_server::ServerConfig| {
        deny_by_default(config);
        config.acl.initial_management = None;
    };
    let (server, client) = start(without_token).await;
    let wrong = client
        .put("/v1/acl/bootstrap", &json!({ "BootstrapSecret": "x" }))
        .await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{}", wrong.text());
    let made = client
        .send(http::Method::PUT, "/v1/acl/bootstrap", "")
        .await
        .json();
    let management = client.with_token(made["SecretID"].as_str().unwrap());
    management
        .write("/v1/catalog/register", &register("web"))
        .await;

    let before = server.store().state().index();
    let again = client
        .send(http::Method::PUT, "/v1/acl/bootstrap", "")
        .await;
    assert_eq!(again.status, StatusCode::FORBIDDEN);
    assert!(
        again.text().contains("no longer allowed"),
        "{}",
        again.text()
    );
    assert_eq!(server.store().state().index(), before);

    let accessor = made["AccessorID"].as_str().unwrap();
    let first = format!("/v1/acl/token/{accessor}");
    let own = management.delete(&first).await;
    assert_eq!(own.status, StatusCode::BAD_REQUEST, "{}", own.text());
    let other = json!({ "Policies": [{ "Name": "global-management" }] });
    let other = management.write("/v1/acl/token", &other).await;
    let other = client.with_token(other["SecretID"].as_str().unwrap());
    assert_eq!(other.delete(&first).await.status, StatusCode::OK);
    let taken_over = client
        .send(http::Method::PUT, "/v1/acl/bootstrap", "")
        .await;
    assert_eq!(
        taken_over.status,
        StatusCode::FORBIDDEN,
        "a token that is gone does not open the door again"
    );

    let (_server, client) = start(deny_by_default).await;
    let second = client
        .send(http::Method::PUT, "/v1/acl/bootstrap", "")
        .await;
    assert_eq!(
        second.status,
        StatusCode::FORBIDDEN,
        "the settings gave one"
    );
}

#[tokio::test]
async fn registering_a_proxy_requires_write_on_its_destination() {
    let (server, anonymous) = start(deny_by_default).await;
    let management = anonymous.with_token(MANAGEMENT);
    let token = json!({
        "ServiceIdentities": [{ "ServiceName": "web" }],
        "NodeIdentities": [{ "NodeName": "vm-1", "Datacenter": "dc1" }],
    });
    let made = management.write("/v1/acl/token", &token).await;
    let web = anonymous.with_token(made["SecretID"].as_str().unwrap());
    let proxy_of = |destination: &str| {
        json!({ "Node": "vm-1", "Address": "10.0.0.1", "Service": {
            "Kind": "connect-proxy", "Service": "web-sidecar-proxy", "Port": 21000,
            "Proxy": { "DestinationServiceName": destination },
        }})
    };

    let reply = web.put("/v1/catalog/register", &proxy_of("db")).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{}", reply.text());
    assert!(reply.text().contains("\"db\""), "{}", reply.text());
    assert!(server.store().state().read().connect("db").is_empty());
    web.write("/v1/catalog/register", &proxy_of("web")).await;
    assert_eq!(server.store().state().read().connect("web").len(), 1);
}

#[tokio::test]
async fn replacing_a_check_requires_write_on_its_service() {
    let (server, anonymous) = start(deny_by_default).await;
    let management = anonymous.with_token(MANAGEMENT);
    let with_check = |name: &str, check: &str| json!({ "Name": name, "Check": { "CheckID": check, "TTL": "10s" } });
    let path = "/v1/agent/service/register";
    management.write(path, &with_check("db", "alive")).await;
    let (_, secret) = identity(&management, "web").await;
    let web = anonymous.with_token(&secret);

    let reply = web.put(path, &with_check("web", "alive")).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{}", reply.text());
    assert_eq!(
        server.store().state().read().service("db")[0].checks.len(),
        1
    );
    web.write(path, &with_check("web", "web-alive")).await;
}

#[tokio::test]
async fn a_query_that_waits_ends_with_its_token() {
    let (_server, anonymous) = start(deny_by_default).await;
    let management = anonymous.with_token(MANAGEMENT);
    let second = json!({ "Policies": [{ "Name": "global-management" }] });
    let made = management.write("/v1/acl/token", &second).await;
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    let other = anonymous.with_token(&text("SecretID"));
    let index = other.get("/v1/acl/tokens").await.index();

    let path = format!("/v1/acl/tokens?index={index}&wait=60s");
    let remove = async {
        // After a round trip of another request, the query is waiting.
        other.get("/v1/acl/tokens").await;
        let accessor = text("AccessorID");
        management
            .delete(&format!("/v1/acl/token/{accessor}"))
            .await
    };
    // The order of the two responses is not deterministic.
    let (reply, removed) = tokio::join!(other.get(&path), remove);
    assert_eq!(removed.status, StatusCode::OK);
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{}", reply.text());
}

#[tokio::test]
async fn the_reset_index_in_the_data_directory_permits_one_more_bootstrap() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_owned();
    let (server, client) = start(|config| {
        deny_by_default(config);
        config.acl.initial_management = None;
        config.store = legate_server::StoreConfig::Disk {
            directory: data.clone(),
            key_file: None,
        };
    })
    .await;
    let bootstrap = async || {
        let path = "/v1/acl/bootstrap";
        client.send(http::Method::PUT, path, "").await
    };
    let first = bootstrap().await.json();
    assert_eq!(first["ID"], first["SecretID"]);
    let index = server.store().state().read().managed_since().unwrap();
    let refused = bootstrap().await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let says = format!("ACL bootstrap no longer allowed (reset index: {index})");
    assert!(refused.text().contains(&says), "{}", refused.text());
    assert!(refused.text().contains("acl-bootstrap-reset"));

    let file = data.join("acl-bootstrap-reset");
    for (text, status) in [
        ("nonsense", StatusCode::FORBIDDEN),
        ("1", StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        std::fs::write(&file, text).unwrap();
        let refused = bootstrap().await;
        assert_eq!(refused.status, status, "{}", refused.text());
        assert!(file.exists());
    }
    std::fs::write(&file, format!("{index}\n")).unwrap();
    let second = bootstrap().await.json();
    assert!(!file.exists(), "it permits one");
    let management = client.with_token(second["SecretID"].as_str().unwrap());
    management
        .write("/v1/catalog/register", &register("web"))
        .await;
    let third = bootstrap().await;
    assert_eq!(third.status, StatusCode::FORBIDDEN);
    let now = server.store().state().read().managed_since().unwrap();
    assert!(now > index, "the index that was used is worth nothing now");
    std::fs::write(&file, format!("{index}\n")).unwrap();
    assert!(
        bootstrap()
            .await
            .text()
            .contains("Invalid bootstrap reset index")
    );
}
