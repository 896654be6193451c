//! The built-in proxy compared with Envoy: memory, exchanges, bulk and new connections of TCP through the sidecars of a caller
//! and of a called service, both with the same kind of proxy and the same configuration.
//!
//! Both kinds are measured in the same run, in turns, with a direct connection as the third. Prints a table and makes no
//! assertions about figures.
#![expect(clippy::print_stdout, reason = "prints its results as a table")]

mod auto;
mod echo;
mod load;
mod pair;

use std::net::SocketAddr;
use std::time::Duration;

use legate_runtime::{Scope, file_limit};
use legate_tests::table::median;

use load::Kind;
use pair::{Pair, memory_of, processor_time_of};

/// How long after a change or the end of connections memory is measured.
const AFTERWARDS: Duration = Duration::from_secs(30);
/// Open files apart from those of idle connections.
const OTHER_FILES: u64 = 2_000;
/// How long the cost of a change is measured: Envoy sums up its statistics every five seconds.
const CHANGE: Duration = Duration::from_secs(5);

/// The scope of the measurement.
struct Options {
    turns: usize,
    /// The length of a turn.
    turn: Duration,
    /// Idle connections while their memory is measured.
    idle: usize,
    /// The most upstreams.
    upstreams: usize,
    /// The number of changes.
    changes: usize,
    /// Starts of a service that needs Envoy.
    starts: usize,
    /// How often each proxy takes over from the other one.
    hand_overs: usize,
    /// Nothing else is measured.
    only_hand_overs: bool,
    /// See [`AFTERWARDS`].
    afterwards: Duration,
}

impl Options {
    /// From the arguments `--quick` and `--hand-overs COUNT`, which measures nothing else.
    fn new() -> Options {
        let mut options = Options {
            turns: 7,
            turn: Duration::from_secs(5),
            idle: 10_000,
            upstreams: 1_000,
            changes: 5,
            starts: 20,
            hand_overs: 5,
            only_hand_overs: false,
            afterwards: AFTERWARDS,
        };
        let mut args = std::env::args().skip(1);
        while let Some(argument) = args.next() {
            match argument.as_str() {
                "--quick" => {
                    options = Options {
                        turns: 1,
                        turn: Duration::from_secs(2),
                        idle: 1_000,
                        upstreams: 50,
                        changes: 1,
                        starts: 2,
                        hand_overs: 1,
                        only_hand_overs: false,
                        afterwards: Duration::from_secs(5),
                    }
                }
                "--hand-overs" => {
                    let count = args.next().and_then(|count| count.parse().ok());
                    options.hand_overs = count.expect("a number of times");
                    options.only_hand_overs = true;
                }
                // `cargo bench` adds an argument of its own.
                _ => {}
            }
        }
        options
    }
}

fn main() {
    let options = Options::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    if options.only_hand_overs {
        return runtime.block_on(auto::hand_overs(options.hand_overs));
    }
    runtime.block_on(measure(&options));
}

/// One row: what a turn of it measures, of a pair and directly.
struct Row {
    label: String,
    /// For direct connections, Envoy and the built-in proxy.
    values: [Vec<f64>; 3],
    decimals: usize,
}

impl Row {
    fn new(label: &str, decimals: usize) -> Row {
        Row {
            label: label.to_owned(),
            values: Default::default(),
            decimals,
        }
    }

    fn print(&self) {
        let cell = |value: Option<f64>| match value {
            Some(value) => format!("{value:.*}", self.decimals),
            None => "-".to_owned(),
        };
        let [direct, envoy, own] = self.values.each_ref().map(|values| median(values));
        let ratio = envoy.zip(own).map(|(envoy, own)| own / envoy);
        let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        println!(
            "| {} | {} | {} | {} | {ratio} |",
            self.label,
            cell(direct),
            cell(envoy),
            cell(own)
        );
    }
}

async fn measure(options: &Options) {
    // An idle connection has two descriptors here, and two in each sidecar.
    let files = file_limit::raise().expect("a limit of open files");
    let idle_connections = options
        .idle
        .min((files.saturating_sub(OTHER_FILES) / 2) as usize);
    let pairs = [Pair::start("envoy").await, Pair::start("builtin").await];
    let direct = Scope::new("direct");
    let address = echo::serve_anywhere(&direct).await;
    println!("\n| two sidecars | direct | Envoy | built-in | ratio |");
    println!("|---|---:|---:|---:|---:|");
    let mut start = Row::new("from exec to ready, ms", 0);
    let mut idle = Row::new("memory without connections, KiB", 0);
    for (pair, column) in pairs.iter().zip(1..) {
        start.values[column].extend(pair.start_time());
        idle.values[column].push(pair.memory());
    }
    start.print();
    idle.print();
    // Before the traffic, after which processes have memory to spare.
    memory(&pairs, idle_connections, options).await;
    let exchanges = traffic(&pairs, address, options).await;
    latency(&pairs, address, exchanges / 2.0, options).await;
    upstreams(&pairs, options).await;
    for pair in pairs {
        pair.stop().await;
    }
    let _ = direct.stop(Duration::from_secs(10)).await;
    auto::starts(options.starts).await;
    auto::hand_overs(options.hand_overs).await;
}

