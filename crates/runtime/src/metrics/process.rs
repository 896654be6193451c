//! Kernel statistics of this process, with the metric names of Prometheus' client libraries.

use std::fs;
use std::sync::{Mutex, PoisonError};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Error, IntGauge, Registry};

/// Kernel statistics of this process at one time; `None` if unreadable.
#[derive(Debug, Clone, Copy)]
pub struct ProcessUsage {
    /// Resident memory, in bytes.
    pub resident: Option<i64>,
    /// The part of it that is not backed by files, in bytes.
    pub anonymous: Option<i64>,
    /// Number of threads.
    pub threads: Option<i64>,
    /// Number of open file descriptors.
    pub descriptors: Option<i64>,
}

impl ProcessUsage {
    /// Reads all statistics.
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().next()?.parse::<i64>().ok()
        };
        let bytes = |name: &str| field(name).and_then(|kib| kib.checked_mul(1024));
        let open = fs::read_dir("/proc/self/fd").map(Iterator::count);
        Self {
            resident: bytes("VmRSS:"),
            anonymous: bytes("RssAnon:"),
            threads: field("Threads:"),
            descriptors: open.ok().and_then(|count| i64::try_from(count).ok()),
        }
    }
}

/// Metrics of the process, read at each scrape (Linux).
#[derive(Debug)]
pub struct ProcessMetrics {
    processor: Counter,
    /// Held while the counter is updated, so that concurrent scrapes do not both add the difference.
    updating: Mutex<()>,
    resident: IntGauge,
    descriptors: IntGauge,
    threads: IntGauge,
}

impl ProcessMetrics {
    /// Registers `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds` and
    /// `process_threads`.
    ///
    /// # Errors
    ///
    /// When they are already registered.
    pub fn register(registry: &Registry) -> Result<(), Error> {
        registry.register(Box::new(ProcessMetrics {
            processor: Counter::new(
                "process_cpu_seconds_total",
                "Processor time of the process, of programs and of the kernel.",
            )?,
            updating: Mutex::default(),
            resident: IntGauge::new(
                "process_resident_memory_bytes",
                "Resident memory of the process.",
            )?,
            descriptors: IntGauge::new(
                "process_open_fds",
                "Open file descriptors of the process.",
            )?,
            threads: IntGauge::new("process_threads", "Threads of the process.")?,
        }))
    }

    /// Updates the values; unreadable ones remain unchanged.
    fn refresh(&self) {
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            let used = usage.user_time() + usage.system_time();
            let seconds = std::time::Duration::from_micros(used.num_microseconds().unsigned_abs());
            let _alone = self.updating.lock().unwrap_or_else(PoisonError::into_inner);
            self.processor
                .inc_by((seconds.as_secs_f64() - self.processor.get()).max(0.0));
        }
        let now = ProcessUsage::now();
        for (gauge, value) in [
            (&self.resident, now.resident),
            (&self.threads, now.threads),
            (&self.descriptors, now.descriptors),
        ] {
            if let Some(value) = value {
                gauge.set(value);
            }
        }
    }

    fn all(&self) -> [&dyn Collector; 4] {
        [
            &self.processor,
            &self.resident,
            &self.descriptors,
            &self.threads,
        ]
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.refresh();
        let all = self.all().into_iter();
        all.flat_map(Collector::collect).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::encode;

    #[test]
    fn exports_the_metrics_of_this_process() {
        let registry = Registry::new();
        ProcessMetrics::register(&registry).unwrap();
        let text = encode(&registry);
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_threads",
        ] {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let value: f64 = line.unwrap().trim().parse().unwrap();
            assert!(value > 0.0, "{text}");
        }
        let again = ProcessMetrics::register(&registry);
        assert!(again.is_err(), "one process has one set of them");
    }
}
