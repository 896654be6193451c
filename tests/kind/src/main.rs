//! `legate-kind`: the scenarios with Kubernetes. `cargo xtask kind` creates the cluster and the images and
//! starts this program with `KUBECONFIG` set and kubectl and helm on `PATH`.
//!
//! Scenarios of a group run concurrently, each in a namespace of its own; scenarios that affect the whole
//! cluster run alone. A failed scenario shows the logs of its pods. `legate-kind bench` measures instead.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool prints to its user"
)]

mod bench;
mod cluster;
mod consul;
mod forward;
mod gateway_api;
mod host;
mod legate;
mod mesh;
mod namespace;
mod retry;
mod run;
mod scenarios;
mod workload;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::cluster::Cluster;

/// Options of the program.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Scenarios whose name contains this text; default: all
    #[arg(long)]
    filter: Vec<String>,
    /// A real consul, for the chart with external servers
    #[arg(long, env = "LEGATE_CONSUL", value_name = "FILE")]
    consul: Option<OsString>,
    /// The folder with the definitions of the Gateway API
    #[arg(long, value_name = "DIR")]
    gateway_api: Option<PathBuf>,
    /// Process 1 of the node started by `cargo xtask kind`
    #[arg(long, value_name = "PID")]
    node: Option<u32>,
}

#[derive(Subcommand)]
enum Command {
    /// Measure the cost of the mesh and print tables
    Bench(bench::Options),
    /// Run the conformance suite of the Gateway API
    GatewayApi(gateway_api::Options),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let cluster = Cluster {
        // An empty variable counts as unset, as everywhere.
        consul: args
            .consul
            .filter(|file| !file.is_empty())
            .map(PathBuf::from),
        gateway_api: args.gateway_api,
        node: args.node,
    };
    if let Err(error) = mesh::refuse_foreign_cluster(&cluster) {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    let outcome = match &args.command {
        Some(Command::Bench(options)) => bench::run(&cluster, options),
        Some(Command::GatewayApi(options)) => gateway_api::run(&cluster, options),
        None => run::all(&cluster, &args.filter),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
