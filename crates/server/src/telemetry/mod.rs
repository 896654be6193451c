//! Export of metrics and traces: by OTLP to an OpenTelemetry collector, and metrics by StatsD and DogStatsD. If
//! a receiver is slow or unavailable, data is dropped and counted; requests never wait. Metrics can also be
//! scraped (`/v1/agent/metrics`).

mod error;
mod messages;
mod otlp;
mod statsd;
mod traces;

use std::sync::Arc;

use legate_runtime::metrics::{Error as MetricsError, IntCounter, Registry};
use legate_runtime::{Clock, Scope};

use crate::config::ServerConfig;
use crate::operations::TelemetryConfig;
use crate::start_error::StartError;
pub use error::TelemetryError;
use otlp::Collector;
pub(crate) use traces::{Traced, Traces};

/// A counter of dropped telemetry.
///
/// # Errors
/// If a metric of this name is already registered.
pub(crate) fn lost_counter(registry: &Registry) -> Result<IntCounter, MetricsError> {
    let lost = IntCounter::new(
        "legate_telemetry_lost_total",
        "Dropped spans and metric reports.",
    )?;
    registry.register(Box::new(lost.clone()))?;
    Ok(lost)
}

/// A counter of writes that could not be stored.
///
/// # Errors
/// If a metric of this name is already registered.
pub(crate) fn refused_writes(registry: &Registry) -> Result<IntCounter, MetricsError> {
    let refused = IntCounter::new(
        "legate_store_writes_refused_total",
        "Writes that could not be stored, for example because the disk is full.",
    )?;
    registry.register(Box::new(refused.clone()))?;
    Ok(refused)
}

/// Whether the configured exporters can be started.
///
/// # Errors
/// If the address of a receiver is invalid.
pub(crate) fn acceptable(config: &Arc<ServerConfig>, clock: &Clock) -> Result<(), StartError> {
    let settings = &config.telemetry;
    if let Some(endpoint) = &settings.otlp_endpoint {
        let lost = lost_counter(&Registry::new())?;
        Collector::new(endpoint, config, clock.clone(), lost)?;
    }
    for (address, setting, _) in statsd_receivers(settings) {
        if let Some(address) = address {
            with_port(address, setting)?;
        }
    }
    Ok(())
}

/// Starts the configured exporters. Returns the exporter of request traces. `lost` counts dropped data.
///
/// # Errors
/// If the address of a receiver is invalid.
pub(crate) fn start(
    config: &Arc<ServerConfig>,
    clock: &Clock,
    registry: &Registry,
    lost: IntCounter,
    scope: &Scope,
) -> Result<Traces, TelemetryError> {
    let settings = &config.telemetry;
    let mut traces = Traces::off();
    if let Some(endpoint) = &settings.otlp_endpoint {
        let collector = Collector::new(endpoint, config, clock.clone(), lost.clone())?;
        let (taking, queue) = Traces::new(settings.traces_ratio, clock.clone(), lost.clone());
        traces = taking;
        let metrics =
            collector
                .clone()
                .send_metrics(registry.clone(), settings.interval, scope.token());
        scope.spawn("OTLP metrics", metrics);
        scope.spawn("OTLP traces", collector.send_traces(queue, scope.token()));
    }
    for (address, setting, tags) in statsd_receivers(settings) {
        let Some(address) = address else { continue };
        with_port(address, setting)?;
        let sending = statsd::send(
            address.clone(),
            tags,
            registry.clone(),
            settings.interval,
            scope.token(),
        );
        scope.spawn("StatsD", sending);
    }
    Ok(traces)
}

/// The address, setting and tags of each receiver of StatsD.
type StatsdReceiver<'s> = (&'s Option<String>, &'static str, Option<Vec<String>>);

fn statsd_receivers(settings: &TelemetryConfig) -> [StatsdReceiver<'_>; 2] {
    let tags = settings.dogstatsd_tags.clone();
    [
        (&settings.statsd, "telemetry.statsd_address", None),
        (&settings.dogstatsd, "telemetry.dogstatsd_addr", Some(tags)),
    ]
}

fn with_port(address: &str, setting: &'static str) -> Result<(), TelemetryError> {
    match address.contains(':') {
        true => Ok(()),
        false => Err(TelemetryError {
            setting,
            value: address.to_owned(),
            reason: "it must be HOST:PORT".to_owned(),
        }),
    }
}
