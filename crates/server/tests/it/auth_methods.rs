//! Auth methods that ask somebody else: keys at a URL, OpenID providers and Kubernetes API servers.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use legate_testkit::certs::TestCa;
use legate_testkit::jwt::TestSigner;
use serde_json::{Value, json};
use tonic::Code;

use crate::acl::{MANAGEMENT, deny_by_default, login as grpc_login};
use crate::foreign::{Asked, Foreign, Reaction};
use crate::grpc::channel;
use crate::http_client::{Client, Reply, start};
use crate::running::Running;

/// A server, its client without a token and one that may do everything.
async fn server() -> (Running, Client, Client) {
    let (server, client) = start(|config| {
        deny_by_default(config);
        config.grpc = config.http;
    })
    .await;
    let management = client.with_token(MANAGEMENT);
    (server, client, management)
}

/// A method `m`, and a rule that gives every login the service of a variable.
async fn add_method(management: &Client, kind: &str, config: &Value, bind_name: &str) {
    let method = json!({"Name": "m", "Type": kind, "Config": config});
    management.write("/v1/acl/auth-method", &method).await;
    let rule = json!({
        "AuthMethod": "m", "BindType": "service", "BindName": bind_name,
        "Selector": "serviceaccount.name!=default",
    });
    let rule = match kind {
        "kubernetes" => rule,
        _ => json!({"AuthMethod": "m", "BindType": "service", "BindName": bind_name}),
    };
    management.write("/v1/acl/binding-rule", &rule).await;
}

async fn login(client: &Client, bearer: &str) -> Reply {
    let body = json!({
        "AuthMethod": "m", "BearerToken": bearer,
        "Meta": {"pod": "shop/web-0", "pod-uid": "u"},
    });
    client
        .send(http::Method::POST, "/v1/acl/login", &body.to_string())
        .await
}

fn service_of(reply: &Reply) -> String {
    let token = reply.json();
    let name = &token["ServiceIdentities"][0]["ServiceName"];
    name.as_str().unwrap().to_owned()
}

fn claims() -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    json!({"sub": "web", "exp": now.unwrap().as_secs() + 60})
}

fn key_set(keys: &[Value]) -> Reaction {
    // A key of a kind that nobody knows is no obstacle.
    let mut all = vec![json!({"kty": "post-quantum", "kid": "z"})];
    all.extend_from_slice(keys);
    Reaction::Json(200, json!({"keys": all}))
}

type React = Box<dyn Fn() -> Reaction + Send + Sync>;

fn jwks(provider: &Foreign) -> Value {
    json!({
        "JWKSURL": format!("{}/keys", provider.url()),
        "JWKSCACert": provider.ca.ca_pem(),
        "JWTSupportedAlgs": ["ES256"],
        "ClaimMappings": {"sub": "name"},
    })
}

/// Lets time pass for timers.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn keys_at_a_url_are_fetched_once_and_again_when_they_change() {
    let (_server, client, management) = server().await;
    let (first, second) = (Arc::new(TestSigner::generate()), TestSigner::generate());
    let key = first.public_jwk("1");
    let provider = Foreign::start(move |_| key_set(std::slice::from_ref(&key))).await;
    add_method(&management, "jwt", &jwks(&provider), "${value.name}").await;
    assert_eq!(
        provider.asked().len(),
        1,
        "it was tried when it was written"
    );
    for _ in 0..5 {
        let reply = login(&client, &first.sign_as("1", &claims())).await;
        assert_eq!(service_of(&reply), "web");
    }
    assert_eq!(provider.asked().len(), 1);

    // Tokens that name a key that is not known make it ask once in a while and no more.
    let stranger = second.sign_as("2", &claims());
    for _ in 0..20 {
        let reply = login(&client, &stranger).await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{}", reply.text());
        assert!(reply.text().contains("no key"), "{}", reply.text());
    }
    assert_eq!(provider.asked().len(), 0, "its keys are new enough");
    pass(Duration::from_secs(6)).await;
    let key = second.public_jwk("2");
    provider.answer(move |_| key_set(std::slice::from_ref(&key)));
    assert_eq!(service_of(&login(&client, &stranger).await), "web");
    // The first key was withdrawn.
    let reply = login(&client, &first.sign_as("1", &claims())).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
    assert_eq!(provider.asked().len(), 1);

    // A provider that is away does not stop logins with keys that are known.
    provider.answer(|_| Reaction::Hangup);
    pass(Duration::from_secs(2 * 3_600)).await;
    assert_eq!(service_of(&login(&client, &stranger).await), "web");
    assert_eq!(provider.asked().len(), 1);
}

