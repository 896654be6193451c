//! Auth methods with remote keys: at a JWKS URL, or at an OpenID provider.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use legate_testkit::certs::TestCa;
use legate_testkit::jwt::TestSigner;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::foreign::{Asked, Foreign, Reaction};
use crate::http_client::{Client, Reply, start};
use crate::running::Running;

/// A server, its client without a token, and one with the management token.
pub(crate) async fn server() -> (Running, Client, Client) {
    let (server, client) = start(|config| {
        deny_by_default(config);
        config.grpc = config.http;
    })
    .await;
    let management = client.with_token(MANAGEMENT);
    (server, client, management)
}

/// An auth method `m`, with a binding rule that grants every login the service named by a variable.
pub(crate) async fn add_method(management: &Client, kind: &str, config: &Value, bind_name: &str) {
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

pub(crate) async fn login(client: &Client, bearer: &str) -> Reply {
    let body = json!({
        "AuthMethod": "m", "BearerToken": bearer,
        "Meta": {"pod": "shop/web-0", "pod-uid": "u"},
    });
    client
        .send(http::Method::POST, "/v1/acl/login", &body.to_string())
        .await
}

pub(crate) fn service_of(reply: &Reply) -> String {
    let token = reply.json();
    let name = &token["ServiceIdentities"][0]["ServiceName"];
    name.as_str().unwrap().to_owned()
}

fn claims() -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    json!({"sub": "web", "exp": now.unwrap().as_secs() + 60})
}

fn key_set(keys: &[Value]) -> Reaction {
    // Keys of unknown types are ignored.
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

/// Advances the time for timers.
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

    // Tokens with unknown key ids cause a limited rate of fetches.
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
    // The first key has been withdrawn.
    let reply = login(&client, &first.sign_as("1", &claims())).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
    assert_eq!(provider.asked().len(), 1);

    // With the provider unavailable, logins with cached keys still succeed.
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

    // Metadata with another issuer is rejected.
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
            "exceeds 1048576 bytes",
        ),
        (Box::new(|| Reaction::Huge(10)), "response is invalid"),
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
async fn a_silent_provider_times_out() {
    let (_server, client, management) = server().await;
    let signer = TestSigner::generate();
    let key = signer.public_jwk("1");
    let provider = Foreign::start(move |_| key_set(std::slice::from_ref(&key))).await;
    add_method(&management, "jwt", &jwks(&provider), "${value.name}").await;
    provider.answer(|_| Reaction::Silence);
    // From here on, paused time advances whenever all tasks are idle.
    tokio::time::pause();
    let reply = login(&client, &signer.sign_as("1", &claims())).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        reply.text().contains("no response within 8 s"),
        "{}",
        reply.text()
    );
    assert!(reply.text().contains("/keys"), "{}", reply.text());
}
