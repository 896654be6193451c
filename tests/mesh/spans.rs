//! Spans of requests arrive at a collector, with the names of the services.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::any;
use bytes::Bytes;
use http::Uri;
use legate_runtime::Scope;
use legate_tests::{Mesh, MeshOptions, Sidecar, client, eventually};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::{API, WEB};

const ENOUGH: usize = 1024;

/// Accepts any request, and passes on path and body.
async fn collector(scope: &Scope) -> (SocketAddr, mpsc::Receiver<(String, Bytes)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it listens");
    let (sender, spans) = mpsc::channel(ENOUGH);
    let take = |State(sender): State<mpsc::Sender<(String, Bytes)>>, uri: Uri, body: Bytes| async move {
        // Dropped if it is not read.
        let _ = sender.try_send((uri.path().to_owned(), body));
    };
    let router = Router::new().fallback(any(take)).with_state(sender);
    let stop = scope.token().cancelled_owned();
    scope.spawn("collector", async move {
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
    });
    (address, spans)
}

/// Configures the collector in all proxies, which are started afterwards.
async fn trace(mesh: &Mesh, collector: SocketAddr, provider: Value) {
    let cluster = json!({
        "name": "collector", "type": "STATIC", "connect_timeout": "1s",
        "load_assignment": {"cluster_name": "collector", "endpoints": [{"lb_endpoints": [{
            "endpoint": {"address": {"socket_address": {
                "address": collector.ip(), "port_value": collector.port(),
            }}},
        }]}]},
    });
    let manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let tracing = json!({
        "@type": format!("{manager}.Tracing"), "random_sampling": {"value": 100},
    });
    mesh.entry(
        json!({"Kind": "proxy-defaults", "Name": "global", "Config": {
            "protocol": "http",
            "envoy_extra_static_clusters_json": cluster.to_string(),
            "envoy_tracing_json": json!({"http": provider}).to_string(),
            "envoy_listener_tracing_json": tracing.to_string(),
        }}),
    )
    .await;
}

async fn start(collector: SocketAddr, provider: Value) -> (Mesh, [Sidecar; 2]) {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    trace(&mesh, collector, provider).await;
    mesh.intend("web", "api", "allow").await;
    let api = mesh.add(&API).await;
    let web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;
    (mesh, [web, api])
}

async fn stop(mesh: Mesh, sidecars: [Sidecar; 2], scope: Scope) {
    for mut sidecar in sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    scope
        .stop(Duration::from_secs(10))
        .await
        .expect("the collector stops");
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_arrive_with_the_names_of_both_services() {
    let scope = Scope::new("collector");
    let (address, mut arrived) = collector(&scope).await;
    let provider = json!({
        "name": "envoy.tracers.zipkin",
        "typedConfig": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
            "collector_cluster": "collector", "collector_endpoint": "/api/v2/spans",
            "collector_endpoint_version": "HTTP_JSON", "shared_span_context": false,
        },
    });
    let (mesh, sidecars) = start(address, provider).await;
    let upstream = mesh.upstream("web", 0);
    let mut spans: Vec<Value> = Vec::new();
    // Envoy sends spans in batches.
    eventually(
        "both sides of one request are reported",
        || {
            while let Ok((path, body)) = arrived.try_recv() {
                assert_eq!(path, "/api/v2/spans");
                let some: Vec<Value> = serde_json::from_slice(&body).expect("JSON");
                spans.extend(some);
            }
            let found = has_both(&spans);
            async move {
                let _ = client::get(upstream, "/").await;
                found
            }
        },
        |found| *found,
    )
    .await;
    let span = spans.iter().find(|span| service(span) == "api");
    let tags = &span.expect("a span of api")["tags"];
    assert_eq!(tags["http.status_code"], "200", "{tags}");
    stop(mesh, sidecars, scope).await;
}

/// Whether a trace has spans of both the caller and the called service.
fn has_both(spans: &[Value]) -> bool {
    let of = |name: &'static str| spans.iter().filter(move |span| service(span) == name);
    of("web").any(|caller| of("api").any(|called| called["traceId"] == caller["traceId"]))
}

fn service(span: &Value) -> &str {
    span["localEndpoint"]["serviceName"]
        .as_str()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_arrive_by_opentelemetry() {
    let scope = Scope::new("collector");
    let (address, mut arrived) = collector(&scope).await;
    let provider = json!({
        "name": "envoy.tracers.opentelemetry",
        "typedConfig": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
            "service_name": "of-the-mesh",
            "http_service": {"http_uri": {
                "uri": format!("http://{address}/v1/traces"), "cluster": "collector", "timeout": "1s",
            }},
        },
    });
    let (mesh, sidecars) = start(address, provider).await;
    let upstream = mesh.upstream("web", 0);
    let has = |body: &[u8], text: &[u8]| body.windows(text.len()).any(|part| part == text);
    eventually(
        "a span arrives",
        || {
            let arrived = arrived.try_recv();
            async move {
                let _ = client::get(upstream, "/").await;
                arrived.ok()
            }
        },
        |arrived| {
            arrived.as_ref().is_some_and(|(path, body)| {
                path == "/v1/traces" && has(body, b"of-the-mesh") && has(body, b"http.status_code")
            })
        },
    )
    .await;
    stop(mesh, sidecars, scope).await;
}
