//! Servers from which proxies fetch the keys of tokens, with real Envoys.

use std::net::SocketAddr;
use std::time::Duration;

use axum::{Json, Router, routing};
use legate_runtime::Scope;
use legate_testkit::certs::{ServerTls, TestCa};
use legate_testkit::jwt::TestSigner;
use legate_tests::{MeshOptions, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::tokens::{ISSUER, LATER, Scenario, required};

/// Serves keys.
async fn serve_keys(address: SocketAddr, keys: Value, scope: &Scope) {
    let listener = TcpListener::bind(address).await.expect("a free address");
    let router = Router::new().route("/keys", routing::get(|| async move { Json(keys) }));
    let stop = scope.token().cancelled_owned();
    scope.spawn("keys", async move {
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_fetched_from_a_server_and_requests_fail_without_them() {
    for fetch_asynchronously in [true, false] {
        // Connections to a draining listener are served with its existing keys.
        let mesh = Scenario::start(MeshOptions::default()).await;
        let api = mesh.mesh.public("api").ip();
        let address = SocketAddr::new(api, 7070);
        let scope = Scope::new("server of keys");
        let provider = |host: &str| {
            json!({
                "JSONWebKeySet": {"Remote": {
                    "URI": format!("http://{host}:7070/keys"), "RequestTimeoutMs": 700,
                    "CacheDuration": "1m", "FetchAsynchronously": fetch_asynchronously,
                    "RetryPolicy": {"NumRetries": 2, "RetryPolicyBackOff": {
                        "BaseInterval": "20ms", "MaxInterval": "50ms",
                    }},
                    "JWKSCluster": {"DiscoveryType": "STRICT_DNS", "ConnectTimeout": "700ms"},
                }},
            })
        };
        mesh.provider(provider(&api.to_string())).await;
        mesh.intend(json!({"Action": "allow"}), Some(required(json!([]))))
            .await;
        let token = mesh.token(json!({}));
        mesh.settle("/", &[], 403).await;
        assert_eq!(mesh.bearer("/", &token).await, 403, "there are no keys");
        serve_keys(address, mesh.key_set(), &scope).await;
        let value = format!("Bearer {token}");
        mesh.settle("/", &[("authorization", &value)], 200).await;
        let other = TestSigner::generate().sign(&json!({"iss": ISSUER, "exp": LATER}));
        assert_eq!(mesh.bearer("/", &other).await, 403);
        scope
            .stop(Duration::from_secs(5))
            .await
            .expect("the server of keys stops");
        mesh.stop().await;
    }
}

/// Serves keys with TLS on a separate port, for every request.
async fn serve_keys_with_tls(ca: &TestCa, name: &str, keys: Value, scope: &Scope) -> u16 {
    let tls = ServerTls {
        alpn: false,
        ..ServerTls::default()
    };
    let tls = TlsAcceptor::from(ca.server_config(&[name], tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let body = keys.to_string();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let stop = scope.token().cancelled_owned();
    scope.spawn("keys over TLS", async move {
        let serve = async {
            loop {
                let (stream, _) = listener.accept().await?;
                // A client that rejects the certificate disconnects.
                let Ok(mut stream) = tls.accept(stream).await else {
                    continue;
                };
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        };
        tokio::select! {
            () = stop => Ok::<(), std::io::Error>(()),
            ended = serve => ended,
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_identity_of_the_key_server_is_verified() {
    let mesh = Scenario::start(MeshOptions::default()).await;
    let (ca, other) = (TestCa::new(), TestCa::new());
    let scope = Scope::new("servers of keys");
    let right = serve_keys_with_tls(&ca, "localhost", mesh.key_set(), &scope).await;
    let wrong = serve_keys_with_tls(&ca, "elsewhere.example", mesh.key_set(), &scope).await;
    let provider = |port: u16, authority: &TestCa| {
        json!({"JSONWebKeySet": {"Remote": {
            "URI": format!("https://localhost:{port}/keys"), "UseSNI": true,
            "RequestTimeoutMs": 2000, "JWKSCluster": {"TLSCertificates": {
                "TrustedCA": {"InlineString": authority.ca_pem()},
            }},
        }}})
    };
    let token = mesh.token(json!({}));
    let value = format!("Bearer {token}");
    mesh.provider(provider(right, &other)).await;
    mesh.intend(json!({"Action": "allow"}), Some(required(json!([]))))
        .await;
    for (port, authority, failure) in [
        (right, &other, "fail_verify_error"),
        (wrong, &ca, "fail_verify_san"),
    ] {
        mesh.provider(provider(port, authority)).await;
        let stat = format!("cluster.jwks_cluster_okta.ssl.{failure}");
        let failed = || mesh.sidecars[0].stat(&stat);
        eventually("the server is refused", failed, |count| *count > 0).await;
        assert_eq!(mesh.bearer("/", &token).await, 403, "{failure}");
    }
    mesh.provider(provider(right, &ca)).await;
    mesh.settle("/", &[("authorization", &value)], 200).await;
    scope
        .stop(Duration::from_secs(5))
        .await
        .expect("the servers of keys stop");
    mesh.stop().await;
}
