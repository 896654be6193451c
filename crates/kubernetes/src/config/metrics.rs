//! Metrics of the resources. They belong to the process and persist across leadership changes.

use legate_runtime::metrics::{
    Error, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
};

use super::kinds::KINDS;

/// Counters, durations and the number of failing resources.
#[derive(Clone, Debug)]
pub struct ConfigMetrics {
    reconciles: IntCounterVec,
    seconds: HistogramVec,
    failing: IntGaugeVec,
}

impl ConfigMetrics {
    /// Registers them.
    ///
    /// # Errors
    ///
    /// If they are registered already.
    pub fn register(registry: &Registry) -> Result<ConfigMetrics, Error> {
        let reconciles = Opts::new(
            "legate_k8s_config_reconciles_total",
            "Reconciliations of custom resources, by kind and result: done, refused or failed.",
        );
        let seconds = HistogramOpts::new(
            "legate_k8s_config_reconcile_seconds",
            "Duration of reconciliations of custom resources, by kind.",
        );
        let failing = Opts::new(
            "legate_k8s_config_failing_resources",
            "Custom resources that are being retried, by kind.",
        );
        let metrics = ConfigMetrics {
            reconciles: IntCounterVec::new(reconciles, &["kind", "result"])?,
            seconds: HistogramVec::new(
                seconds.buckets(vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0]),
                &["kind"],
            )?,
            failing: IntGaugeVec::new(failing, &["kind"])?,
        };
        registry.register(Box::new(metrics.reconciles.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.failing.clone()))?;
        for kind in &KINDS {
            for result in ["done", "refused", "failed"] {
                metrics.reconciles.with_label_values(&[kind.name, result]);
            }
            metrics.failing.with_label_values(&[kind.name]);
        }
        Ok(metrics)
    }

    pub(super) fn reconciled(&self, kind: &str, result: &str) {
        self.reconciles.with_label_values(&[kind, result]).inc();
    }

    pub(super) fn seconds(&self, kind: &str) -> Histogram {
        self.seconds.with_label_values(&[kind])
    }

    pub(super) fn failing(&self, kind: &str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.failing.with_label_values(&[kind]).set(count);
    }
}
