//! What the kernel and the runtime say about this process, read when somebody asks.

use std::fmt;
use std::fs;

use legate_runtime::metrics::{Error, IntGauge, Opts, Registry};

use super::PREFIX;

/// Gauges of the process.
#[derive(Clone)]
pub(super) struct ProcessMetrics {
    tasks: IntGauge,
    resident: IntGauge,
    threads: IntGauge,
    descriptors: IntGauge,
}

impl ProcessMetrics {
    pub(super) fn register(registry: &Registry) -> Result<ProcessMetrics, Error> {
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::with_opts(Opts::new(name, help).namespace(PREFIX))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, Error>(gauge)
        };
        Ok(ProcessMetrics {
            // Dashboards know this name; tasks are what goroutines are there.
            tasks: gauge("go_goroutines", "Tasks of the dataplane.")?,
            resident: gauge(
                "process_resident_memory_bytes",
                "Resident memory of the dataplane.",
            )?,
            threads: gauge("process_threads", "Threads of the dataplane.")?,
            descriptors: gauge(
                "process_open_fds",
                "Open file descriptors of the dataplane.",
            )?,
        })
    }

    /// Reads the values of now. What cannot be read keeps its value.
    pub(super) fn refresh(&self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            set(
                &self.tasks,
                u64::try_from(runtime.metrics().num_alive_tasks()).ok(),
            );
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = field(&status, "VmRSS:");
        set(&self.resident, kib.and_then(|kib| kib.checked_mul(1024)));
        set(&self.threads, field(&status, "Threads:"));
        let open = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
        set(
            &self.descriptors,
            open.and_then(|count| u64::try_from(count).ok()),
        );
    }
}

impl fmt::Debug for ProcessMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessMetrics").finish_non_exhaustive()
    }
}

fn set(gauge: &IntGauge, value: Option<u64>) {
    if let Some(value) = value.and_then(|value| i64::try_from(value).ok()) {
        gauge.set(value);
    }
}

fn field(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}
