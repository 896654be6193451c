//! Duration of the start by stage, measured from the start of the program.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use legate_runtime::metrics::proto::MetricFamily;
use tokio::time::Instant;

use super::families::family;

/// A stage of the start, in this order.
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

/// The stages reached so far. Clones share them.
#[derive(Clone, Debug)]
pub struct Stages {
    started: Instant,
    reached: Arc<Mutex<Vec<(Stage, Duration)>>>,
}

impl Stages {
    pub(super) fn new(started: Instant) -> Stages {
        Stages {
            started,
            reached: Arc::default(),
        }
    }

    /// Records that a stage was reached now. Repeated calls have no effect.
    pub fn reached(&self, stage: Stage) {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        if reached.iter().all(|(other, _)| *other != stage) {
            reached.push((stage, self.started.elapsed()));
        }
    }

    /// Name and time of each reached stage, in order.
    pub fn all(&self) -> Vec<(&'static str, Duration)> {
        let reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |(stage, elapsed): &(Stage, Duration)| (stage.name(), *elapsed);
        reached.iter().map(named).collect()
    }

    /// The times as metrics.
    pub(super) fn family(&self) -> MetricFamily {
        let all = self.all().into_iter();
        family(
            "startup_stage_seconds",
            "Seconds from the start of the program until a stage of its start was reached.",
            "stage",
            all.map(|(name, elapsed)| (name, elapsed.as_secs_f64())),
        )
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
