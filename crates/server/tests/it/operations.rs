//! Operations: HTTP restrictions, UNIX sockets, the audit log, profiles and telemetry, with real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use legate_api::connectca::SignRequest;
use legate_api::connectca::connect_ca_service_client::ConnectCaServiceClient;
use legate_api::dataplane::GetSupportedDataplaneFeaturesRequest;
use legate_api::dataplane::dataplane_service_client::DataplaneServiceClient;
use legate_model::Secret;
use legate_server::{
    AuditSink, DefaultPolicy, HttpPolicy, LimitMode, RequestLimits, TelemetryConfig, UnixSocket,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket, UnixStream};
use tokio::time::timeout;

use crate::grpc;
use crate::http_client::start;

const LIMIT: Duration = Duration::from_secs(30);
const ROOT: &str = "11111111-2222-3333-4444-555555555555";

#[tokio::test]
async fn blocked_paths_networks_that_may_write_and_headers_of_all_answers() {
    let (server, client) = start(|config| {
        config.http_policy = HttpPolicy {
            block_endpoints: vec!["/v1/agent/self".to_owned(), "/v1/kv/secret".to_owned()],
            allow_write_from: vec!["10.0.0.0/8".parse().unwrap()],
            response_headers: vec![(
                HeaderName::from_static("x-frame-options"),
                HeaderValue::from_static("DENY"),
            )],
            ..HttpPolicy::default()
        };
    })
    .await;
    let refused = client.get("/v1/agent/self").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(refused.text(), "Endpoint is blocked by agent configuration");
    assert_eq!(refused.header("x-frame-options"), "DENY");
    let encoded = client.get("/v1/kv/%73ecret/key").await;
    assert_eq!(encoded.status, StatusCode::FORBIDDEN);
    let open = client.get("/v1/kv/open").await;
    assert_eq!(open.status, StatusCode::NOT_FOUND);
    let refused = client.put("/v1/catalog/register", &json!({})).await;
    assert_eq!(
        (refused.status, refused.text()),
        (StatusCode::FORBIDDEN, "Access is restricted")
    );
    let read = client.get("/v1/catalog/nodes").await;
    assert_eq!(
        (read.status, read.header("x-frame-options")),
        (StatusCode::OK, "DENY")
    );
    server.stop(LIMIT).await.unwrap();
}

#[tokio::test]
async fn requests_beyond_the_rate_are_refused_with_consuls_text() {
    let (server, client) = start(|config| {
        config.request_limits = RequestLimits {
            mode: LimitMode::Enforcing,
            read_rate: Some(0.2),
            write_rate: None,
        };
    })
    .await;
    let mut last = client.get("/v1/catalog/nodes").await;
    for _ in 0..3 {
        last = client.get("/v1/catalog/nodes").await;
    }
    assert_eq!(last.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        last.text(),
        "rate limit exceeded, try again later or against a different server"
    );
    let status = client.get("/v1/status/leader").await;
    assert_eq!(status.status, StatusCode::OK);
    server.stop(LIMIT).await.unwrap();
}

#[tokio::test]
async fn calls_beyond_the_rate_are_refused() {
    let server = grpc::start(|config| {
        config.request_limits = RequestLimits {
            mode: LimitMode::Enforcing,
            read_rate: Some(0.2),
            write_rate: None,
        };
    })
    .await;
    let channel = grpc::channel(&server).await;
    let mut client = DataplaneServiceClient::new(channel.clone());
    let mut ask = async || {
        let asked = GetSupportedDataplaneFeaturesRequest {};
        let answer = client.get_supported_dataplane_features(asked).await;
        answer.map(|_| ()).map_err(|status| status.code())
    };
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(ask().await);
    }
    assert_eq!(answers[0], Ok(()));
    assert_eq!(answers[3], Err(tonic::Code::ResourceExhausted));
    // Writes have their own rate limit; this one fails validation instead.
    let signed = ConnectCaServiceClient::new(channel)
        .sign(SignRequest::default())
        .await;
    assert_ne!(signed.unwrap_err().code(), tonic::Code::ResourceExhausted);
    server.stop(LIMIT).await.unwrap();
}

#[tokio::test]
async fn the_api_is_served_at_sockets_and_at_several_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    // A leftover of a previous server.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let other = SocketAddr::from(([127, 0, 0, 2], 0));
    let (server, client) = start(|config| {
        config.more_listeners.http = vec![other];
        config.more_listeners.http_sockets = vec![UnixSocket {
            path: path.clone(),
            mode: Some(0o600),
            ..UnixSocket::default()
        }];
    })
    .await;
    assert_eq!(client.get("/v1/status/leader").await.status, StatusCode::OK);
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let request = b"GET /v1/status/leader HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    timeout(LIMIT, stream.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    server.stop(LIMIT).await.unwrap();
}

