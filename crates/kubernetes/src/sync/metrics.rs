//! Metrics of the catalog sync. They belong to the process and persist across leadership changes.

use std::time::{Duration, SystemTime};

use legate_runtime::metrics::{
    Error, Gauge, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use super::core::Sizes;

/// The call names of [`SyncMetrics::called`], initialized with 0.
const CALLS: [&str; 9] = [
    "namespace",
    "register",
    "checks",
    "deregister",
    "virtual_ip",
    "remove_tokens",
    "list_nodes",
    "read_node",
    "remove_node",
];
/// The outcomes of a call.
const RESULTS: [Ended; 4] = [
    Ended::Done,
    Ended::Refused,
    Ended::Unavailable,
    Ended::NotLeading,
];
/// The kinds of objects that are watched.
pub(super) const WATCHES: [&str; 3] = ["pods", "services", "nodes"];

/// The outcome of a call to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    /// A server refused.
    Refused,
    /// No server was able to serve.
    Unavailable,
    /// Not made, because this operator does not hold the Lease.
    NotLeading,
}

impl Ended {
    fn label(self) -> &'static str {
        match self {
            Ended::Done => "done",
            Ended::Refused => "refused",
            Ended::Unavailable => "unavailable",
            Ended::NotLeading => "not_leading",
        }
    }
}

/// Sets all sizes to 0 on drop: a process that does not lead keeps nothing in sync.
#[derive(Debug)]
pub(super) struct ResetSizes(pub(super) SyncMetrics);

impl Drop for ResetSizes {
    fn drop(&mut self) {
        self.0.sizes(Sizes::default());
    }
}

/// Counters, gauges and histograms.
#[derive(Clone, Debug)]
pub struct SyncMetrics {
    calls: IntCounterVec,
    lag: Histogram,
    objects: IntGaugeVec,
    waiting: IntGauge,
    under_way: IntGauge,
    failing: IntGauge,
    compared: Gauge,
    watch_failures: IntCounterVec,
    events: IntCounterVec,
}

impl SyncMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    ///
    /// If they are registered already.
    pub fn register(registry: &Registry) -> Result<SyncMetrics, Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, Error>(counters)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, Error>(gauge)
        };
        let lag = HistogramOpts::new(
            "legate_k8s_sync_lag_seconds",
            "Delay from the arrival of a pod's change until the catalog has it.",
        );
        let lag = lag.buckets(vec![
            0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
        ]);
        let lag = Histogram::with_opts(lag)?;
        registry.register(Box::new(lag.clone()))?;
        let objects = Opts::new(
            "legate_k8s_sync_objects",
            "Objects that are kept in sync, by kind: pods, services, nodes of the cluster, and \
             instances in the catalog.",
        );
        let objects = IntGaugeVec::new(objects, &["kind"])?;
        registry.register(Box::new(objects.clone()))?;
        let compared = Gauge::new(
            "legate_k8s_sync_last_full_comparison_timestamp_seconds",
            "When the whole catalog was last read and compared, in Unix time; 0 if never.",
        )?;
        registry.register(Box::new(compared.clone()))?;
        let metrics = SyncMetrics {
            calls: counters(
                "legate_k8s_sync_calls_total",
                "Calls to the servers, by call and result: done, refused, unavailable or not_leading.",
                &["call", "result"],
            )?,
            lag,
            objects,
            waiting: gauge(
                "legate_k8s_sync_queue_length",
                "Pods waiting to be processed.",
            )?,
            under_way: gauge("legate_k8s_sync_jobs", "Jobs in flight.")?,
            failing: gauge(
                "legate_k8s_sync_failing_pods",
                "Pods whose registration is refused and being retried.",
            )?,
            compared,
            watch_failures: counters(
                "legate_k8s_sync_watch_failures_total",
                "Watches of the API server that failed and were restarted, by kind.",
                &["kind"],
            )?,
            events: counters(
                "legate_k8s_sync_events_total",
                "Events about pods, by result: written, failed or dropped.",
                &["result"],
            )?,
        };
        metrics.begin_with_zeros();
        Ok(metrics)
    }

    /// Initializes all labels with 0.
    fn begin_with_zeros(&self) {
        for call in CALLS {
            for result in RESULTS {
                self.calls.with_label_values(&[call, result.label()]);
            }
        }
        for kind in WATCHES {
            self.watch_failures.with_label_values(&[kind]);
        }
        for result in ["written", "failed", "dropped"] {
            self.events.with_label_values(&[result]);
        }
        self.sizes(Sizes::default());
    }

    pub(super) fn called(&self, call: &str, ended: Ended) {
        self.calls.with_label_values(&[call, ended.label()]).inc();
    }

    pub(super) fn lags(&self, lags: Vec<Duration>) {
        for lag in lags {
            self.lag.observe(lag.as_secs_f64());
        }
    }

    pub(super) fn sizes(&self, sizes: Sizes) {
        let set =
            |gauge: &IntGauge, size: usize| gauge.set(i64::try_from(size).unwrap_or(i64::MAX));
        for (kind, size) in [
            ("pods", sizes.pods),
            ("services", sizes.services),
            ("nodes", sizes.nodes),
            ("instances", sizes.instances),
        ] {
            set(&self.objects.with_label_values(&[kind]), size);
        }
        set(&self.waiting, sizes.waiting);
        set(&self.under_way, sizes.jobs);
        set(&self.failing, sizes.failing);
    }

    pub(super) fn compared(&self, now: SystemTime) {
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        self.compared.set(since.unwrap_or_default().as_secs_f64());
    }

    pub(super) fn watch_failed(&self, kind: &str) {
        self.watch_failures.with_label_values(&[kind]).inc();
    }

    pub(super) fn event(&self, result: &str) {
        self.events.with_label_values(&[result]).inc();
    }
}