#[tokio::test]
async fn a_token_is_verified_with_the_key_that_it_names() {
    let (_server, client, management) = server().await;
    let (first, second) = (TestSigner::generate(), TestSigner::generate());
    let mut encryption = first.public_jwk("enc");
    encryption["use"] = json!("enc");
    let mut other = first.public_jwk("other");
    other["alg"] = json!("ES384");
    let keys = [
        encryption,
        other,
        first.public_jwk("1"),
        second.public_jwk("2"),
    ];
    let provider = Foreign::start(move |_| key_set(&keys)).await;
    add_method(&management, "jwt", &jwks(&provider), "${value.name}").await;
    for (bearer, good) in [
        (first.sign_as("1", &claims()), true),
        (second.sign_as("2", &claims()), true),
        (first.sign(&claims()), true),
        (first.sign_as("2", &claims()), false),
        (first.sign_as("enc", &claims()), false),
        (first.sign_as("other", &claims()), false),
        (TestSigner::generate().sign(&claims()), false),
    ] {
        let reply = login(&client, &bearer).await;
        assert_eq!(reply.status == StatusCode::OK, good, "{}", reply.text());
    }
}

#[tokio::test]
async fn a_discovered_provider_names_its_keys() {
    let (_server, client, management) = server().await;
    let signer = TestSigner::generate();
    let provider = Foreign::start(|_| Reaction::Hangup).await;
    let (issuer, key) = (provider.url(), signer.public_jwk("1"));
    let metadata = |issuer: String| {
        move |keys_of: &str| {
            Reaction::Json(
                200,
                json!({"issuer": issuer, "jwks_uri": format!("{keys_of}/k")}),
            )
        }
    };
    let good = metadata(issuer.clone());
    let base = issuer.clone();
    provider.answer(move |asked: &Asked| match asked.path.as_str() {
        "/.well-known/openid-configuration" => good(&base),
        "/k" => key_set(std::slice::from_ref(&key)),
        _ => Reaction::Json(404, json!({})),
    });
    let config = json!({
        "OIDCDiscoveryURL": issuer, "OIDCDiscoveryCACert": provider.ca.ca_pem(),
        "JWTSupportedAlgs": ["ES256"], "BoundAudiences": ["mesh"],
        "ClaimMappings": {"sub": "name"},
    });
    add_method(&management, "jwt", &config, "${value.name}").await;
    let with = |iss: &str, aud: &str| {
        let mut claims = claims();
        claims["iss"] = json!(iss);
        claims["aud"] = json!(aud);
        signer.sign_as("1", &claims)
    };
    let reply = login(&client, &with(&issuer, "mesh")).await;
    assert_eq!(service_of(&reply), "web");
    for (iss, aud, says) in [
        ("https://other", "mesh", "issuer"),
        (&issuer, "x", "Audiences"),
    ] {
        let reply = login(&client, &with(iss, aud)).await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN);
        assert!(reply.text().contains(says), "{}", reply.text());
    }

    // Who says to be somebody else is not believed.
    let wrong = metadata("https://other".to_owned());
    provider.answer(move |_| wrong("https://other"));
    let method = json!({"Name": "n", "Type": "jwt", "Config": config});
    let reply = management.put("/v1/acl/auth-method", &method).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert!(reply.text().contains("https://other"), "{}", reply.text());
}

