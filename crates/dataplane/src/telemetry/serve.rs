//! The two servers that Prometheus's way leads through: the dataplane's own metrics, and the merged
//! page that Envoy's Prometheus listener forwards to. They run only when the proxy's configuration
//! asks for Prometheus, on all addresses by default as those of Consul's dataplane, and their absence
//! harms nothing else.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderMap, StatusCode, header};
use legate_runtime::Spawner;
use tokio::sync::mpsc;

use super::compress::Gzip;
use super::negotiate::Wish;
use super::{Format, Merger, PageRequest, Telemetry};
use crate::http_server::{self, Limits};

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
    let listener = match http_server::bind(address) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(target: "metrics", %address, %error, "{name} not started");
            return;
        }
    };
    tracing::info!(target: "metrics", %address, "starting {name}");
    http_server::serve(name, listener, router, Limits::of_process(), spawner);
}

async fn own_page(State(telemetry): State<Telemetry>, headers: HeaderMap) -> Response {
    let wish = Wish::of(&headers);
    let (sender, pieces) = mpsc::channel(1);
    // There is room for one piece, and that is all of it.
    let _ = sender.try_send(telemetry.render_as(wish.format).into());
    answer(wish.format, wish.gzip, pieces, Arc::new(true.into()))
}

async fn merged_page(
    State(merger): State<Merger>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let wish = Wish::of(&headers);
    let request = PageRequest {
        query,
        format: wish.format,
        time: wish.time,
    };
    match merger.page(&request).await {
        Some(page) => answer(page.format, wish.gzip, page.pieces, page.whole),
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many requests at one time\n",
        )
            .into_response(),
    }
}

fn answer(
    format: Format,
    gzip: bool,
    pieces: mpsc::Receiver<Bytes>,
    whole: Arc<AtomicBool>,
) -> Response {
    let body = Body::from_stream(body(pieces, gzip.then(Gzip::new), whole));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, format.content_type());
    headers.insert(
        header::VARY,
        header::HeaderValue::from_static("accept, accept-encoding"),
    );
    if gzip {
        headers.insert(
            header::CONTENT_ENCODING,
            header::HeaderValue::from_static("gzip"),
        );
    }
    response
}

/// The pieces as they are sent. The end of a page that is not whole is an error, so that nobody
/// takes it for one that is.
pub(super) fn body(
    pieces: mpsc::Receiver<Bytes>,
    gzip: Option<Gzip>,
    whole: Arc<AtomicBool>,
) -> impl Stream<Item = io::Result<Bytes>> {
    let state = (pieces, gzip, whole);
    stream::try_unfold(state, async |(mut pieces, mut gzip, whole)| {
        loop {
            let Some(piece) = pieces.recv().await else {
                if !whole.load(Ordering::Acquire) {
                    return Err(io::Error::other("the page was cut off"));
                }
                let Some(gzip) = gzip.take() else {
                    return Ok(None);
                };
                return Ok(Some((gzip.finish()?, (pieces, None, whole))));
            };
            let ready = match &mut gzip {
                None => piece,
                Some(gzip) => gzip.push(&piece)?,
            };
            if !ready.is_empty() {
                return Ok(Some((ready, (pieces, gzip, whole))));
            }
        }
    })
}
