//! Exports to an OpenTelemetry collector, by OTLP over HTTP in binary format.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_runtime::http_client::{self, Body};
use legate_runtime::metrics::proto::{self, MetricType};
use legate_runtime::metrics::{IntCounter, Registry};
use legate_runtime::{BoxError, CancellationToken, Clock};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tokio_rustls::TlsConnector;

use super::error::TelemetryError;
use super::messages::{
    Data, Gauge, Histogram, HistogramPoint, KeyValue, Metric, Metrics, NumberPoint, Resource,
    ResourceMetrics, ResourceSpans, Scope, ScopeMetrics, ScopeSpans, Span, Sum, Traces,
};
use super::traces::nanoseconds;
use crate::config::ServerConfig;

/// Timeout of a request to the collector.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum spans in a request.
const BATCH: usize = 512;
/// How long spans are collected before they are sent.
const COLLECT: Duration = Duration::from_secs(5);
/// Maximum bytes of a response that are read.
const ANSWER: usize = 64 * 1024;
/// OTLP's number for cumulative values.
const CUMULATIVE: i32 = 2;

/// An OTLP collector.
#[derive(Clone)]
pub(super) struct Collector {
    authority: String,
    host: String,
    port: u16,
    path: String,
    tls: Option<TlsConnector>,
    headers: Vec<(HeaderName, HeaderValue)>,
    resource: Resource,
    clock: Clock,
    /// The start time of cumulative values.
    start: u64,
    lost: IntCounter,
}