/// Rates, and the CPU time that they cost. Returns Envoy's rate of exchanges.
async fn traffic(pairs: &[Pair; 2], direct: SocketAddr, options: &Options) -> f64 {
    let kinds = [
        (
            "exchanges of 1 KiB per second, 64 connections",
            "CPU per 1,000 exchanges, ms",
            Kind::Exchanges,
        ),
        ("bulk, 1 connection, MB/s", "CPU per GB, ms", Kind::Bulk(1)),
        (
            "bulk, 64 connections, MB/s",
            "CPU per GB, ms",
            Kind::Bulk(64),
        ),
        (
            "new connections per second",
            "CPU per 1,000 new connections, ms",
            Kind::New,
        ),
    ];
    let mut exchanges = 0.0;
    for (rate, cost, kind) in kinds {
        let (mut rates, mut costs) = (Row::new(rate, 0), Row::new(cost, 1));
        for _ in 0..options.turns {
            let (count, length) = load::run(kind, direct, options.turn).await;
            rates.values[0].push(count / length);
            for (pair, column) in pairs.iter().zip(1..) {
                let before = pair.processor_time();
                let (count, length) = load::run(kind, pair.upstream, options.turn).await;
                let cpu = pair.processor_time().saturating_sub(before);
                rates.values[column].push(count / length);
                costs.values[column].push(cpu.as_secs_f64() * 1e6 / count);
            }
        }
        rates.print();
        costs.print();
        if matches!(kind, Kind::Exchanges) {
            exchanges = median(&rates.values[1]).unwrap_or_default();
        }
    }
    exchanges
}

/// What the sidecars add to the time of an exchange, with so many exchanges per second.
async fn latency(pairs: &[Pair; 2], direct: SocketAddr, rate: f64, options: &Options) {
    let mut half = Row::new("added by the sidecars at half of Envoy's load, p50, µs", 0);
    let mut most = Row::new("added by the sidecars at half of Envoy's load, p99, µs", 0);
    let at = |sorted: &[f64], part: f64| {
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * part) as usize).copied()
    };
    for _ in 0..options.turns {
        let without = load::latencies(direct, rate, options.turn).await;
        for (pair, column) in pairs.iter().zip(1..) {
            let with = load::latencies(pair.upstream, rate, options.turn).await;
            for (row, part) in [(&mut half, 0.5), (&mut most, 0.99)] {
                let added = at(&with, part).zip(at(&without, part));
                row.values[column].extend(added.map(|(with, without)| with - without));
            }
        }
    }
    half.print();
    most.print();
}

/// Memory of idle connections, and what of it is left after their end.
async fn memory(pairs: &[Pair; 2], count: usize, options: &Options) {
    let label = format!("memory of each of {count} idle connections, both sidecars, KiB");
    let mut each = Row::new(&label, 1);
    let label = format!(
        "memory {} s after their end, of that before",
        options.afterwards.as_secs()
    );
    let mut left = Row::new(&label, 2);
    for (pair, column) in pairs.iter().zip(1..) {
        let before = pair.memory();
        let held = load::idle(pair.upstream, count).await;
        each.values[column].push((pair.memory() - before) / count as f64);
        drop(held);
        tokio::time::sleep(options.afterwards).await;
        left.values[column].push(pair.memory() / before);
    }
    each.print();
    left.print();
}

/// CPU time of the caller's sidecar in the time of a change, in milliseconds.
async fn during_a_change(pair: &Pair) -> f64 {
    let before = processor_time_of(&pair.callers());
    tokio::time::sleep(CHANGE).await;
    let cpu = processor_time_of(&pair.callers()).saturating_sub(before);
    cpu.as_secs_f64() * 1e3
}

/// Memory of the caller's sidecar with upstreams, and what a change of one costs it.
async fn upstreams(pairs: &[Pair; 2], options: &Options) {
    for count in [10, options.upstreams] {
        let label = format!("memory of the caller's sidecar with {count} upstreams, KiB");
        let mut memory = Row::new(&label, 0);
        let label = format!("CPU of one more or less than {count} upstreams, ms");
        let mut change = Row::new(&label, 1);
        for (pair, column) in pairs.iter().zip(1..) {
            pair.set_upstreams(count).await;
            // What the change needed is given back.
            tokio::time::sleep(options.afterwards).await;
            memory.values[column].push(memory_of(&pair.callers()));
            for number in 0..options.changes {
                let idle = during_a_change(pair).await;
                pair.write_upstreams(count + (number + 1) % 2).await;
                let cpu = during_a_change(pair).await;
                change.values[column].push(cpu - idle);
            }
        }
        memory.print();
        change.print();
    }
}
