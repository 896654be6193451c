//! Streaming endpoints: the log and the metrics, sent until the client disconnects.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use http::header::{CONTENT_TYPE, HeaderValue};
use legate_runtime::logging::{self, Level};
use legate_runtime::metrics::Registry;
use legate_runtime::{CancellationToken, Clock};
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use tokio::time::{MissedTickBehavior, interval};

use super::super::call::Call;
use super::super::metrics::summary;
use crate::api_error::ApiError;

/// Interval between metrics. Consul's.
const METRICS_INTERVAL: Duration = Duration::from_secs(10);

/// `GET /v1/agent/monitor`
pub(crate) async fn monitor(
    State(stop): State<CancellationToken>,
    call: Call,
) -> Result<Response, ApiError> {
    super::may_read(&call)?;
    let level = match call.params.get("loglevel").unwrap_or_default() {
        "" => Level::Info,
        name => level(name)
            .ok_or_else(|| ApiError::bad_request(format!("Unknown log level: {name}")))?,
    };
    let json = call.params.has("logjson");
    let lines = logging::follow(level, json);
    let lines = lines.map_err(|error| ApiError::unavailable(error.to_string()))?;
    let stream = unfold((lines, stop), |(mut lines, stop)| async move {
        let line = stop.run_until_cancelled(lines.next()).await??;
        Some((Ok(Bytes::from(line)), (lines, stop)))
    });
    Ok(streamed(stream, "text/plain; charset=utf-8"))
}

/// Consul's level names, in any case.
fn level(name: &str) -> Option<Level> {
    match name.to_ascii_lowercase().as_str() {
        "err" => Some(Level::Error),
        name => name.parse().ok(),
    }
}

/// `GET /v1/agent/metrics/stream`
pub(crate) async fn metrics(
    State(registry): State<Registry>,
    State(clock): State<Clock>,
    State(stop): State<CancellationToken>,
    call: Call,
) -> Result<Response, ApiError> {
    super::may_read(&call)?;
    let mut rounds = interval(METRICS_INTERVAL);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream = unfold((rounds, stop), move |(mut rounds, stop)| {
        let (registry, clock) = (registry.clone(), clock.clone());
        async move {
            stop.run_until_cancelled(rounds.tick()).await?;
            let mut text = Vec::new();
            let pretty = PrettyFormatter::with_indent(b"    ");
            let mut serializer = Serializer::with_formatter(&mut text, pretty);
            let written = summary(&registry, clock.now()).serialize(&mut serializer);
            written.ok()?;
            text.push(b'\n');
            Some((Ok(Bytes::from(text)), (rounds, stop)))
        }
    });
    Ok(streamed(stream, "application/json"))
}

fn streamed(
    stream: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
    content: &'static str,
) -> Response {
    let mut response = Response::new(Body::from_stream(stream));
    let content = HeaderValue::from_static(content);
    response.headers_mut().insert(CONTENT_TYPE, content);
    response
}
