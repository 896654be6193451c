//! The built-in proxy compared with Envoy: memory, exchanges, bulk and new connections of TCP through the sidecars of a caller
//! and of a called service, both with the same kind of proxy and the same configuration.
//!
//! Both kinds are measured in the same run, in turns, with a direct connection as the third. Prints a table and makes no
//! assertions about figures.
#![expect(clippy::print_stdout, reason = "prints its results as a table")]

mod echo;
mod load;

use std::net::SocketAddr;
use std::time::Duration;

use legate_runtime::Scope;
use legate_tests::program::Memory;
use legate_tests::table::median;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use serde_json::json;

const DB: ServiceSpec = ServiceSpec::tcp("db", &[]);
const SHOP: ServiceSpec = ServiceSpec::tcp("shop", &["db"]);

/// Idle connections while their memory is measured.
const IDLE: usize = 1_000;

/// The ports of additional upstreams.
const FIRST_PORT: usize = 21_000;

/// How long after the end of all connections their memory is measured again.
const AFTERWARDS: Duration = Duration::from_secs(30);

/// The scope of the measurement.
struct Options {
    turns: usize,
    /// The length of a turn.
    turn: Duration,
}

/// A caller and a called service with the same kind of proxy.
struct Pair {
    kind: &'static str,
    mesh: Mesh,
    caller: Sidecar,
    called: Sidecar,
    upstream: SocketAddr,
    applications: Scope,
}

impl Pair {
    async fn start(kind: &'static str) -> Pair {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        let applications = Scope::new("applications");
        mesh.use_proxy(kind);
        mesh.intend("shop", "db", "allow").await;
        mesh.register_dead(&DB).await;
        echo::serve(mesh.application("db"), &applications).await;
        let called = mesh.join(&DB).await;
        let caller = mesh.add(&SHOP).await;
        let upstream = mesh.upstream("shop", 0);
        eventually(
            "an exchange succeeds",
            || load::exchanged(upstream),
            |done| *done,
        )
        .await;
        Pair {
            kind,
            mesh,
            caller,
            called,
            upstream,
            applications,
        }
    }

    /// The processes of both sidecars, with their Envoys.
    fn processes(&self) -> Vec<Pid> {
        let mut all = vec![self.caller.pid(), self.called.pid()];
        if self.kind == "envoy" {
            all.extend([self.caller.envoy(), self.called.envoy()]);
        }
        all
    }

    /// The processes of the caller's sidecar.
    fn callers(&self) -> Vec<Pid> {
        let mut all = vec![self.caller.pid()];
        if self.kind == "envoy" {
            all.push(self.caller.envoy());
        }
        all
    }

    /// Memory of both sidecars that is in no file, in KiB.
    fn memory(&self) -> f64 {
        memory_of(&self.processes())
    }

    /// CPU time of both sidecars so far.
    fn processor_time(&self) -> Duration {
        processor_time_of(&self.processes())
    }

    /// Gives the caller so many upstreams more, and waits until its proxy listens for each.
    async fn set_upstreams(&self, count: usize) {
        let address = self.upstream.ip();
        let others = (0..count).map(|number| {
            let port = FIRST_PORT + number;
            json!({"DestinationName": format!("up-{number}"), "LocalBindAddress": address, "LocalBindPort": port})
        });
        let mut upstreams = vec![json!({
            "DestinationName": "db", "LocalBindAddress": address, "LocalBindPort": self.upstream.port(),
        })];
        upstreams.extend(others);
        self.mesh
            .configure(&SHOP, json!({"Upstreams": upstreams}))
            .await;
        let listeners = async || {
            let page = client::get(self.caller.admin(), "/listeners").await;
            page.map_or(0, |(_, page)| page.lines().count())
        };
        let enough = |listeners: &usize| *listeners > count;
        eventually("each upstream has a listener", listeners, enough).await;
    }

    /// Milliseconds from exec to ready, as the sidecar of the called service has logged it.
    fn start_time(&self) -> Option<f64> {
        let log = self.called.log();
        let line = log.lines().find(|line| line.contains("ready: listen"))?;
        let (_, time) = line.rsplit_once("ready ")?;
        time.strip_suffix(" ms")?.parse().ok()
    }

