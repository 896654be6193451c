//! The port for the kubelet and Prometheus: `/livez`, `/readyz` with reasons, `/metrics`.

use std::future::ready;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use hyper_util::service::TowerToHyperService;
use legate_runtime::http_server::{self, Limits};
use legate_runtime::metrics::{self, Registry};
use legate_runtime::{Readiness, ReadyState, Spawner};
use tokio::net::TcpListener;

const LIMITS: Limits = Limits {
    connections: 64,
    head: Duration::from_secs(10),
    making: Duration::from_secs(10),
    answer: Duration::from_secs(10),
};

/// Serves until the scope of `spawner` stops.
pub(super) fn serve(
    listener: TcpListener,
    readiness: Readiness,
    registry: Registry,
    spawner: &Spawner,
) {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(report))
        .with_state(readiness)
        .route("/metrics", get(scrape).with_state(registry));
    let service = TowerToHyperService::new(router);
    let open = |stream| ready(Ok(stream));
    http_server::serve("health server", listener, open, service, LIMITS, spawner);
}

/// Lists each component that is not ready on a line of its own.
async fn report(State(readiness): State<Readiness>) -> Response {
    if readiness.is_ready() {
        return "ok\n".into_response();
    }
    let lines: String = readiness
        .report()
        .into_iter()
        .filter_map(|component| match component.state {
            ReadyState::Ready => None,
            ReadyState::Pending(why) => Some(format!("{}: {why}\n", component.name)),
            ReadyState::Failed(why) => Some(format!("{} failed: {why}\n", component.name)),
        })
        .collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
}

async fn scrape(State(registry): State<Registry>) -> Response {
    let content_type = [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)];
    (content_type, metrics::encode(&registry)).into_response()
}

#[cfg(test)]
mod tests {
    use legate_runtime::Scope;
    use legate_runtime::metrics::ProcessMetrics;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn metrics_are_read_over_http() {
        let scope = Scope::new("test");
        let registry = Registry::new();
        ProcessMetrics::register(&registry).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        serve(listener, Readiness::new(), registry, &scope.spawner());
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET /metrics HTTP/1.1\r\nHost: operator\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains(metrics::CONTENT_TYPE), "{answer}");
        let line = "\nprocess_resident_memory_bytes ";
        assert!(answer.contains(line), "{answer}");
        scope.stop(Duration::from_secs(5)).await.unwrap();
    }
}
