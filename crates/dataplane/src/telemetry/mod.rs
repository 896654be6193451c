//! The dataplane's own metrics, and the merged metrics of dataplane, Envoy and application.
//!
//! Names are those of Consul's dataplane where they mean the same here. Nothing is pushed: Envoy
//! has sinks of its own, and Prometheus asks.

mod fetch;
mod merge;
mod process;
mod serve;
mod stages;

use legate_runtime::metrics::{Error, Registry, encode};
use tokio::time::Instant;

pub use self::fetch::{FetchError, Target, UrlError};
pub use self::merge::{Merger, Source};
pub use self::serve::{Endpoints, OWN_METRICS_PORT, start};
pub use self::stages::{Stage, Stages};

use self::process::ProcessMetrics;

/// Prefix of all of the dataplane's metrics.
const PREFIX: &str = "consul_dataplane";

/// The registry of one dataplane and what fills it by itself. Copies share it.
#[derive(Clone, Debug)]
pub struct Telemetry {
    registry: Registry,
    process: ProcessMetrics,
    stages: Stages,
}

impl Telemetry {
    /// A registry with the metrics of the process and its start, which began at `started`.
    ///
    /// # Errors
    /// When two metrics have one name.
    pub fn new(started: Instant) -> Result<Telemetry, Error> {
        let registry = Registry::new();
        let process = ProcessMetrics::register(&registry)?;
        let stages = Stages::register(&registry, started)?;
        Ok(Telemetry {
            registry,
            process,
            stages,
        })
    }

    /// For components that have metrics of their own.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// How the start proceeds.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Everything in the Prometheus text format.
    pub fn render(&self) -> String {
        self.process.refresh();
        encode(&self.registry)
    }
}

#[cfg(test)]
mod tests;
