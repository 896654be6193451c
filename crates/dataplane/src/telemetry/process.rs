//! What the kernel and the runtime say about this process, read when somebody asks.

use std::fs;

use legate_runtime::metrics::{Error, IntGauge, Opts, Registry};

use super::PREFIX;

/// Gauges of the process. Where Consul's dataplane tells what its language's runtime does, dashboards
/// know the names: they show what is nearest to it here.
#[derive(Clone, Debug)]
pub(super) struct ProcessMetrics {
    /// All that is scheduled.
    tasks: [IntGauge; 2],
    /// Memory that holds data.
    private: [IntGauge; 2],
    /// Memory that is there.
    resident: [IntGauge; 3],
    threads: [IntGauge; 2],
    descriptors: IntGauge,
}

impl ProcessMetrics {
    pub(super) fn register(registry: &Registry) -> Result<ProcessMetrics, Error> {
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::with_opts(Opts::new(name, help).namespace(PREFIX))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, Error>(gauge)
        };
        // One thread runs all tasks, and nothing is collected: these never change.
        gauge("go_sched_gomaxprocs_threads", "Threads that run tasks.")?.set(1);
        gauge(
            "runtime_total_gc_runs",
            "Garbage collections: there are none.",
        )?;
        gauge(
            "runtime_total_gc_pause_ns",
            "Pauses for garbage collection: there are none.",
        )?;
        let build = Opts::new("build_info", "1, with the version of the dataplane.")
            .namespace(PREFIX)
            .const_label("version", env!("CARGO_PKG_VERSION"));
        let build = IntGauge::with_opts(build)?;
        registry.register(Box::new(build.clone()))?;
        build.set(1);
        Ok(ProcessMetrics {
            tasks: [
                gauge("go_goroutines", "Tasks of the dataplane.")?,
                gauge("runtime_num_goroutines", "Tasks of the dataplane.")?,
            ],
            private: [
                gauge(
                    "go_memstats_alloc_bytes",
                    "Anonymous resident memory of the dataplane.",
                )?,
                gauge(
                    "runtime_alloc_bytes",
                    "Anonymous resident memory of the dataplane.",
                )?,
            ],
            resident: [
                gauge("go_memstats_sys_bytes", "Resident memory of the dataplane.")?,
                gauge("runtime_sys_bytes", "Resident memory of the dataplane.")?,
                gauge(
                    "process_resident_memory_bytes",
                    "Resident memory of the dataplane.",
                )?,
            ],
            threads: [
                gauge("go_threads", "Threads of the dataplane.")?,
                gauge("process_threads", "Threads of the dataplane.")?,
            ],
            descriptors: gauge(
                "process_open_fds",
                "Open file descriptors of the dataplane.",
            )?,
        })
    }

    /// Reads the values of now. What cannot be read keeps its value.
    pub(super) fn refresh(&self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let tasks = u64::try_from(runtime.metrics().num_alive_tasks()).ok();
            set(&self.tasks, tasks);
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |name| field(&status, name).and_then(|kib| kib.checked_mul(1024));
        set(&self.private, bytes("RssAnon:"));
        set(&self.resident, bytes("VmRSS:"));
        set(&self.threads, field(&status, "Threads:"));
        let open = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
        let open = open.and_then(|count| u64::try_from(count).ok());
        set(std::slice::from_ref(&self.descriptors), open);
    }
}

fn set(gauges: &[IntGauge], value: Option<u64>) {
    if let Some(value) = value.and_then(|value| i64::try_from(value).ok()) {
        gauges.iter().for_each(|gauge| gauge.set(value));
    }
}

fn field(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}
