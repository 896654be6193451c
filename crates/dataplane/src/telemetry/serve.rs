//! The two servers that Prometheus's way leads through: the dataplane's own metrics, and the merged
//! page that Envoy's Prometheus listener forwards to. They run only when the proxy's configuration
//! asks for Prometheus, on all addresses by default as those of Consul's dataplane, and their absence
//! harms nothing else.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use legate_runtime::Spawner;
use legate_runtime::http_server::bind;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;

use super::{Format, Merger, Telemetry, negotiate};
use crate::http_server;

/// Port of the dataplane's own metrics.
pub const OWN_METRICS_PORT: u16 = 20101;

/// Where Envoy's Prometheus listener sends its requests.
const MERGED_PATH: &str = "/stats/prometheus";

/// Where the servers listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoints {
    /// The dataplane's own metrics, on any path.
    pub own: SocketAddr,
    /// The merged metrics, on `/stats/prometheus`.
    pub merged: SocketAddr,
}

/// Starts both servers. One whose address is taken is left out with a warning: the proxy works
/// without it.
pub fn start(endpoints: Endpoints, telemetry: Telemetry, merger: Merger, spawner: &Spawner) {
    let own = Router::new().fallback(any(own_page)).with_state(telemetry);
    let merged = Router::new()
        .route(MERGED_PATH, any(merged_page))
        .with_state(merger);
    serve("metrics server", endpoints.own, own, spawner);
    serve("merged metrics server", endpoints.merged, merged, spawner);
}

fn serve(name: &'static str, address: SocketAddr, router: Router, spawner: &Spawner) {
    let listener = match bind(address) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(target: "metrics", %address, %error, "{name} not started");
            return;
        }
    };
    tracing::info!(target: "metrics", %address, "starting {name}");
    // Metrics repeat themselves: more effort makes little of a difference.
    let gzip = CompressionLayer::new().quality(CompressionLevel::Fastest);
    let router = router.layer(gzip);
    http_server::serve(name, listener, router, spawner);
}

async fn own_page(State(telemetry): State<Telemetry>, headers: HeaderMap) -> Response {
    let format = negotiate::wanted(&headers);
    let head = [
        (header::CONTENT_TYPE, format.content_type()),
        (header::VARY, HeaderValue::from_static("accept")),
    ];
    (head, telemetry.render_as(format)).into_response()
}

async fn merged_page(
    State(merger): State<Merger>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    match merger.page(query.as_deref(), negotiate::time(&headers)) {
        Some(page) => {
            let head = [(header::CONTENT_TYPE, Format::Text.content_type())];
            (head, Body::from_stream(page)).into_response()
        }
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many requests at one time\n",
        )
            .into_response(),
    }
}
