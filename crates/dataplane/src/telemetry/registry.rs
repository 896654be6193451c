//! The registry of the dataplane's own metrics, completed per scrape by computed ones.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use legate_client::Session;
use legate_envoy::supervision::RestartKind;
use legate_metrics_page::Format;
use legate_runtime::Clock;
use legate_runtime::metrics::proto::MetricFamily;
use legate_runtime::metrics::{Error, IntCounterVec, Registrar, Registry};
use tokio::time::Instant;

use super::families::{self, PREFIX};
use super::observed::Observed;
use super::process;
use super::stages::Stages;

/// The value of the label for restarts of Envoy.
fn label(kind: RestartKind) -> &'static str {
    match kind {
        RestartKind::Hot => "hot",
        RestartKind::Cold => "cold",
        RestartKind::Crash => "crash",
    }
}

/// The registry of one dataplane, with the sources of computed metrics. Clones share it.
#[derive(Clone, Debug)]
pub struct Telemetry {
    registry: Registry,
    stages: Stages,
    restarts: IntCounterVec,
    pub(super) failures: IntCounterVec,
    observed: Arc<Mutex<Observed>>,
}

impl Telemetry {
    /// Creates a registry with the metrics of the process and of its start, which began at `started`.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new(started: Instant) -> Result<Telemetry, Error> {
        let registry = Registry::new();
        let metrics = Registrar::new(&registry, PREFIX);
        let restarts = metrics.counters(
            "envoy_restarts_total",
            "How often Envoy was started again, by how it came to that.",
            &["kind"],
        )?;
        for kind in [RestartKind::Hot, RestartKind::Cold, RestartKind::Crash] {
            restarts.with_label_values(&[label(kind)]);
        }
        let failures = metrics.counters(
            "metrics_source_failures_total",
            "How often a source's metrics were missing on the merged page, all or a part.",
            &["source"],
        )?;
        Ok(Telemetry {
            registry,
            stages: Stages::new(started),
            restarts,
            failures,
            observed: Arc::new(Mutex::new(Observed::new(Clock::system()))),
        })
    }

    /// The registry, for components that register their own metrics.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The progress of the start.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Adds the state of this session and its token to later scrapes.
    pub fn observe_session(&self, session: Session) {
        self.observed().session = Some(session);
    }

    /// Adds the expiry of the certificate in a PEM file, under this name, to later scrapes.
    pub fn observe_certificate(&self, name: &'static str, path: PathBuf) {
        self.observed().certificate(name, path);
    }

    /// Sets how long the series of events are kept after their last change (`-telemetry-prom-retention-time`; 60 s
    /// by default).
    pub fn retain(&self, time: Duration) {
        self.observed().retention = time;
    }

    /// Counts a restart of Envoy.
    pub fn envoy_restarted(&self, kind: RestartKind) {
        self.restarts.with_label_values(&[label(kind)]).inc();
    }

    /// All metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        families::page(&self.families(), Format::Text)
    }

    /// All current metrics, sorted by name.
    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let mut families = families::gather(&self.registry);
        families.extend(process::families());
        families.push(self.stages.family());
        self.observed().complete(&mut families);
        families.sort_by(|a, b| a.name().cmp(b.name()));
        families
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
