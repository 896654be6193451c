//! What the kernel and the runtime say about this process when somebody asks.

use legate_runtime::metrics::ProcessUsage;
use legate_runtime::metrics::proto::MetricFamily;

use super::families::{family, gauge};

/// How a gauge gets its value.
type Value = fn(&ProcessUsage) -> Option<i64>;

const TASKS: &str = "Tasks of the dataplane.";
const ANONYMOUS: &str = "Anonymous resident memory of the dataplane.";
const RESIDENT: &str = "Resident memory of the dataplane.";
const THREADS: &str = "Threads of the dataplane.";

/// Where Consul's dataplane tells what its language's runtime does, dashboards know the names: they
/// show what is nearest to it here. One thread runs all tasks, and nothing is collected.
const GAUGES: [(&str, &str, Value); 13] = [
    (
        "go_sched_gomaxprocs_threads",
        "Threads that run tasks.",
        |_| Some(1),
    ),
    (
        "runtime_total_gc_runs",
        "Garbage collections: there are none.",
        |_| Some(0),
    ),
    (
        "runtime_total_gc_pause_ns",
        "Pauses for garbage collection: there are none.",
        |_| Some(0),
    ),
    ("go_goroutines", TASKS, tasks),
    ("runtime_num_goroutines", TASKS, tasks),
    ("go_memstats_alloc_bytes", ANONYMOUS, |now| now.anonymous),
    ("runtime_alloc_bytes", ANONYMOUS, |now| now.anonymous),
    ("go_memstats_sys_bytes", RESIDENT, |now| now.resident),
    ("runtime_sys_bytes", RESIDENT, |now| now.resident),
    ("process_resident_memory_bytes", RESIDENT, |now| {
        now.resident
    }),
    ("go_threads", THREADS, |now| now.threads),
    ("process_threads", THREADS, |now| now.threads),
    (
        "process_open_fds",
        "Open file descriptors of the dataplane.",
        |now| now.descriptors,
    ),
];

fn tasks(_: &ProcessUsage) -> Option<i64> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    i64::try_from(runtime.metrics().num_alive_tasks()).ok()
}

/// Gauges of the process, those that can be read.
pub(super) fn families() -> Vec<MetricFamily> {
    let now = ProcessUsage::now();
    let read = |(name, help, value): &(&str, &str, Value)| {
        let value = value(&now)?;
        Some(gauge(name, help, Some(value as f64)))
    };
    let build = family(
        "build_info",
        "1, with the version of the dataplane.",
        "version",
        [(env!("CARGO_PKG_VERSION"), 1.0)],
    );
    GAUGES.iter().filter_map(read).chain([build]).collect()
}
