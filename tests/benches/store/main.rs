//! What keeping state costs, compared with Consul where one is at hand: acknowledged writes per second, and
//! what a killed control plane with many rows takes to answer again. Each backend of
//! `legate-server` and Consul are whole processes that are asked by the HTTP API.
//!
//! Prints tables; passes no judgement.
#![expect(clippy::print_stdout, reason = "its result is the tables it prints")]

mod client;
mod figures;
mod plane;
mod process;
mod rows;

use std::path::PathBuf;
use std::time::Duration;

use self::figures::{Recovery, Taken};
use self::plane::{Kind, Plane};

/// Concurrent writers, each with a connection of its own.
const WRITERS: [usize; 3] = [1, 16, 128];

/// How much is measured.
struct Options {
    /// How long each number of writers writes.
    time: Duration,
    /// How many rows the control plane has that is killed.
    rows: usize,
    /// Where the data is kept: decides which disk is measured.
    directory: PathBuf,
}

fn main() {
    let mut options = Options {
        time: Duration::from_secs(5),
        rows: 100_000,
        directory: std::env::temp_dir(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => {
                let seconds = args.next().and_then(|value| value.parse().ok());
                options.time = seconds.map_or(options.time, Duration::from_secs);
            }
            "--rows" => {
                let rows = args.next().and_then(|value| value.parse().ok());
                options.rows = rows.unwrap_or(options.rows);
            }
            "--directory" => {
                let directory = args.next().map(PathBuf::from);
                options.directory = directory.unwrap_or(options.directory);
            }
            _ => {}
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure(&options));
}

async fn measure(options: &Options) {
    let mut kinds = vec![
        Kind::Memory,
        Kind::File,
        Kind::Etcd { members: 1 },
        Kind::Etcd { members: 3 },
    ];
    match consul() {
        Some(program) => kinds.push(Kind::Consul { program }),
        None => println!(
            "\nNo consul was at hand: put one on PATH or name it in LEGATE_CONSUL to see its \
             figures next to these."
        ),
    }
    let mut written: Vec<(String, Vec<Taken>)> = Vec::new();
    let mut recovered: Vec<(String, Recovery)> = Vec::new();
    for kind in &kinds {
        let mut plane = Plane::start(kind, &options.directory).await;
        let mut writes = Vec::new();
        for writers in WRITERS {
            writes.push(rows::write(&plane, writers, options.time).await);
        }
        written.push((kind.name(), writes));
        rows::fill(&plane, options.rows).await;
        recovered.extend(recover(&mut plane, options.rows).await);
    }
    figures::print_writes(&WRITERS, &written);
    figures::print_recovery(options.rows, &recovered);
}

/// Kills and starts a control plane with so many rows, in each way there is.
async fn recover(plane: &mut Plane, rows: usize) -> Vec<(String, Recovery)> {
    let mut recovered = Vec::new();
    for way in plane.ways_to_die() {
        let before = plane.usage();
        let times = if plane.keeps() {
            let killed = plane.kill(way).await;
            plane.start_again(killed);
            Some(rows::read_all(plane, rows).await)
        } else {
            None
        };
        let after = plane.usage();
        recovered.push((
            plane.name(way),
            Recovery {
                times,
                disk: before.disk,
                before: before.resident,
                after: times.and(Some(after.resident)),
            },
        ));
    }
    recovered
}

/// `LEGATE_CONSUL`, or what is on `PATH`.
#[expect(
    clippy::disallowed_methods,
    reason = "the environment says what benchmarks compare with"
)]
fn consul() -> Option<PathBuf> {
    let named = std::env::var_os("LEGATE_CONSUL").filter(|path| !path.is_empty());
    if let Some(path) = named.map(PathBuf::from) {
        assert!(
            path.is_file(),
            "LEGATE_CONSUL is {}, which is not a file",
            path.display()
        );
        return Some(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join("consul"))
        .find(|file| file.is_file())
}
