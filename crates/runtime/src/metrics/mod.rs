//! Metric types, which components register with a given registry, and the text format.
//!
//! There is no global registry: metrics of two instances in one process must not be added up.

mod process;

pub use self::process::{ProcessMetrics, ProcessUsage};
pub use prometheus::core::{Collector, Desc};
pub use prometheus::proto;
use prometheus::proto::MetricFamily;
pub use prometheus::{
    Counter, CounterVec, Error, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec,
    IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// Registers the metrics of a component, whose names have a common prefix.
#[derive(Clone, Copy, Debug)]
pub struct Registrar<'a> {
    registry: &'a Registry,
    prefix: &'static str,
}

impl<'a> Registrar<'a> {
    /// A registrar for metrics whose names start with `prefix` and an underscore.
    pub fn new(registry: &'a Registry, prefix: &'static str) -> Self {
        Self { registry, prefix }
    }

    /// Registers a metric of another type than those below, created from [`Registrar::named`].
    ///
    /// # Errors
    /// When the metric is invalid or its name is already registered. The same holds for all other
    /// methods.
    pub fn add<M: Collector + Clone + 'static>(
        &self,
        metric: Result<M, Error>,
    ) -> Result<M, Error> {
        let metric = metric?;
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    /// The name with the prefix, and the help text.
    pub fn named(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help).namespace(self.prefix)
    }

    /// A counter without labels.
    ///
    /// # Errors
    /// See [`Registrar::add`].
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.add(IntCounter::with_opts(self.named(name, help)))
    }

    /// A counter with labels.
    ///
    /// # Errors
    /// See [`Registrar::add`].
    pub fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, Error> {
        self.add(IntCounterVec::new(self.named(name, help), labels))
    }

    /// A gauge without labels.
    ///
    /// # Errors
    /// See [`Registrar::add`].
    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, Error> {
        self.add(IntGauge::with_opts(self.named(name, help)))
    }

    /// A gauge with labels.
    ///
    /// # Errors
    /// See [`Registrar::add`].
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, Error> {
        self.add(IntGaugeVec::new(self.named(name, help), labels))
    }

    /// A histogram without labels.
    ///
    /// # Errors
    /// See [`Registrar::add`].
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, Error> {
        let options = HistogramOpts::from(self.named(name, help));
        self.add(Histogram::with_opts(options.buckets(buckets.to_vec())))
    }
}

/// Content type of [`encode`]'s output.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of `registry` in the Prometheus text format.
#[must_use]
pub fn encode(registry: &Registry) -> String {
    encode_families(&registry.gather())
}

/// Metric families in the Prometheus text format.
#[must_use]
pub fn encode_families(families: &[MetricFamily]) -> String {
    let encoder = prometheus::TextEncoder::new();
    let mut text = String::new();
    for family in families {
        let before = text.len();
        if let Err(error) = encoder.encode_utf8(std::slice::from_ref(family), &mut text) {
            // A family that cannot be encoded must not hide the others.
            text.truncate(before);
            tracing::warn!(metric = family.name(), %error, "metric left out");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_counters_and_labels() {
        let registry = Registry::new();
        let calls = IntCounterVec::new(Opts::new("calls_total", "Calls made."), &["kind"]).unwrap();
        registry.register(Box::new(calls.clone())).unwrap();
        calls.with_label_values(&["read"]).inc_by(3);
        let expected = "# HELP calls_total Calls made.\n# TYPE calls_total counter\ncalls_total{kind=\"read\"} 3\n";
        assert_eq!(encode(&registry), expected);
    }
}
