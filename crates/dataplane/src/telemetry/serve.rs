//! The two metrics servers: for the dataplane's own metrics, and for the merged page, to which Envoy's Prometheus
//! listener forwards requests. They run only if the proxy's configuration enables Prometheus, on all addresses by
//! default like those of Consul's dataplane. Nothing else depends on them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::{HeaderMap, HeaderName, StatusCode, header};
use legate_metrics_page::Format;
use legate_runtime::Spawner;
use legate_runtime::http_server::bind;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;

use super::families;
use super::page::Merger;
use super::registry::Telemetry;
use crate::http_server;

/// Port of the dataplane's own metrics.
pub const OWN_METRICS_PORT: u16 = 20101;

/// The path that Envoy's Prometheus listener requests.
const MERGED_PATH: &str = "/stats/prometheus";

/// Time limit of a page if the request sets none: Prometheus' own default.
const DEFAULT_TIME: Duration = Duration::from_secs(10);

/// Maximum time limit of a page, whatever the request sets.
const LONGEST_TIME: Duration = Duration::from_secs(120);

/// The scraper's timeout in seconds.
const SCRAPE_TIMEOUT: HeaderName = HeaderName::from_static("x-prometheus-scrape-timeout-seconds");

/// Addresses of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// The dataplane's own metrics, on any path.
    pub own: SocketAddr,
    /// The merged metrics, on `/stats/prometheus`.
    pub merged: SocketAddr,
    /// The merged metrics once more, on this path, for Prometheus itself. With Envoy, a listener of Envoy does that.
    pub exposed: Option<(SocketAddr, String)>,
}

/// Starts both servers. If an address is in use, its server is omitted with a warning: the proxy works without
/// it.
pub fn start(endpoints: Endpoints, telemetry: Telemetry, merger: Merger, spawner: &Spawner) {
    let own = Router::new().fallback(any(own_page)).with_state(telemetry);
    if let Some((address, path)) = endpoints.exposed {
        let exposed = Router::new()
            .route(&path, any(merged_page))
            .with_state(merger.clone());
        serve("Prometheus server", address, exposed, spawner);
    }
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
    // Metrics are repetitive: higher levels hardly reduce the size.
    let gzip = CompressionLayer::new().quality(CompressionLevel::Fastest);
    let router = router.layer(gzip);
    http_server::serve(name, listener, router, spawner);
}

async fn own_page(State(telemetry): State<Telemetry>, headers: HeaderMap) -> Response {
    let format = wanted(&headers);
    let head = [
        (header::CONTENT_TYPE, format.content_type()),
        (header::VARY, "accept"),
    ];
    (head, families::page(&telemetry.families(), format)).into_response()
}

async fn merged_page(
    State(merger): State<Merger>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    match merger.page(query.as_deref(), time(&headers)) {
        Some(page) => {
            let head = [(header::CONTENT_TYPE, Format::Text.content_type())];
            (head, Body::from_stream(page)).into_response()
        }
        None => {
            let text = "too many requests at one time\n";
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

/// Time limit of a page: nine tenths of the scraper's timeout; the rest is for the transport.
fn time(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(SCRAPE_TIMEOUT);
    let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .map(|granted| granted.mul_f64(0.9).min(LONGEST_TIME))
        .filter(|time| !time.is_zero())
        .unwrap_or(DEFAULT_TIME)
}

/// OpenMetrics only for clients that prefer it, because all clients support text.
fn wanted(headers: &HeaderMap) -> Format {
    let (mut open, mut text) = (0.0_f64, 0.0_f64);
    let values = headers.get_all(header::ACCEPT).into_iter();
    let values = values.filter_map(|value| value.to_str().ok());
    for item in values.flat_map(|value| value.split(',')) {
        let item = item.to_ascii_lowercase();
        let (name, parameters) = item.split_once(';').unwrap_or((&item, ""));
        let pairs = parameters.split(';');
        let pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
        let parameters: HashMap<_, _> = pairs.collect();
        // An invalid quality counts as 0.
        let quality = |number: &&str| number.parse().unwrap_or(0.0);
        let quality = parameters.get("q").map_or(1.0, quality);
        let version = parameters.get("version").map(|text| text.trim_matches('"'));
        match (name.trim(), version) {
            ("application/openmetrics-text", None | Some("1.0.0")) => open = open.max(quality),
            ("text/plain", None | Some("0.0.4")) | ("text/*", _) => text = text.max(quality),
            _ => {}
        }
    }
    match open > text {
        true => Format::OpenMetrics,
        false => Format::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_served_only_if_preferred() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                "Application/OpenMetrics-Text; version=\"1.0.0\"",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=0.0.1,*/*;q=0.1",
                Format::Text,
            ),
            (
                "application/openmetrics-text;q=0.5,text/plain;q=0.5",
                Format::Text,
            ),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=x", Format::Text),
            ("*/*", Format::Text),
            ("", Format::Text),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
            assert_eq!(wanted(&headers), expected, "{accept}");
        }
    }

    #[test]
    fn the_scraper_sets_the_time_limit() {
        let time = |value: &'static str| {
            time(&HeaderMap::from_iter([(
                SCRAPE_TIMEOUT,
                value.parse().unwrap(),
            )]))
        };
        assert_eq!(time("20"), Duration::from_secs(18));
        assert_eq!(time("1e9"), LONGEST_TIME);
        for nonsense in ["", "0", "-1", "NaN", "soon", "1e300"] {
            assert_eq!(time(nonsense), DEFAULT_TIME, "{nonsense}");
        }
    }
}
