//! The port for the kubelet and Prometheus: `/livez`, `/readyz` with its reasons, `/metrics`.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use legate_runtime::metrics::{self, Registry};
use legate_runtime::{Readiness, ReadyState, Spawner};
use tokio::net::TcpListener;

use crate::http_server::{HttpServer, Limits};

const LIMITS: Limits = Limits {
    connections: 64,
    time: Duration::from_secs(10),
};

/// Answers until the scope of `spawner` stops.
pub(super) fn serve(
    listener: TcpListener,
    readiness: Readiness,
    registry: Registry,
    spawner: &Spawner,
) {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(readiness)
        .route("/metrics", get(scrape).with_state(registry));
    HttpServer {
        name: "health server",
        router,
        tls: None,
        limits: LIMITS,
    }
    .serve(listener, spawner);
}

/// Each component that is not ready stands in a line of its own.
async fn ready(State(readiness): State<Readiness>) -> Response {
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
