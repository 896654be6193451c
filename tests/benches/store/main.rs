//! The cost of persistence, compared with Consul if available: acknowledged writes per second, and the
//! recovery time of a killed control plane with many rows. Each backend of `legate-server` and Consul run
//! as processes and are accessed through the HTTP API.
//!
//! Prints tables and makes no assertions.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

mod client;
mod figures;
mod plane;
mod process;
mod rows;

use std::path::PathBuf;
use std::time::Duration;

use self::figures::{Recovery, Taken};
use self::plane::{Kind, Plane};

/// Numbers of concurrent writers, each with a connection of its own.
const WRITERS: [usize; 3] = [1, 16, 128];

/// The scope of the measurement.
struct Options {
    /// The duration for each number of writers.
    time: Duration,
    /// The number of rows of the control plane that is killed.
    rows: usize,
    /// The directory of the data, which determines the measured disk.
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

/// Kills and restarts a control plane with this many rows, in each possible way.
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

/// `LEGATE_CONSUL`, or `consul` on `PATH`.
#[expect(
    clippy::disallowed_methods,
    reason = "the environment selects the programs of benchmarks"
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
