//! Tokens of deleted pods.

use std::time::Duration;

use http::Method;
use legate_kubernetes::servers::Credentials;
use legate_model::Secret;
use legate_server::{AclConfig, DefaultPolicy, ServerConfig};
use legate_store::Store;
use legate_testkit::jwt::TestSigner;
use legate_tests::eventually;
use serde_json::{Value, json};

use crate::cluster::{Cluster, config, start};

const STOP: Duration = Duration::from_secs(10);
const MANAGEMENT: &str = "6d1f4f7e-0c43-4a39-9c9a-6d2b7b1c2f10";

struct Acl {
    cluster: Cluster,
    signer: TestSigner,
    servers: legate_kubernetes::servers::Servers,
    _scope: legate_runtime::Scope,
}

impl Acl {
    async fn send(&self, method: Method, path: &[&str], body: Value) -> Value {
        let path = legate_kubernetes::servers::Path::of(path.iter().copied());
        let answer = self
            .servers
            .request(method, &path, Some(&body))
            .await
            .unwrap();
        assert!(answer.status.is_success(), "{path}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }

    /// Logs in like a sidecar.
    async fn login(&self, meta: Value) {
        let jwt = self.signer.sign(&json!({
            "service": "web", "aud": "mesh", "exp": 4_000_000_000_u64, "iat": 1_700_000_000,
        }));
        let body = json!({"AuthMethod": "k8s", "BearerToken": jwt, "Meta": meta});
        self.send(Method::POST, &["acl", "login"], body).await;
    }

    /// The descriptions of the auth method's tokens.
    async fn tokens(&self) -> Vec<String> {
        let tokens = self
            .send(Method::GET, &["acl", "tokens"], Value::Null)
            .await;
        let tokens = tokens.as_array().unwrap().iter();
        let own = tokens.filter(|token| token["AuthMethod"] == "k8s");
        let mut own: Vec<String> = own
            .map(|token| token["Description"].as_str().unwrap().to_owned())
            .collect();
        own.sort();
        own
    }
}

async fn acl(server: &legate_server::Server) -> Acl {
    let mut cluster = Cluster::new(server.http_addr().unwrap()).await;
    cluster.credentials = Credentials::Token(Secret::new(MANAGEMENT));
    cluster.auth_method = Some("k8s".to_owned());
    let scope = legate_runtime::Scope::new("test");
    let options = legate_kubernetes::servers::Options {
        host: "127.0.0.1".to_owned(),
        port: cluster.http.port(),
        tls: None,
        credentials: cluster.credentials.clone(),
        partition: None,
    };
    let servers = legate_kubernetes::servers::Servers::new(options, scope.spawner()).unwrap();
    let acl = Acl {
        cluster,
        signer: TestSigner::generate(),
        servers,
        _scope: scope,
    };
    let method = json!({"Name": "k8s", "Type": "jwt", "Config": {
        "JWTValidationPubKeys": [acl.signer.public_key_pem()], "JWTSupportedAlgs": ["ES256"],
        "BoundAudiences": ["mesh"], "ClaimMappings": {"service": "service"},
    }});
    acl.send(Method::PUT, &["acl", "auth-method"], method).await;
    let rule = json!({"AuthMethod": "k8s", "BindType": "service", "BindName": "${value.service}"});
    acl.send(Method::PUT, &["acl", "binding-rule"], rule).await;
    acl
}

#[tokio::test]
async fn a_pods_tokens_are_removed_with_it() {
    let config = ServerConfig {
        acl: AclConfig {
            enabled: true,
            default_policy: DefaultPolicy::Deny,
            initial_management: Some(Secret::new(MANAGEMENT)),
            key_list_policy: false,
        },
        ..config()
    };
    let server = start(config, &Store::new()).await;
    let acl = acl(&server).await;
    let cluster = &acl.cluster;
    for name in ["web-0", "web-1"] {
        cluster.pod(name, name, true);
        let meta = json!({"pod": format!("default/{name}"), "pod-uid": name});
        acl.login(meta).await;
    }
    acl.login(json!({"component": "other"})).await;
    // A token whose pod was deleted while no operator ran.
    acl.login(json!({"pod": "default/gone", "pod-uid": "u"}))
        .await;
    acl.login(json!({"pod": "default/web-0", "pod-uid": "before"}))
        .await;
    let operator = cluster.operator("a");
    let left = |names: &[&str]| {
        let mut left: Vec<String> = names
            .iter()
            .map(|name| {
                format!(
                    "token created via login: {{\"pod\":\"default/{name}\",\"pod-uid\":\"{name}\"}}"
                )
            })
            .collect();
        left.push("token created via login: {\"component\":\"other\"}".to_owned());
        left.sort();
        left
    };
    let wanted = left(&["web-0", "web-1"]);
    eventually("the sweep", || acl.tokens(), |tokens| *tokens == wanted).await;
    cluster.delete_pod("web-1");
    let wanted = left(&["web-0"]);
    eventually(
        "the pod's token goes",
        || acl.tokens(),
        |tokens| *tokens == wanted,
    )
    .await;
    operator.stop(STOP).await.unwrap();
    server.stop(STOP).await.unwrap();
}
