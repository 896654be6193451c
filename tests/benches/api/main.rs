//! Throughput and latency of the HTTP API, compared with Consul if available: reads of keys, of the catalog
//! and of health, durable writes of keys, a mix of both with 64 clients, and the time from a write to the
//! response of a blocking query. `legate-server` with a file backend and Consul run as separate processes;
//! clients reuse their connections.
//!
//! Prints tables and makes no assertions.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

#[path = "../store/client.rs"]
mod client;
#[path = "../store/figures.rs"]
#[expect(dead_code, reason = "the bench of the store uses more of it")]
mod figures;
#[path = "../store/plane.rs"]
#[expect(dead_code, reason = "the bench of the store uses more of it")]
mod plane;
#[path = "../store/process.rs"]
mod process;
mod work;

use std::time::Duration;

use legate_tests::program::Program;

use self::figures::{Taken, print};
use self::plane::{Kind, Plane};
use self::work::Asked;

/// The measurements: title, number of concurrent clients, and request.
const MEASURED: [(&str, usize, Asked); 10] = [
    ("kv get, 1 client", 1, Asked::Key),
    ("kv get, 64 clients", 64, Asked::Key),
    ("catalog service, 1 client", 1, Asked::Catalog),
    ("catalog service, 64 clients", 64, Asked::Catalog),
    ("health service, 1 client", 1, Asked::Health),
    ("health service, 64 clients", 64, Asked::Health),
    ("kv put, 1 client", 1, Asked::Put),
    ("kv put, 64 clients", 64, Asked::Put),
    ("kv, 9 of 10 get, 64 clients", 64, Asked::Mixed),
    ("from a write to the waiting query's answer", 1, Asked::Wake),
];

fn main() {
    let mut time = Duration::from_secs(5);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            let seconds = args.next().and_then(|value| value.parse().ok());
            time = seconds.map_or(time, Duration::from_secs);
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure(time));
}

async fn measure(time: Duration) {
    let mut kinds = vec![Kind::File];
    match Program::find("consul", "LEGATE_CONSUL") {
        Some(consul) => kinds.push(Kind::Consul {
            program: consul.path,
        }),
        None => println!(
            "\nNo Consul was at hand: put one on PATH or name it in LEGATE_CONSUL to see its figures \
             next to these."
        ),
    }
    let directory = std::env::temp_dir();
    let mut columns: Vec<(String, Vec<Taken>)> = Vec::new();
    for kind in &kinds {
        let plane = Plane::start(kind, &directory).await;
        work::fill(plane.http).await;
        let mut taken = Vec::new();
        for (_, clients, asked) in MEASURED {
            taken.push(work::measure(plane.http, asked, clients, time).await);
        }
        columns.push((kind.name(), taken));
    }
    for (n, (title, ..)) in MEASURED.iter().enumerate() {
        let rows = columns
            .iter()
            .map(|(name, taken)| (name.as_str(), taken[n].row()));
        let heads = [
            ("a second", 0),
            ("median, ms", 3),
            ("99th percentile, ms", 3),
        ];
        print(title, &heads, &rows.collect::<Vec<_>>());
    }
}