    async fn stop(self) {
        for mut sidecar in [self.caller, self.called] {
            sidecar.stop().await;
        }
        self.mesh.stop().await;
        let _ = self.applications.stop(Duration::from_secs(10)).await;
    }
}

/// Memory of processes that is in no file, in KiB.
fn memory_of(processes: &[Pid]) -> f64 {
    let all = processes.iter();
    all.map(|pid| Memory::of_pid(*pid).anonymous).sum()
}

/// CPU time of processes so far.
fn processor_time_of(processes: &[Pid]) -> Duration {
    let all = processes.iter().map(|pid| {
        let clock = clock_getcpuclockid(*pid).expect("the process has a clock");
        Duration::from(clock.now().expect("the process runs"))
    });
    all.sum()
}

fn main() {
    let mut options = Options {
        turns: 7,
        turn: Duration::from_secs(5),
    };
    if std::env::args().any(|argument| argument == "--quick") {
        options = Options {
            turns: 3,
            turn: Duration::from_secs(2),
        };
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure(&options));
}

/// One row: what a turn of it measures, of a pair and directly.
struct Row {
    label: &'static str,
    /// For direct connections, Envoy and the built-in proxy.
    values: [Vec<f64>; 3],
    decimals: usize,
}

impl Row {
    fn new(label: &'static str, decimals: usize) -> Row {
        Row {
            label,
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
    traffic(&pairs, address, options).await;
    memory(&pairs).await;
    upstreams(&pairs).await;
    for pair in pairs {
        pair.stop().await;
    }
    let _ = direct.stop(Duration::from_secs(10)).await;
}

/// Rates, and the CPU time that they cost.
async fn traffic(pairs: &[Pair; 2], direct: SocketAddr, options: &Options) {
    type Kind = (&'static str, &'static str, f64, load::Kind);
    let kinds: [Kind; 3] = [
        (
            "exchanges of 1 KiB per second, 64 connections",
            "CPU per 1,000 exchanges, ms",
            1_000.0,
            load::Kind::Exchanges,
        ),
        (
            "bulk, 1 connection, MB/s",
            "CPU per GB, ms",
            1_000.0,
            load::Kind::Bulk,
        ),
        (
            "new connections per second",
            "CPU per 1,000 new connections, ms",
            1_000.0,
            load::Kind::New,
        ),
    ];
    for (rate, cost, unit, kind) in kinds {
        let (mut rates, mut costs) = (Row::new(rate, 0), Row::new(cost, 1));
        for _ in 0..options.turns {
            let count = load::run(kind, direct, options.turn).await;
            rates.values[0].push(count / options.turn.as_secs_f64());
            for (pair, column) in pairs.iter().zip(1..) {
                let before = pair.processor_time();
                let count = load::run(kind, pair.upstream, options.turn).await;
                let cpu = pair.processor_time().saturating_sub(before);
                rates.values[column].push(count / options.turn.as_secs_f64());
                costs.values[column].push(cpu.as_secs_f64() * 1_000.0 / (count / unit));
            }
        }
        rates.print();
        costs.print();
    }
}

/// Memory of idle connections, and what of it is left after their end.
async fn memory(pairs: &[Pair; 2]) {
    let mut each = Row::new("memory of an idle connection, both sidecars, KiB", 1);
    let mut left = Row::new("memory 30 s after their end, of that before", 2);
    for (pair, column) in pairs.iter().zip(1..) {
        let before = pair.memory();
        let held = load::idle(pair.upstream, IDLE).await;
        each.values[column].push((pair.memory() - before) / IDLE as f64);
        drop(held);
        tokio::time::sleep(AFTERWARDS).await;
        left.values[column].push(pair.memory() / before);
    }
    each.print();
    left.print();
}

/// Memory of the caller's sidecar with some upstreams.
async fn upstreams(pairs: &[Pair; 2]) {
    let mut row = Row::new("memory of the caller's sidecar with 10 upstreams, KiB", 0);
    for (pair, column) in pairs.iter().zip(1..) {
        pair.set_upstreams(10).await;
        // What the change needed is given back.
        tokio::time::sleep(AFTERWARDS).await;
        row.values[column].push(memory_of(&pair.callers()));
    }
    row.print();
}
