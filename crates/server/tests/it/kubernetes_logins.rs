//! Logins with Kubernetes service accounts, and behaviour common to all auth methods.

use http::StatusCode;
use legate_testkit::certs::TestCa;
use legate_testkit::jwt::TestSigner;
use serde_json::{Value, json};
use tonic::Code;

use crate::acl::login as grpc_login;
use crate::auth_methods::{add_method, login, server, service_of};
use crate::foreign::{Asked, Foreign, Reaction};
use crate::grpc::channel;
use crate::http_client::{Client, Reply};

const REVIEWER: &str = "reviewer.token.jwt";
/// The user name of a service account.
const WEB: &str = "system:serviceaccount:shop:web";

fn kubernetes(api: &Foreign) -> Value {
    json!({
        "Host": api.url(), "CACert": api.ca.ca_pem(), "ServiceAccountJWT": REVIEWER,
    })
}

/// An auth method `m` whose logins get the service identity of their service account's name.
async fn add_kubernetes(management: &Client, api: &Foreign) {
    let config = kubernetes(api);
    add_method(management, "kubernetes", &config, "${serviceaccount.name}").await;
}

/// Asserts the status and text of a rejected request.
fn assert_refused(reply: &Reply, status: StatusCode, text: &str) {
    assert_eq!(reply.status, status, "{}", reply.text());
    assert!(reply.text().contains(text), "{}", reply.text());
}

/// An API server that accepts one token for a user, and has one service account with an annotation.
fn api_server(
    good: String,
    user: &'static str,
    annotation: Option<&'static str>,
) -> impl Fn(&Asked) -> Reaction {
    move |asked: &Asked| {
        if asked.bearer != REVIEWER {
            return Reaction::Json(401, json!({"message": "Unauthorized"}));
        }
        match (asked.method.as_str(), asked.path.as_str()) {
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews") => {
                assert_eq!(asked.body["kind"], "TokenReview");
                let mut review = asked.body.clone();
                review["status"] = match asked.body["spec"]["token"] == good.as_str() {
                    true => {
                        json!({"authenticated": true, "user": {"username": user, "uid": "u-1"}})
                    }
                    false => json!({"user": {}, "error": "token has expired"}),
                };
                Reaction::Json(201, review)
            }
            ("GET", "/api/v1/namespaces/shop/serviceaccounts/web") => {
                let annotations =
                    annotation.map(|name| json!({"consul.hashicorp.com/service-name": name}));
                Reaction::Json(
                    200,
                    json!({"metadata": {"name": "web", "annotations": annotations}}),
                )
            }
            _ => Reaction::Json(404, json!({"message": "not found"})),
        }
    }
}

#[tokio::test]
async fn a_service_account_logs_in_as_its_service() {
    let (server, client, management) = server().await;
    let bearer = TestSigner::generate().sign(&json!({"sub": "x"}));
    let api = Foreign::start(api_server(bearer.clone(), WEB, None)).await;
    add_kubernetes(&management, &api).await;
    assert!(
        api.asked().is_empty(),
        "as in Consul, nobody is asked when it is written"
    );
    let reply = login(&client, &bearer).await;
    assert_eq!(service_of(&reply), "web");
    let token = reply.json();
    let description = r#"token created via login: {"pod":"shop/web-0","pod-uid":"u"}"#;
    assert_eq!(token["Description"], description);
    assert_eq!(
        (&token["AuthMethod"], &token["Local"]),
        (&json!("m"), &json!(true))
    );
    assert_eq!(api.asked().len(), 2);

    api.answer(api_server(bearer.clone(), WEB, Some("storefront")));
    assert_eq!(service_of(&login(&client, &bearer).await), "storefront");
    // The rule's selector does not match this login.
    api.answer(api_server(bearer.clone(), WEB, Some("default")));
    let reply = login(&client, &bearer).await;
    assert_refused(&reply, StatusCode::FORBIDDEN, "no binding rule");

    api.answer(api_server(bearer.clone(), WEB, None));
    let channel = channel(&server).await;
    let (accessor, secret) = grpc_login(&channel, "m", bearer).await.unwrap();
    let path = format!("/v1/acl/token/{accessor}");
    assert_eq!(management.get(&path).await.json()["SecretID"], secret);
    let logout = client.with_token(&secret);
    let out = logout.send(http::Method::POST, "/v1/acl/logout", "").await;
    assert_eq!(out.json(), json!(true));
    assert_ne!(management.get(&path).await.status, StatusCode::OK);
}

