//! Traces of HTTP API requests: one span per request, as a child of the caller's span if the request has a
//! `traceparent`. Spans contain no URL parameters and no tokens.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, Method, StatusCode};
use legate_runtime::Clock;
use legate_runtime::metrics::IntCounter;
use tokio::sync::mpsc;

use super::messages::{KeyValue, Span, Status};

/// Maximum spans in the export queue.
const WAITING: usize = 4096;

/// Maximum characters of a path.
const PATH: usize = 512;

/// Records spans of requests; a no-op if tracing is disabled.
#[derive(Debug, Clone)]
pub(crate) struct Traces(Option<Sending>);

#[derive(Debug, Clone)]
struct Sending {
    ratio: f64,
    clock: Clock,
    lost: IntCounter,
    spans: mpsc::Sender<Span>,
}

/// A request with a span.
#[derive(Debug)]
pub(crate) struct Traced(Span);

impl Traces {
    /// Tracing disabled.
    pub(crate) fn off() -> Self {
        Self(None)
    }

    pub(super) fn new(ratio: f64, clock: Clock, lost: IntCounter) -> (Self, mpsc::Receiver<Span>) {
        let (spans, queue) = mpsc::channel(WAITING);
        let sending = Sending {
            ratio,
            clock,
            lost,
            spans,
        };
        (Self(Some(sending)), queue)
    }

    /// Starts the span of a request, if it is sampled.
    pub(crate) fn begin(&self, method: &Method, path: &str, headers: &HeaderMap) -> Option<Traced> {
        let sending = self.0.as_ref()?;
        let parent = headers
            .get("traceparent")
            .and_then(|value| value.to_str().ok());
        let (trace_id, parent_span_id) = match parent.and_then(parent_of) {
            Some((_, _, false)) => return None,
            Some((trace, span, true)) => (trace, span),
            None if rand::random::<f64>() >= sending.ratio => return None,
            None => (rand::random::<[u8; 16]>().to_vec(), Vec::new()),
        };
        let shown: String = path.chars().take(PATH).collect();
        Some(Traced(Span {
            trace_id,
            span_id: rand::random::<[u8; 8]>().to_vec(),
            parent_span_id,
            name: format!("{method} {}", route(path)),
            kind: 2,
            start_time_unix_nano: nanoseconds(sending.clock.now()),
            attributes: vec![
                KeyValue::text("http.request.method", method.as_str()),
                KeyValue::text("url.path", shown),
            ],
            ..Span::default()
        }))
    }

    /// Ends a span. It is dropped if the queue is full.
    pub(crate) fn end(&self, traced: Option<Traced>, status: StatusCode) {
        let (Some(sending), Some(Traced(mut span))) = (&self.0, traced) else {
            return;
        };
        span.end_time_unix_nano = nanoseconds(sending.clock.now());
        let code = i64::from(status.as_u16());
        span.attributes
            .push(KeyValue::number("http.response.status_code", code));
        if status.is_server_error() {
            span.status = Some(Status { code: 2 });
        }
        if sending.spans.try_send(span).is_err() {
            sending.lost.inc();
        }
    }
}

/// Parses `00-TRACE-SPAN-FLAGS` into the ids and the sampled flag.
fn parent_of(text: &str) -> Option<(Vec<u8>, Vec<u8>, bool)> {
    let mut parts = text.split('-');
    let version = parts
        .next()
        .filter(|version| version.len() == 2 && *version != "ff")?;
    let (trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?);
    if version == "00" && parts.next().is_some() {
        return None;
    }
    let (trace, span, flags) = (hex(trace, 16)?, hex(span, 8)?, hex(flags, 1)?);
    let valid = |id: &[u8]| id.iter().any(|byte| *byte != 0);
    (valid(&trace) && valid(&span)).then(|| (trace, span, flags[0] & 1 == 1))
}

fn hex(text: &str, length: usize) -> Option<Vec<u8>> {
    if text.len() != 2 * length || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let bytes = (0..length).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok());
    bytes.collect()
}

/// The span name of a path. Names of services and keys are omitted, to keep the number of span names low.
fn route(path: &str) -> String {
    let parts = path.split('/').skip(1);
    let known: Vec<&str> = parts
        .take(if path.starts_with("/v1/kv") { 2 } else { 3 })
        .take_while(|part| {
            part.len() <= 32
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || b"-1".contains(&byte))
        })
        .collect();
    format!("/{}", known.join("/"))
}

/// Nanoseconds since the UNIX epoch.
pub(super) fn nanoseconds(time: SystemTime) -> u64 {
    let passed = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparent_headers_are_parsed_by_the_standard() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let (trace, span, sampled) = parent_of(text).unwrap();
        assert_eq!((trace[0], span[7], sampled), (0x0a, 0x31, true));
        assert_eq!(
            parent_of(&text.replace("-01", "-00")).map(|parent| parent.2),
            Some(false)
        );
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-zzf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert!(parent_of(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn names_of_spans_hold_no_names_of_services_or_keys() {
        for (path, name) in [
            ("/v1/health/service/web", "/v1/health/service"),
            ("/v1/kv/secret/place", "/v1/kv"),
            ("/v1/acl/token/0000-AB", "/v1/acl/token"),
            ("/v1/config/Service", "/v1/config"),
        ] {
            assert_eq!(route(path), name);
        }
    }
}
