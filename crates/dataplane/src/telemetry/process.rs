//! Metrics of this process from the kernel and the runtime, read per scrape.

use legate_runtime::metrics::ProcessUsage;
use legate_runtime::metrics::proto::MetricFamily;
use tokio::runtime::Handle;

use super::families::{family, gauge};

const COLLECTIONS: &str = "Garbage collections: there are none.";
const PAUSES: &str = "Pauses for garbage collection: there are none.";
const TASKS: &str = "Tasks of the dataplane.";
const ANONYMOUS: &str = "Anonymous resident memory of the dataplane.";
const RESIDENT: &str = "Resident memory of the dataplane.";
const THREADS: &str = "Threads of the dataplane.";
const FILES: &str = "Open file descriptors of the dataplane.";

/// The gauges of the process that can be read.
///
/// Gauges of Go's runtime in Consul's dataplane keep their names here with the nearest equivalent, because
/// dashboards use them. All tasks run in one thread, and there is no garbage collection.
pub(super) fn families() -> Vec<MetricFamily> {
    let now = ProcessUsage::now();
    let runtime = Handle::try_current().ok();
    let tasks = runtime.map(|runtime| runtime.metrics().num_alive_tasks() as i64);
    let gauges = [
        (
            "go_sched_gomaxprocs_threads",
            "Threads that run tasks.",
            Some(1),
        ),
        ("runtime_total_gc_runs", COLLECTIONS, Some(0)),
        ("runtime_total_gc_pause_ns", PAUSES, Some(0)),
        ("go_goroutines", TASKS, tasks),
        ("runtime_num_goroutines", TASKS, tasks),
        ("go_memstats_alloc_bytes", ANONYMOUS, now.anonymous),
        ("runtime_alloc_bytes", ANONYMOUS, now.anonymous),
        ("go_memstats_sys_bytes", RESIDENT, now.resident),
        ("runtime_sys_bytes", RESIDENT, now.resident),
        ("process_resident_memory_bytes", RESIDENT, now.resident),
        ("go_threads", THREADS, now.threads),
        ("process_threads", THREADS, now.threads),
        ("process_open_fds", FILES, now.descriptors),
    ];
    let build = family(
        "build_info",
        "1, with the version of the dataplane.",
        "version",
        [(env!("CARGO_PKG_VERSION"), 1.0)],
    );
    let gauges = gauges.into_iter();
    let gauges =
        gauges.filter_map(|(name, help, value)| Some(gauge(name, help, Some(value? as f64))));
    gauges.chain([build]).collect()
}