#[tokio::test]
async fn errors_of_an_api_server_are_reported() {
    let (server, client, management) = server().await;
    let bearer = TestSigner::generate().sign(&json!({"sub": "x"}));
    let other = TestSigner::generate().sign(&json!({"sub": "x"}));
    let api = Foreign::start(api_server(bearer.clone(), WEB, None)).await;
    add_kubernetes(&management, &api).await;
    let before = server.store().state().read().tokens().len();
    let says = async |bearer: &str, status: u16, text: &str| {
        let reply = login(&client, bearer).await;
        assert_refused(&reply, StatusCode::from_u16(status).unwrap(), text);
        assert!(!reply.text().contains(REVIEWER), "{}", reply.text());
    };
    says("no jwt", 403, "not a JWT").await;
    assert!(api.asked().is_empty());
    says(&other, 403, "token has expired").await;
    for user in [
        "system:node:shop",
        "admin",
        "system:serviceaccount:../../x:web",
    ] {
        api.answer(api_server(bearer.clone(), user, None));
        says(&bearer, 403, "is not a service account").await;
    }
    api.answer(api_server(
        bearer.clone(),
        "system:serviceaccount:shop:gone",
        None,
    ));
    says(&bearer, 403, "shop/gone").await;
    api.answer(|_| Reaction::Json(403, json!({"message": "tokenreviews is forbidden"})));
    says(&bearer, 500, "tokenreviews is forbidden").await;
    says(&bearer, 500, "system:auth-delegator").await;
    api.answer(|_| Reaction::Json(500, json!({"message": "etcd is away"})));
    says(&bearer, 503, "etcd is away").await;
    api.answer(|_| Reaction::Json(200, json!("busy")));
    says(&bearer, 503, "response is invalid").await;
    api.answer(|_| Reaction::Huge(2 << 20));
    says(&bearer, 503, "exceeds").await;
    api.answer(|_| Reaction::Hangup);
    says(&bearer, 503, &api.url()).await;
    let channel = channel(&server).await;
    let status = grpc_login(&channel, "m", bearer.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    api.answer(|_| Reaction::Silence);
    tokio::time::pause();
    says(&bearer, 503, "no response within 10 s").await;
    tokio::time::resume();
    assert_eq!(server.store().state().read().tokens().len(), before);

    // Not the CA of the server's certificate.
    let mut config = kubernetes(&api);
    config["CACert"] = json!(TestCa::new().ca_pem());
    let method = json!({"Name": "m", "Config": config});
    management.write("/v1/acl/auth-method/m", &method).await;
    says(&bearer, 503, "certificate").await;
}

#[tokio::test]
async fn methods_are_listed_without_their_settings_and_keep_their_type() {
    let (_server, _, management) = server().await;
    let api = Foreign::start(|_| Reaction::Hangup).await;
    add_kubernetes(&management, &api).await;
    let list = management.get("/v1/acl/auth-methods").await;
    assert_eq!(list.json()[0]["Type"], "kubernetes");
    assert!(!list.text().contains(REVIEWER) && list.json()[0].get("Config").is_none());
    let read = management.get("/v1/acl/auth-method/m").await.json();
    assert_eq!(read["Config"]["ServiceAccountJWT"], REVIEWER);

    let key = TestSigner::generate();
    let config = json!({"JWTValidationPubKeys": [key.public_key_pem()]});
    let jwt = json!({"Name": "m", "Type": "jwt", "Config": config});
    let reply = management.put("/v1/acl/auth-method/m", &jwt).await;
    assert_refused(
        &reply,
        StatusCode::BAD_REQUEST,
        "Type: it cannot be changed",
    );
    let other = json!({"Name": "n", "Type": "jwt", "Config": config});
    management.write("/v1/acl/auth-method", &other).await;
    let rules = management.get("/v1/acl/binding-rules").await.json();
    let path = format!("/v1/acl/binding-rule/{}", rules[0]["ID"].as_str().unwrap());
    let moved = json!({"AuthMethod": "n", "BindType": "service", "BindName": "x"});
    let reply = management.put(&path, &moved).await;
    assert_refused(
        &reply,
        StatusCode::BAD_REQUEST,
        "AuthMethod: it cannot be changed",
    );
    for kind in ["oidc", "aws-iam", ""] {
        let unserved = json!({"Name": "o", "Type": kind, "Config": {}});
        let reply = management.put("/v1/acl/auth-method", &unserved).await;
        assert_refused(&reply, StatusCode::BAD_REQUEST, "Type");
    }
}

#[tokio::test]
async fn login_metadata_is_bounded() {
    let (server, client, management) = server().await;
    let bearer = TestSigner::generate().sign(&json!({}));
    let api = Foreign::start(|_| Reaction::Hangup).await;
    add_method(&management, "kubernetes", &kubernetes(&api), "x").await;
    let body = json!({
        "AuthMethod": "m", "BearerToken": bearer, "Meta": {"pod": "x".repeat(5_000)},
    });
    let reply = client
        .send(http::Method::POST, "/v1/acl/login", &body.to_string())
        .await;
    assert_refused(&reply, StatusCode::BAD_REQUEST, "Meta");
    drop(server);
}

#[tokio::test]
async fn logins_link_only_existing_policies_and_roles() {
    let (_server, client, management) = server().await;
    let bearer = TestSigner::generate().sign(&json!({}));
    let api = api_server(bearer.clone(), WEB, None);
    let api = Foreign::start(api).await;
    let method = json!({"Name": "m", "Type": "kubernetes", "Config": kubernetes(&api)});
    management.write("/v1/acl/auth-method", &method).await;
    for rule in [
        json!({"BindType": "role", "BindName": "role-${serviceaccount.namespace}"}),
        json!({"BindType": "policy", "BindName": "p-${serviceaccount.name}"}),
    ] {
        let mut rule = rule;
        rule["AuthMethod"] = json!("m");
        management.write("/v1/acl/binding-rule", &rule).await;
    }
    let reply = login(&client, &bearer).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{}", reply.text());

    let policy = json!({"Name": "p-web", "Rules": "mesh = \"write\""});
    management.write("/v1/acl/policy", &policy).await;
    let role = json!({"Name": "role-shop", "Policies": [{"Name": "p-web"}]});
    management.write("/v1/acl/role", &role).await;
    let vars = json!({"Name": "${serviceaccount.name}"});
    let templated = json!({
        "AuthMethod": "m", "BindType": "templated-policy", "BindName": "builtin/service",
        "BindVars": vars,
    });
    let rule = management.write("/v1/acl/binding-rule", &templated).await;
    let path = format!("/v1/acl/binding-rule/{}", rule["ID"].as_str().unwrap());
    let read = management.get(&path).await.json();
    assert_eq!(read["BindType"], "templated-policy");
    let token = login(&client, &bearer).await.json();
    assert_eq!(token["Roles"][0]["Name"], "role-shop");
    assert_eq!(token["Policies"][0]["Name"], "p-web");
    let templated = &token["TemplatedPolicies"][0];
    assert_eq!(templated["TemplateName"], "builtin/service");
    assert_eq!(templated["TemplateVariables"]["name"], "web");
    let own = client.with_token(token["SecretID"].as_str().unwrap());
    let mesh = json!({"Kind": "mesh"});
    assert_eq!(own.put("/v1/config", &mesh).await.status, StatusCode::OK);

    assert_eq!(management.delete(&path).await.json(), json!(true));
    assert_eq!(management.delete(&path).await.status, StatusCode::NOT_FOUND);
    let gone = management.delete("/v1/acl/auth-method/n").await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
}