impl Collector {
    pub(super) fn new(
        endpoint: &str,
        config: &Arc<ServerConfig>,
        clock: Clock,
        lost: IntCounter,
    ) -> Result<Self, TelemetryError> {
        let failed = |reason: String| TelemetryError {
            setting: "telemetry.otlp_endpoint",
            value: endpoint.to_owned(),
            reason,
        };
        let uri: Uri = endpoint
            .parse()
            .map_err(|_| failed("it is not a URL".to_owned()))?;
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => {
                let config = client_config(&ClientTls::default());
                let config = config.map_err(|error| failed(error.to_string()))?;
                Some(TlsConnector::from(config))
            }
            _ => return Err(failed("it must begin with http:// or https://".to_owned())),
        };
        let authority = uri.authority();
        let authority = authority.ok_or_else(|| failed("it names no host".to_owned()))?;
        let usual = if tls.is_some() { 443 } else { 4318 };
        let mut headers = Vec::new();
        for (name, value) in &config.telemetry.otlp_headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            let value = HeaderValue::from_str(value.expose());
            let (Ok(name), Ok(mut value)) = (name, value) else {
                return Err(failed("one of its headers cannot be sent".to_owned()));
            };
            value.set_sensitive(true);
            headers.push((name, value));
        }
        let resource = Resource {
            attributes: vec![
                KeyValue::text("service.name", "legate"),
                KeyValue::text("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::text("service.instance.id", config.node_name.as_str()),
                KeyValue::text("consul.datacenter", config.datacenter.as_str()),
            ],
        };
        Ok(Self {
            authority: authority.to_string(),
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(usual),
            path: uri.path().trim_end_matches('/').to_owned(),
            tls,
            headers,
            resource,
            start: nanoseconds(clock.now()),
            clock,
            lost,
        })
    }

    /// Sends all metrics at each interval until `stop`.
    pub(super) async fn send_metrics(
        self,
        registry: Registry,
        every: Duration,
        stop: CancellationToken,
    ) -> Result<(), BoxError> {
        let mut due = interval(every);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        while stop.run_until_cancelled(due.tick()).await.is_some() {
            let metrics = self.metrics(&registry).encode_to_vec();
            let sending = self.post("/v1/metrics", metrics);
            if let Some(result) = stop.run_until_cancelled(sending).await {
                self.note(result, &mut failing, 1);
            }
        }
        Ok(())
    }

    /// Sends spans in batches until `stop`.
    pub(super) async fn send_traces(
        self,
        mut queue: mpsc::Receiver<Span>,
        stop: CancellationToken,
    ) -> Result<(), BoxError> {
        let mut due = interval(COLLECT);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        let mut spans = Vec::new();
        loop {
            let room = BATCH - spans.len();
            let is_due = tokio::select! {
                count = queue.recv_many(&mut spans, room) => {
                    if count == 0 {
                        return Ok(());
                    }
                    spans.len() == BATCH
                }
                _ = due.tick() => !spans.is_empty(),
                () = stop.cancelled() => return Ok(()),
            };
            if !is_due {
                continue;
            }
            let count = spans.len() as u64;
            let traces = self.traces(std::mem::take(&mut spans)).encode_to_vec();
            let sending = self.post("/v1/traces", traces);
            if let Some(result) = stop.run_until_cancelled(sending).await {
                self.note(result, &mut failing, count);
            }
        }
    }

    /// Counts dropped data, and logs the first of consecutive failures.
    fn note(&self, result: Result<(), String>, failing: &mut bool, count: u64) {
        match result {
            Ok(()) => *failing = false,
            Err(error) => {
                self.lost.inc_by(count);
                if !*failing {
                    let collector = &self.authority;
                    tracing::warn!(
                        collector,
                        error,
                        "telemetry cannot be exported and is dropped"
                    );
                }
                *failing = true;
            }
        }
    }

    async fn post(&self, path: &str, body: Vec<u8>) -> Result<(), String> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", self.path))
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/x-protobuf");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::new(Bytes::from(body)));
        let request = request.map_err(|error| error.to_string())?;
        let deadline = Instant::now() + LIMIT;
        let text = |error: http_client::HttpError| error.to_string();
        let stream = TcpStream::connect((self.host.as_str(), self.port));
        let stream = timeout_at(deadline, stream).await;
        let stream = stream.map_err(|_| "connect timeout".to_owned())?;
        let stream = stream.map_err(|error| error.to_string())?;
        let reply = match &self.tls {
            None => http_client::send_over(stream, request, deadline)
                .await
                .map_err(text)?,
            Some(tls) => {
                let name = server_name(&self.host).map_err(|error| error.to_string())?;
                let stream = timeout_at(deadline, tls.connect(name, stream)).await;
                let stream = stream.map_err(|_| "TLS handshake timeout".to_owned())?;
                let stream = stream.map_err(|error| error.to_string())?;
                http_client::send_over(stream, request, deadline)
                    .await
                    .map_err(text)?
            }
        };
        let status = reply.status;
        // The body is read only so that the connection closes cleanly.
        let _ = reply.body(ANSWER, deadline).await;
        match status.is_success() {
            true => Ok(()),
            false => Err(format!("status {status}")),
        }
    }

    fn traces(&self, spans: Vec<Span>) -> Traces {
        Traces {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope()),
                    spans,
                }],
            }],
        }
    }

    fn metrics(&self, registry: &Registry) -> Metrics {
        let now = nanoseconds(self.clock.now());
        let families = registry.gather();
        let metrics = families.iter().filter_map(|family| {
            Some(Metric {
                name: family.name().to_owned(),
                description: family.help().to_owned(),
                data: Some(self.data(family, now)?),
            })
        });
        Metrics {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope()),
                    metrics: metrics.collect(),
                }],
            }],
        }
    }

    fn data(&self, family: &proto::MetricFamily, now: u64) -> Option<Data> {
        let number = |metric: &proto::Metric, value: f64| NumberPoint {
            start_time_unix_nano: self.start,
            time_unix_nano: now,
            as_double: Some(value),
            attributes: attributes(metric),
        };
        let all = family.get_metric().iter();
        Some(match family.get_field_type() {
            MetricType::GAUGE => Data::Gauge(Gauge {
                data_points: all
                    .map(|one| number(one, one.get_gauge().get_value()))
                    .collect(),
            }),
            MetricType::COUNTER => Data::Sum(Sum {
                data_points: all
                    .map(|one| number(one, one.get_counter().get_value()))
                    .collect(),
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            }),
            MetricType::HISTOGRAM => Data::Histogram(Histogram {
                data_points: all.map(|one| self.histogram(one, now)).collect(),
                aggregation_temporality: CUMULATIVE,
            }),
            _ => return None,
        })
    }

    /// Prometheus buckets are cumulative; OTLP buckets are not.
    fn histogram(&self, metric: &proto::Metric, now: u64) -> HistogramPoint {
        let histogram = metric.get_histogram();
        let buckets = histogram.get_bucket().iter();
        let finite: Vec<_> = buckets
            .filter(|bucket| bucket.upper_bound().is_finite())
            .collect();
        let mut below = 0;
        let mut counts = Vec::with_capacity(finite.len() + 1);
        for bucket in &finite {
            counts.push(bucket.cumulative_count().saturating_sub(below));
            below = bucket.cumulative_count();
        }
        let count = histogram.get_sample_count();
        counts.push(count.saturating_sub(below));
        HistogramPoint {
            start_time_unix_nano: self.start,
            time_unix_nano: now,
            count,
            sum: Some(histogram.get_sample_sum()),
            bucket_counts: counts,
            explicit_bounds: finite.iter().map(|bucket| bucket.upper_bound()).collect(),
            attributes: attributes(metric),
        }
    }
}

fn scope() -> Scope {
    Scope {
        name: "legate-server".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn attributes(metric: &proto::Metric) -> Vec<KeyValue> {
    let labels = metric.get_label().iter();
    labels
        .map(|label| KeyValue::text(label.name(), label.value()))
        .collect()
}
