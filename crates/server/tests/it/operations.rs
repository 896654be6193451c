//! The operations side of a server: what its HTTP API lets through, sockets, TLS of clients, the audit
//! log, profiles and telemetry, with real sockets.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use legate_model::Secret;
use legate_server::{
    AclConfig, AuditSink, DefaultPolicy, HttpPolicy, LimitMode, MoreListeners, Parts, RequestLimits,
    ServerConfig, TelemetryConfig, UnixSocket,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket, UnixStream};
use tokio::time::timeout;

use crate::http_client::Client;
use crate::running::Running;

const LIMIT: Duration = Duration::from_secs(30);
const ROOT: &str = "11111111-2222-3333-4444-555555555555";

/// A server with HTTP only.
fn http_only() -> ServerConfig {
    ServerConfig {
        http: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        grpc: None,
        grpc_tls: None,
        dns: None,
        ..ServerConfig::default()
    }
}

#[tokio::test]
async fn blocked_paths_networks_and_headers() {
    let config = ServerConfig {
        http_policy: HttpPolicy {
            block_endpoints: vec!["/v1/agent/self".to_owned()],
            allow_write_from: vec!["10.0.0.0/8".parse().unwrap()],
            response_headers: vec![(
                HeaderName::from_static("x-frame-options"),
                HeaderValue::from_static("DENY"),
            )],
            ..HttpPolicy::default()
        },
        ..http_only()
    };
    let server = Running::start(config, |_| {}, Parts::default()).await;
    let client = Client::of(&server);
    let answer = client.get("/v1/agent/self").await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert_eq!(answer.text(), "Endpoint is blocked by agent configuration");
    assert_eq!(answer.headers["x-frame-options"], "DENY");
    let answer = client.send(Method::PUT, "/v1/catalog/register", json!({})).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert_eq!(answer.text(), "Access is restricted");
    let answer = client.get("/v1/catalog/nodes").await;
    assert_eq!((answer.status, &answer.headers["x-frame-options"]), (StatusCode::OK, &HeaderValue::from_static("DENY")));
    server.stop().await;
}
