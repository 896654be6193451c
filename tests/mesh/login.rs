//! A sidecar logs in with a JWT, has the permissions of its service, and logs out at the end.

use std::time::SystemTime;

use http::Method;
use legate_testkit::jwt::TestSigner;
use legate_tests::{Mesh, MeshOptions, eventually};
use serde_json::{Value, json};

use crate::API;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_and_logout() {
    let mut mesh = Mesh::start(MeshOptions {
        acl: true,
        ..MeshOptions::default()
    })
    .await;
    mesh.register(&API).await;
    let key = TestSigner::generate();
    let method = json!({
        "Name": "workloads",
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
    let rule =
        json!({"AuthMethod": "workloads", "BindType": "service", "BindName": "${value.service}"});
    mesh.api(Method::PUT, "/v1/acl/binding-rule", Some(rule))
        .await;

    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let claims =
        json!({"iss": "test", "aud": "legate", "sub": "api", "iat": now, "exp": now + 600});
    let token = key.sign(&claims);
    let file = mesh.file("bearer");
    std::fs::write(&file, token).expect("the bearer token can be written");
    let flags = mesh
        .flags(API.instance)
        .with("credential-type", "login")
        .with("login-auth-method", "workloads")
        .with("login-bearer-token-path", file.display().to_string());
    let mut api = mesh.sidecar("api", &flags);
    api.ready().await;
    assert_eq!(logins(&mesh).await, 1);

    assert!(api.stop().await.success(), "{}", api.log());
    eventually("the token is gone", || logins(&mesh), |count| *count == 0).await;
    mesh.stop().await;
}

/// The number of tokens created by the auth method.
async fn logins(mesh: &Mesh) -> usize {
    let tokens = mesh.api(Method::GET, "/v1/acl/tokens", None).await;
    let tokens: Vec<Value> = serde_json::from_str(&tokens).expect("JSON");
    tokens
        .iter()
        .filter(|token| token["AuthMethod"] == "workloads")
        .count()
}
