//! The metric types that components register into a registry passed to them, and the text form.
//!
//! There is no global registry: two instances in one process must not add up.

mod process;

pub use self::process::ProcessMetrics;
pub use prometheus::core::Collector;
pub use prometheus::proto;
use prometheus::proto::MetricFamily;
pub use prometheus::{
    Counter, CounterVec, Error, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec,
    IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// Content type of [`encode`]'s output.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything in `registry` in the Prometheus text format.
#[must_use]
pub fn encode(registry: &Registry) -> String {
    encode_families(&registry.gather())
}

/// These families in the Prometheus text format.
#[must_use]
pub fn encode_families(families: &[MetricFamily]) -> String {
    let encoder = prometheus::TextEncoder::new();
    let mut text = String::new();
    for family in families {
        let before = text.len();
        if let Err(error) = encoder.encode_utf8(std::slice::from_ref(family), &mut text) {
            // One family that cannot be written must not hide the others.
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
