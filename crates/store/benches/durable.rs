//! Benchmarks acknowledged writes per second of a store on disk, and the time to open it.
//!
//! `cargo bench -p legate-store --bench durable [DIRECTORY]`: the directory (default: the current
//! one) selects the disk to measure.
#![expect(clippy::print_stdout, reason = "its output is the result")]
#![expect(clippy::unwrap_used, reason = "a measurement that fails ends")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use legate_model::Node;
use legate_runtime::Scope;
use legate_store::{Command, Registration, Store, StoreConfig};
use tokio::time::Instant;

/// The duration of the measurement for each number of writers.
const MEASURED: Duration = Duration::from_secs(5);

/// The number of rows in the store that is opened.
const ROWS: usize = 100_000;

fn main() {
    let given = std::env::args()
        .skip(1)
        .find(|word| !word.starts_with("--"));
    let place = given.map_or_else(|| PathBuf::from("."), PathBuf::from);
    let directory = tempfile::tempdir_in(place).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for writers in [1, 16, 256] {
            let rate = writes(&directory.path().join(format!("{writers}")), writers).await;
            println!("{writers:>4} writers: {rate:>8.0} acknowledged writes per second");
        }
        let (opened, size) = recovery(&directory.path().join("recovery")).await;
        println!(
            "{ROWS} rows in {size} MiB: opened in {:.2} s",
            opened.as_secs_f64()
        );
    });
}

async fn open(directory: &Path) -> (Store, Scope) {
    let scope = Scope::new("bench");
    let config = StoreConfig::Disk {
        directory: directory.to_owned(),
        key_file: None,
    };
    (Store::open(config, &scope.spawner()).await.unwrap(), scope)
}

async fn stop(store: Store, scope: Scope) {
    drop(store);
    scope.stop(Duration::from_secs(60)).await.unwrap();
}

/// A registration of typical size.
fn register(name: String, count: usize) -> Command {
    let node = Node {
        node: name,
        address: format!("10.0.{}.{}", count / 256 % 256, count % 256),
        datacenter: "dc1".to_owned(),
        ..Node::default()
    };
    Command::Register(Box::new(Registration {
        node,
        service: None,
        checks: Vec::new(),
        skip_node_update: false,
    }))
}

async fn writes(directory: &Path, writers: usize) -> f64 {
    let (store, scope) = open(directory).await;
    let started = Instant::now();
    let write = |writer: usize| {
        let store = store.clone();
        async move {
            let mut written = 0;
            while started.elapsed() < MEASURED {
                let command = register(format!("writer-{writer}"), written);
                store.apply(command).await.unwrap();
                written += 1;
            }
            written
        }
    };
    let written: usize = join_all((0..writers).map(write)).await.into_iter().sum();
    let rate = written as f64 / started.elapsed().as_secs_f64();
    stop(store, scope).await;
    rate
}

/// Measures the time to read the rows of a killed server, and the size of its file.
async fn recovery(directory: &Path) -> (Duration, u64) {
    let (store, scope) = open(directory).await;
    for first in (0..ROWS).step_by(1000) {
        let nodes = (first..first + 1000).map(|n| register(format!("node-{n:06}"), n));
        store.apply(Command::All(nodes.collect())).await.unwrap();
    }
    // A copy of the files, as after a kill.
    let copy = directory.with_extension("killed");
    std::fs::create_dir(&copy).unwrap();
    for name in ["store.redb", "store.wal", "store.key"] {
        std::fs::copy(directory.join(name), copy.join(name)).unwrap();
    }
    stop(store, scope).await;
    let size = std::fs::metadata(copy.join("store.redb")).unwrap().len() / (1024 * 1024);
    let started = Instant::now();
    let (store, scope) = open(&copy).await;
    let took = started.elapsed();
    assert_eq!(store.state().rows(), ROWS);
    stop(store, scope).await;
    (took, size)
}
