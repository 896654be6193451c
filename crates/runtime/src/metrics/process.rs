//! What the kernel says about this process, under the names that Prometheus' own clients use.

use std::fs;
use std::sync::{Mutex, PoisonError};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Error, IntGauge, Registry};

/// What the kernel says about this process at one moment; `None` for what cannot be read.
#[derive(Debug, Clone, Copy)]
pub struct ProcessUsage {
    /// Resident memory, in bytes.
    pub resident: Option<i64>,
    /// The part of it that belongs to no file, in bytes.
    pub anonymous: Option<i64>,
    /// Threads.
    pub threads: Option<i64>,
    /// Open file descriptors.
    pub descriptors: Option<i64>,
}

impl ProcessUsage {
    /// Reads all of it.
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

/// Metrics of the process, read whenever somebody asks for them (Linux).
#[derive(Debug)]
pub struct ProcessMetrics {
    processor: Counter,
    /// Held while the counter catches up, so that two who ask at once do not both add the same.
    catching_up: Mutex<()>,
    resident: IntGauge,
    descriptors: IntGauge,
    threads: IntGauge,
}

impl ProcessMetrics {
    /// Adds them to `registry`: `process_cpu_seconds_total`, `process_resident_memory_bytes`,
    /// `process_open_fds` and `process_threads`.
    ///
    /// # Errors
    ///
    /// When they are registered already.
    pub fn register(registry: &Registry) -> Result<(), Error> {
        registry.register(Box::new(ProcessMetrics {
            processor: Counter::new(
                "process_cpu_seconds_total",
                "Processor time of the process, of programs and of the kernel.",
            )?,
            catching_up: Mutex::default(),
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

    /// What cannot be read keeps its value.
    fn refresh(&self) {
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            let used = usage.user_time() + usage.system_time();
            let seconds = std::time::Duration::from_micros(used.num_microseconds().unsigned_abs());
            let _alone = self
                .catching_up
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
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
    fn shows_this_process() {
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