#[tokio::test]
async fn writes_and_denials_are_logged_and_no_secret_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.json");
    let (server, client) = start(|config| {
        config.acl.enabled = true;
        config.acl.default_policy = DefaultPolicy::Deny;
        config.acl.initial_management = Some(Secret::new(ROOT));
        config.audit = vec![AuditSink {
            name: "one".to_owned(),
            path: path.clone(),
            ..AuditSink::default()
        }];
    })
    .await;
    let root = client.with_token(ROOT);
    let policy = json!({ "Name": "p", "Rules": "key \"x\" { policy = \"read\" }" });
    root.write("/v1/acl/policy", &policy).await;
    assert_eq!(root.get("/v1/acl/policies").await.status, StatusCode::OK);
    let bad = format!("/v1/acl/policies?ns=team&token={ROOT}9");
    assert_eq!(client.get(&bad).await.status, StatusCode::FORBIDDEN);
    server.stop(LIMIT).await.unwrap();

    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(ROOT), "{text}");
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let shown: Vec<_> = events
        .iter()
        .map(|event| {
            let payload = &event["payload"];
            (
                payload["stage"].as_str().unwrap(),
                payload["request"]["operation"].as_str().unwrap(),
                payload["request"]["endpoint"].as_str().unwrap(),
                payload["response"]["status"].as_str().unwrap_or_default(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("OperationStart", "PUT", "/v1/acl/policy", ""),
            ("OperationComplete", "PUT", "/v1/acl/policy", "200"),
            ("OperationComplete", "GET", "/v1/acl/policies", "403"),
        ]
    );
    assert_eq!(events[0]["event_type"], "audit");
    let auth = &events[0]["payload"]["auth"];
    assert_eq!(auth["accessor_id"], "00000000-0000-0000-0000-000000000003");
    assert_eq!(events[2]["payload"]["auth"]["accessor_id"], "");
    let tenancy = |at: usize, of: &str| {
        let named = &events[at]["payload"][of];
        (named["partition"].clone(), named["namespace"].clone())
    };
    let default = (json!("default"), json!("default"));
    assert_eq!(tenancy(0, "auth"), default);
    assert_eq!(tenancy(0, "request"), (Value::Null, Value::Null));
    assert_eq!(tenancy(1, "request"), default);
    assert_eq!(tenancy(2, "request"), (json!("default"), json!("team")));
}

#[tokio::test]
async fn profiles_are_served_if_enabled() {
    let (server, client) = start(|config| config.debug = true).await;
    for name in ["heap", "goroutine", "profile?seconds=0"] {
        let profile = client.get(&format!("/debug/pprof/{name}")).await;
        assert_eq!(profile.status, StatusCode::OK, "{name}");
        assert!(!profile.body.is_empty(), "{name}");
    }
    // Arguments may contain secrets.
    let line = client.get("/debug/pprof/cmdline").await;
    assert_eq!(Some(line.text().to_owned()), std::env::args().next());
    let trace = client.get("/debug/pprof/trace?seconds=1").await;
    assert_eq!(trace.text(), "go 1.22 trace\0\0\0");
    server.stop(LIMIT).await.unwrap();
    let (server, client) = start(|_| {}).await;
    let heap = client.get("/debug/pprof/heap").await;
    assert_eq!(heap.status, StatusCode::NOT_FOUND);
    server.stop(LIMIT).await.unwrap();
}

/// Receives one request to a collector: its first line and its body.
async fn collected(collector: &TcpListener) -> (String, Vec<u8>) {
    let (mut stream, _) = timeout(LIMIT, collector.accept()).await.unwrap().unwrap();
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).await.unwrap();
        bytes.extend_from_slice(&piece[..length]);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else { continue };
        let head = String::from_utf8(bytes[..end].to_vec())
            .unwrap()
            .to_lowercase();
        let announced = head.split("content-length: ").nth(1).unwrap();
        let announced: usize = announced.lines().next().unwrap().parse().unwrap();
        if bytes.len() >= end + 4 + announced {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            assert!(head.contains("application/x-protobuf"), "{head}");
            assert!(head.contains("x-key: secret"), "{head}");
            let line = head.lines().next().unwrap().to_owned();
            return (line, bytes[end + 4..].to_vec());
        }
    }
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn traces_and_metrics_reach_a_collector_and_statsd() {
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let statsd = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let receiver = statsd.local_addr().unwrap().to_string();
    let (server, client) = start(|config| {
        config.telemetry = TelemetryConfig {
            otlp_endpoint: Some(endpoint),
            otlp_headers: [("x-key".to_owned(), Secret::new("secret"))].into(),
            interval: Duration::from_secs(1),
            statsd: Some(receiver),
            ..TelemetryConfig::default()
        };
    })
    .await;
    let request = Request::builder()
        .method(Method::GET)
        .uri("/v1/catalog/nodes?token=hidden")
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        .body(Full::default())
        .unwrap();
    assert_eq!(client.exchange(request).await.status, StatusCode::OK);
    let (mut metrics, mut traces) = (false, false);
    while !metrics || !traces {
        let (line, body) = collected(&collector).await;
        assert!(holds(&body, b"service.name"), "{line}");
        assert!(!holds(&body, b"hidden"), "{line}");
        match line.split(' ').nth(1).unwrap() {
            "/v1/metrics" => metrics |= holds(&body, b"legate_http_requests_total"),
            "/v1/traces" => {
                assert!(holds(&body, b"GET /v1/catalog/nodes"));
                assert!(holds(&body, &[0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd]));
                traces = true;
            }
            other => panic!("{other}"),
        }
    }
    let mut datagram = vec![0; 65_535];
    loop {
        let length = timeout(LIMIT, statsd.recv(&mut datagram))
            .await
            .unwrap()
            .unwrap();
        let text = String::from_utf8(datagram[..length].to_vec()).unwrap();
        if text.contains("legate_http_requests_total.GET.200:1|c") {
            break;
        }
    }
    server.stop(LIMIT).await.unwrap();
}
