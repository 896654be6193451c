//! The two servers that Prometheus's way leads through: the dataplane's own metrics, and the merged
//! page that Envoy's Prometheus listener forwards to. They run only when the proxy's configuration
//! asks for Prometheus, on the address of Envoy's admin interface, and their absence harms nothing
//! else.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::StreamExt;
use http::{StatusCode, header};
use legate_runtime::Spawner;
use legate_runtime::metrics::CONTENT_TYPE;
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;

use super::{Merger, Telemetry};

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
pub async fn start(endpoints: Endpoints, telemetry: Telemetry, merger: Merger, spawner: &Spawner) {
    let own = Router::new().fallback(any(own_page)).with_state(telemetry);
    let merged = Router::new()
        .route(MERGED_PATH, any(merged_page))
        .with_state(merger);
    serve("metrics server", endpoints.own, own, spawner).await;
    serve("merged metrics server", endpoints.merged, merged, spawner).await;
}

async fn serve(name: &'static str, address: SocketAddr, router: Router, spawner: &Spawner) {
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(target: "metrics", %address, %error, "{name} not started");
            return;
        }
    };
    tracing::info!(target: "metrics", %address, "starting {name}");
    let stop = spawner.token();
    spawner.spawn(name, async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = served.await {
            tracing::warn!(target: "metrics", %address, %error, "{name} ended");
        }
        Ok::<_, Infallible>(())
    });
}

async fn own_page(State(telemetry): State<Telemetry>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], telemetry.render()).into_response()
}

async fn merged_page(State(merger): State<Merger>, RawQuery(query): RawQuery) -> Response {
    match merger.page(query.as_deref()) {
        Some(page) => {
            let pieces = ReceiverStream::new(page).map(Ok::<_, Infallible>);
            (
                [(header::CONTENT_TYPE, CONTENT_TYPE)],
                Body::from_stream(pieces),
            )
                .into_response()
        }
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many requests at one time\n",
        )
            .into_response(),
    }
}