#[tokio::test]
async fn a_method_whose_keys_cannot_be_fetched_is_not_stored() {
    let (_server, _, management) = server().await;
    let provider = Foreign::start(|_| Reaction::Hangup).await;
    let refused = async |config: &Value| {
        let method = json!({"Name": "m", "Type": "jwt", "Config": config});
        let reply = management.put("/v1/acl/auth-method", &method).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.text());
        reply.text().to_owned()
    };
    let config = jwks(&provider);
    let elsewhere = provider.url();
    let many = vec![json!({}); 101];
    let reactions: [(React, &str); 6] = [
        (Box::new(|| Reaction::Hangup), "connection"),
        (
            Box::new(|| Reaction::Huge(2 << 20)),
            "more than 1048576 bytes",
        ),
        (Box::new(|| Reaction::Huge(10)), "not right"),
        (Box::new(|| Reaction::Json(503, json!("busy"))), "503"),
        (
            Box::new(move || Reaction::Redirect(elsewhere.clone())),
            "redirects",
        ),
        (
            Box::new(move || Reaction::Json(200, json!({"keys": many}))),
            "101 keys",
        ),
    ];
    for (reaction, says) in reactions {
        provider.answer(move |_| reaction());
        let text = refused(&config).await;
        assert!(text.contains(says), "{text}");
        assert!(text.contains(&provider.url()), "{text}");
    }
    let signer = TestSigner::generate();
    provider.answer(move |_| key_set(&[signer.public_jwk("1")]));
    let mut other_ca = config.clone();
    other_ca["JWKSCACert"] = json!(TestCa::new().ca_pem());
    let text = refused(&other_ca).await;
    assert!(text.contains("certificate"), "{text}");
    let mut nobody = config.clone();
    nobody["JWKSURL"] = json!("https://127.0.0.1:1/keys");
    assert!(refused(&nobody).await.contains("127.0.0.1:1"));
    let garbage = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
    let text = refused(&json!({"JWTValidationPubKeys": [garbage]})).await;
    assert!(text.contains("JWTValidationPubKeys[0]"), "{text}");
    assert_eq!(
        management.get("/v1/acl/auth-methods").await.json(),
        json!([])
    );
}

#[tokio::test]
async fn a_provider_that_says_nothing_is_not_waited_for_long() {
    let (_server, client, management) = server().await;
    let signer = TestSigner::generate();
    let key = signer.public_jwk("1");
    let provider = Foreign::start(move |_| key_set(std::slice::from_ref(&key))).await;
    add_method(&management, "jwt", &jwks(&provider), "${value.name}").await;
    provider.answer(|_| Reaction::Silence);
    // From here on, time passes as soon as nothing else happens.
    tokio::time::pause();
    let reply = login(&client, &signer.sign_as("1", &claims())).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        reply.text().contains("no answer in 8 s"),
        "{}",
        reply.text()
    );
    assert!(reply.text().contains("/keys"), "{}", reply.text());
}

const REVIEWER: &str = "reviewer.token.jwt";

fn kubernetes(api: &Foreign) -> Value {
    json!({
        "Host": api.url(), "CACert": api.ca.ca_pem(), "ServiceAccountJWT": REVIEWER,
    })
}

