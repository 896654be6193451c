//! The time in which a sidecar whose server fails gets the next change, compared with `consul-dataplane`
//! if available.
//!
//! Three servers tell sidecars about each other, and each sidecar has a real Envoy. A server that the
//! sidecars use is killed, loses its gRPC port, or is disconnected. At the same time the other servers get
//! a change. The time ends when Envoy has it.
//!
//! Programs are measured in the same run against the same failure. Prints a table and makes no
//! assertions about times. Requires root, because failures need a network namespace.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

mod network;
mod servers;
mod sidecars;

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use legate_testkit::envoy;
use legate_tests::program::Program;
use legate_tests::table::Table;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, sleep_until};

use crate::network::{Failure, Network, SERVERS};
use crate::servers::{GRPC, Servers};
use crate::sidecars::Sidecar;

/// Names the process that runs in a network namespace of its own.
const INSIDE: &str = "--inside";

/// How long connections are in use before the failure.
const SETTLED: Duration = Duration::from_secs(6);

/// The period of the dataplanes' pings. Sidecars that lose a server silently are started over this
/// time, because the time until a ping is missed depends on when the last one was answered.
const PINGS: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == INSIDE) {
        return execute_inside(&arguments);
    }
    let position = arguments.iter().position(|argument| argument == "--rounds");
    let rounds = position.and_then(|position| arguments.get(position + 1)?.parse().ok());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure(rounds.unwrap_or(20)));
    ExitCode::SUCCESS
}

/// Executes this program in a network namespace of its own, which is removed with it.
fn execute_inside(arguments: &[String]) -> ExitCode {
    let program = std::env::current_exe().expect("this program has a file");
    let status = Command::new("unshare")
        .args(["--net", "sh", "-e", "-c"])
        .args(["ip link set lo up; exec \"$@\"", "sh"])
        .arg(program)
        .arg(INSIDE)
        .args(arguments)
        .stdin(Stdio::null())
        .status()
        .expect("unshare can be run (Debian: util-linux)");
    match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

async fn measure(rounds: u32) {
    let mut programs = vec![Program {
        name: "legate-dataplane",
        path: envoy::workspace_binary("legate-dataplane"),
    }];
    match Program::find("consul-dataplane", "LEGATE_CONSUL_DATAPLANE") {
        Some(original) => programs.push(original),
        None => println!(
            "\nNo consul-dataplane was at hand: put one on PATH or name it in \
             LEGATE_CONSUL_DATAPLANE to see its figures next to these."
        ),
    }
    let network = Network::new();
    let mut bench = Bench {
        programs,
        network,
        servers: Servers::start().await,
        folder: tempfile::tempdir().expect("a temporary folder"),
        started: 0,
    };
    let mut results = Vec::new();
    for failure in Failure::ALL {
        println!("\n{rounds} times: {}", failure.name());
        results.push((failure, bench.rounds(failure, rounds).await));
    }
    let title = format!("{rounds} failures each, s until the next change");
    let table = Table::new(&title, &bench.programs, 2);
    for (failure, times) in &results {
        table.medians(&format!("{}, median", failure.name()), times);
        table.largest(&format!("{}, slowest", failure.name()), times);
    }
}

struct Bench {
    programs: Vec<Program>,
    servers: Servers,
    network: Network,
    folder: TempDir,
    /// The number of sidecars so far.
    started: u8,
}

impl Bench {
    /// The seconds of each program's sidecars.
    async fn rounds(&mut self, failure: Failure, rounds: u32) -> Vec<Vec<f64>> {
        let mut times = vec![Vec::new(); self.programs.len()];
        let mut add = |round: Vec<Vec<f64>>| {
            for (times, round) in times.iter_mut().zip(round) {
                times.extend(round);
            }
        };
        match failure {
            // All sidecars would share two cores in the moment that is measured.
            Failure::Killed => {
                for round in 0..rounds {
                    let server = (round % u32::from(SERVERS)) as u8;
                    add(self.fail(failure, server, 1).await);
                }
            }
            // A silent failure takes up to a minute, in which the sidecars do almost nothing.
            Failure::PortDropped => add(self.fail(failure, 0, rounds).await),
            Failure::HostGone => add(self.fail(failure, 1, rounds).await),
        }
        times
    }

    /// Measures one failure with `count` sidecars of each program, which use the server.
    async fn fail(&mut self, failure: Failure, server: u8, count: u32) -> Vec<Vec<f64>> {
        let mut sidecars: Vec<Vec<Sidecar>> = self.programs.iter().map(|_| Vec::new()).collect();
        let started = Instant::now();
        for place in 0..count {
            for (program, sidecars) in self.programs.iter().zip(&mut sidecars) {
                self.started = self.started.checked_add(1).expect("at most 255 sidecars");
                let mesh = (&self.network, &self.servers);
                let folder = self.folder.path();
                let sidecar = Sidecar::start(program, self.started, server, mesh, folder);
                sidecars.push(sidecar);
            }
            let endpoint = self.servers.current();
            for sidecar in sidecars
                .iter_mut()
                .filter_map(|sidecars| sidecars.last_mut())
            {
                sidecar.configured(&endpoint).await;
            }
            if failure != Failure::Killed {
                sleep_until(started + PINGS * (place + 1) / count).await;
            }
        }
        sleep(SETTLED).await;
        let poll = match failure {
            Failure::Killed => Duration::from_millis(5),
            Failure::PortDropped | Failure::HostGone => Duration::from_millis(100),
        };
        let failed = Instant::now();
        match failure {
            Failure::Killed => self.servers.kill(server).await,
            Failure::PortDropped | Failure::HostGone => self.network.fail(failure, server, GRPC),
        }
        let change = self.servers.change();
        let waiting = sidecars.iter().map(|sidecars| {
            let arrivals = sidecars.iter().map(|one| one.gets(&change, poll, failed));
            futures_util::future::join_all(arrivals)
        });
        let times = futures_util::future::join_all(waiting).await;
        drop(sidecars);
        self.network.heal(failure, server);
        if failure == Failure::Killed {
            self.servers.restart(server).await;
        }
        times
    }
}
