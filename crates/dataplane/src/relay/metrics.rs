//! The relay's metrics. This module computes nothing.

use std::time::{Duration, UNIX_EPOCH};

use legate_runtime::Clock;
use legate_runtime::metrics::{
    Error, Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registrar, Registry,
};

use super::status::label;
use crate::telemetry::PREFIX;

/// Upper bounds of the histogram's buckets, in milliseconds.
const BUCKETS: [f64; 10] = [
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 500.0, 2_500.0, 15_000.0,
];

/// Counters and gauges of the relay.
#[derive(Clone)]
pub struct RelayMetrics {
    clock: Clock,
    pub(super) envoy_connected: IntGauge,
    pub(super) upstream_connected: IntGauge,
    pub(super) upstream_streams: IntCounter,
    last_response: Gauge,
    responses: IntCounterVec,
    resources: IntGaugeVec,
    bytes: IntGaugeVec,
    apply: Histogram,
}

impl RelayMetrics {
    /// Registers all metrics, each with value 0.
    ///
    /// # Errors
    /// When the registry already has them.
    pub fn register(registry: &Registry, clock: Clock) -> Result<RelayMetrics, Error> {
        let metrics = Registrar::new(registry, PREFIX);
        Ok(RelayMetrics {
            clock,
            envoy_connected: metrics.gauge(
                "envoy_connected",
                "1 while an Envoy has its xDS stream open, else 0.",
            )?,
            upstream_connected: metrics.gauge(
                "xds_upstream_connected",
                "1 while a server serves the xDS stream, else 0.",
            )?,
            upstream_streams: metrics.counter(
                "xds_upstream_streams_total",
                "xDS streams opened towards servers.",
            )?,
            last_response: metrics.add(Gauge::with_opts(metrics.named(
                "xds_last_response_timestamp_seconds",
                "When a server last sent an xDS response, in seconds since 1970; 0 if never.",
            )))?,
            responses: metrics.counters(
                "xds_responses_total",
                "xDS responses, by Envoy's answer.",
                &["type", "answer"],
            )?,
            resources: metrics.gauges(
                "xds_resources",
                "Resources that Envoy has acknowledged.",
                &["type"],
            )?,
            bytes: metrics.gauges(
                "xds_resource_bytes",
                "Bytes of the acknowledged resources.",
                &["type"],
            )?,
            apply: metrics.histogram(
                "xds_apply_duration",
                "Milliseconds from a server's response to Envoy's acknowledgement.",
                &BUCKETS,
            )?,
        })
    }

    pub(super) fn response_arrived(&self) {
        let now = self
            .clock
            .now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.last_response.set(now.as_secs_f64());
    }

    pub(super) fn accepted(&self, url: &str, held: (usize, usize), took: Option<Duration>) {
        let name = label(url);
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.responses.with_label_values(&[name, "ack"]).inc();
        self.resources.with_label_values(&[name]).set(gauge(held.0));
        self.bytes.with_label_values(&[name]).set(gauge(held.1));
        if let Some(took) = took {
            self.apply.observe(took.as_secs_f64() * 1_000.0);
        }
    }

    pub(super) fn rejected(&self, url: &str) {
        self.responses
            .with_label_values(&[label(url), "nack"])
            .inc();
    }
}
