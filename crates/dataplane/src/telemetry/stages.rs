//! How long the start took, stage by stage, from the start of the program.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use legate_runtime::metrics::{Error, GaugeVec, Registrar, Registry};
use tokio::time::Instant;

use super::PREFIX;

/// A point that every start reaches, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// All listeners are bound.
    Listen,
    /// A server is connected and has accepted the token, after a login where one is configured.
    Connect,
    /// The bootstrap parameters have arrived.
    Bootstrap,
    /// The Envoy process exists.
    Envoy,
    /// Envoy serves and has its whole configuration.
    Ready,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Listen => "listen",
            Stage::Connect => "connect",
            Stage::Bootstrap => "bootstrap",
            Stage::Envoy => "envoy",
            Stage::Ready => "ready",
        }
    }
}

/// The stages that were reached. Copies share them.
#[derive(Clone, Debug)]
pub struct Stages {
    started: Instant,
    gauge: GaugeVec,
    reached: Arc<Mutex<Vec<(Stage, Duration)>>>,
}

impl Stages {
    pub(super) fn register(registry: &Registry, started: Instant) -> Result<Stages, Error> {
        let metrics = Registrar::new(registry, PREFIX);
        let options = metrics.named(
            "startup_stage_seconds",
            "Seconds from the start of the program until a stage of its start was reached.",
        );
        let gauge = metrics.add(GaugeVec::new(options, &["stage"]))?;
        Ok(Stages {
            started,
            gauge,
            reached: Arc::default(),
        })
    }

    /// Notes that a stage was reached now. Only the first time counts.
    pub fn reached(&self, stage: Stage) {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        if reached.iter().any(|(other, _)| *other == stage) {
            return;
        }
        let elapsed = self.started.elapsed();
        reached.push((stage, elapsed));
        self.gauge
            .with_label_values(&[stage.name()])
            .set(elapsed.as_secs_f64());
    }

    /// Name and time of every stage that was reached, in their order.
    pub fn all(&self) -> Vec<(&'static str, Duration)> {
        let reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached
            .iter()
            .map(|(stage, elapsed)| (stage.name(), *elapsed))
            .collect()
    }
}

/// `listen 2 ms, connect 34 ms`
impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.all();
        let texts = all
            .iter()
            .map(|(name, elapsed)| format!("{name} {} ms", elapsed.as_millis()));
        f.write_str(&texts.collect::<Vec<_>>().join(", "))
    }
}