/// An API server where one token is that of a user, and one service account has an annotation.
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
    const WEB: &str = "system:serviceaccount:shop:web";
    let api = Foreign::start(api_server(bearer.clone(), WEB, None)).await;
    add_method(
        &management,
        "kubernetes",
        &kubernetes(&api),
        "${serviceaccount.name}",
    )
    .await;
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
    // The rule's selector leaves this one out.
    api.answer(api_server(bearer.clone(), WEB, Some("default")));
    let reply = login(&client, &bearer).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
    assert!(reply.text().contains("no binding rule"), "{}", reply.text());

    api.answer(api_server(bearer.clone(), WEB, None));
    let channel = channel(&server).await;
    let (accessor, secret) = grpc_login(&channel, "m", bearer).await.unwrap();
    let path = format!("/v1/acl/token/{accessor}");
    assert_eq!(management.get(&path).await.json()["SecretID"], secret);
    let logout = client.with_token(&secret);
    let out = logout.send(http::Method::POST, "/v1/acl/logout", "").await;
    assert_eq!(out.json(), json!(true));
    assert_eq!(management.get(&path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_goes_wrong_at_an_api_server_is_told() {
    let (server, client, management) = server().await;
    let bearer = TestSigner::generate().sign(&json!({"sub": "x"}));
    let other = TestSigner::generate().sign(&json!({"sub": "x"}));
    const WEB: &str = "system:serviceaccount:shop:web";
    let api = Foreign::start(api_server(bearer.clone(), WEB, None)).await;
    add_method(
        &management,
        "kubernetes",
        &kubernetes(&api),
        "${serviceaccount.name}",
    )
    .await;
    let before = server.store().state().read().tokens().len();
    let says = async |bearer: &str, status: u16, text: &str| {
        let reply = login(&client, bearer).await;
        assert_eq!(reply.status.as_u16(), status, "{}", reply.text());
        assert!(reply.text().contains(text), "{}", reply.text());
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
        says(&bearer, 403, "is no service account").await;
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
    says(&bearer, 503, "not right").await;
    api.answer(|_| Reaction::Huge(2 << 20));
    says(&bearer, 503, "more than").await;
    api.answer(|_| Reaction::Hangup);
    says(&bearer, 503, &api.url()).await;
    let channel = channel(&server).await;
    let status = grpc_login(&channel, "m", bearer.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    api.answer(|_| Reaction::Silence);
    tokio::time::pause();
    says(&bearer, 503, "no answer in 10 s").await;
    tokio::time::resume();
    assert_eq!(server.store().state().read().tokens().len(), before);

    // Another authority than the one of the settings.
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
    add_method(
        &management,
        "kubernetes",
        &kubernetes(&api),
        "${serviceaccount.name}",
    )
    .await;
    let list = management.get("/v1/acl/auth-methods").await;
    assert_eq!(list.json()[0]["Type"], "kubernetes");
    assert!(!list.text().contains(REVIEWER) && list.json()[0].get("Config").is_none());
    let read = management.get("/v1/acl/auth-method/m").await.json();
    assert_eq!(read["Config"]["ServiceAccountJWT"], REVIEWER);

    let key = TestSigner::generate();
    let config = json!({"JWTValidationPubKeys": [key.public_key_pem()]});
    let jwt = json!({"Name": "m", "Type": "jwt", "Config": config});
    let reply = management.put("/v1/acl/auth-method/m", &jwt).await;
    assert!(
        reply.text().contains("Type: it cannot be changed"),
        "{}",
        reply.text()
    );
    let other = json!({"Name": "n", "Type": "jwt", "Config": config});
    management.write("/v1/acl/auth-method", &other).await;
    let rules = management.get("/v1/acl/binding-rules").await.json();
    let path = format!("/v1/acl/binding-rule/{}", rules[0]["ID"].as_str().unwrap());
    let moved = json!({"AuthMethod": "n", "BindType": "service", "BindName": "x"});
    let reply = management.put(&path, &moved).await;
    assert!(
        reply.text().contains("AuthMethod: it cannot be changed"),
        "{}",
        reply.text()
    );
    for kind in ["oidc", "aws-iam", ""] {
        let unserved = json!({"Name": "o", "Type": kind, "Config": {}});
        let reply = management.put("/v1/acl/auth-method", &unserved).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        assert!(reply.text().contains("Type"), "{}", reply.text());
    }
}

#[tokio::test]
async fn what_is_said_of_a_login_is_bounded() {
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
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.text());
    assert!(reply.text().contains("Meta"), "{}", reply.text());
    drop(server);
}
