//! Logins with a JWT auth method, with ACLs that deny by default.

use std::time::SystemTime;

use http::Method;
use legate_testkit::jwt::TestSigner;
use legate_tests::interop::Pair;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::{Value, json};

use crate::{API, WEB};

const METHOD: &str = "workloads";

/// Every sidecar logs in, has the permissions of its service, and logs out at the end.
pub(crate) async fn login_and_logout(pair: &Pair) {
    let mut mesh = with_acls(pair).await;
    let key = auth_method(&mesh).await;
    let mut api = log_in(pair, &mut mesh, &key, &API).await;
    let mut web = log_in(pair, &mut mesh, &key, &WEB).await;
    assert_eq!(logins(&mesh).await.len(), 2);
    mesh.settle("web", 403).await;
    mesh.intend("web", "api", "allow").await;
    mesh.settle("web", 200).await;

    assert!(web.stop().await.success(), "{}", web.log());
    assert_eq!(logins(&mesh).await.len(), 1);
    assert!(api.stop().await.success(), "{}", api.log());
    assert_eq!(logins(&mesh).await, Vec::<String>::new());
    mesh.stop().await;
}

/// A sidecar whose token is deleted logs in again, and its Envoy stays configured.
pub(crate) async fn deleted_token(pair: &Pair) {
    let mut mesh = with_acls(pair).await;
    let key = auth_method(&mesh).await;
    let mut api = log_in(pair, &mut mesh, &key, &API).await;
    let [first] = <[String; 1]>::try_from(logins(&mesh).await).expect("one login");
    mesh.api(Method::DELETE, &format!("/v1/acl/token/{first}"), None)
        .await;
    eventually(
        "there is another token",
        || logins(&mesh),
        |tokens| tokens.len() == 1 && tokens[0] != first,
    )
    .await;

    let mut web = log_in(pair, &mut mesh, &key, &WEB).await;
    for (action, status) in [("allow", 200), ("deny", 403)] {
        mesh.intend("web", "api", action).await;
        mesh.settle("web", status).await;
    }
    assert!(web.stop().await.success(), "{}", web.log());
    assert!(api.stop().await.success(), "{}", api.log());
    assert_eq!(logins(&mesh).await, Vec::<String>::new());
    mesh.stop().await;
}

async fn with_acls(pair: &Pair) -> Mesh {
    pair.mesh(MeshOptions {
        acl: true,
        ..MeshOptions::default()
    })
    .await
}

/// Creates an auth method whose logins map to services, and returns the signing key.
async fn auth_method(mesh: &Mesh) -> TestSigner {
    let key = TestSigner::generate();
    let method = json!({
        "Name": METHOD,
        "Type": "jwt",
        "Config": {
            "JWTValidationPubKeys": [key.public_key_pem()],
            "JWTSupportedAlgs": ["ES256"],
            "BoundIssuer": "test",
            "BoundAudiences": ["legate"],
            "ClaimMappings": {"sub": "service"},
        },
    });
    mesh.api(Method::PUT, "/v1/acl/auth-method", Some(method))
        .await;
    let rule = json!({"AuthMethod": METHOD, "BindType": "service", "BindName": "${value.service}"});
    mesh.api(Method::PUT, "/v1/acl/binding-rule", Some(rule))
        .await;
    key
}

/// Starts an instance's sidecar with login, and waits until it is ready.
async fn log_in(pair: &Pair, mesh: &mut Mesh, key: &TestSigner, spec: &ServiceSpec) -> Sidecar {
    mesh.register(spec).await;
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let claims =
        json!({"iss": "test", "aud": "legate", "sub": spec.service, "iat": now, "exp": now + 600});
    let file = mesh.file(&format!("{}.jwt", spec.instance));
    std::fs::write(&file, key.sign(&claims)).expect("the bearer token can be written");
    let flags = pair
        .flags(mesh, spec.instance)
        .with("credential-type", "login")
        .with("login-auth-method", METHOD)
        .with("login-bearer-token-path", file.display().to_string())
        .with("login-meta", format!("pod=default/{}", spec.instance));
    pair.start(mesh, spec.instance, &flags).await
}

/// Accessor ids of the tokens that the auth method created.
async fn logins(mesh: &Mesh) -> Vec<String> {
    let tokens = mesh.api(Method::GET, "/v1/acl/tokens", None).await;
    let tokens: Vec<Value> = serde_json::from_str(&tokens).expect("JSON");
    let tokens = tokens.iter().filter(|token| token["AuthMethod"] == METHOD);
    let accessors = tokens.filter_map(|token| token["AccessorID"].as_str());
    accessors.map(str::to_owned).collect()
}
