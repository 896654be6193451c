//! `legate-kind`: the scenarios with Kubernetes. `cargo xtask kind` makes the cluster and the images and
//! starts this program with `KUBECONFIG` set and kubectl and helm on `PATH`.
//!
//! Scenarios of a group run side by side, each in a namespace of its own; what concerns the whole
//! cluster runs alone. A scenario that fails shows what its pods said.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to whoever runs it"
)]

mod cluster;
mod consul;
mod mesh;
mod namespace;
mod retry;
mod run;
mod scenarios;
mod tutorial;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::cluster::Cluster;

/// Which scenarios to run.
#[derive(Parser)]
struct Args {
    /// Those whose name has this in it; all unless given
    #[arg(long)]
    filter: Vec<String>,
    /// A real consul, for the chart with servers outside of the cluster
    #[arg(long, env = "LEGATE_CONSUL", value_name = "FILE")]
    consul: Option<PathBuf>,
    /// Process 1 of the node that `cargo xtask kind` has started
    #[arg(long, value_name = "PID")]
    node: Option<u32>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let cluster = Cluster {
        // An empty variable is none, as everywhere.
        consul: args.consul.filter(|file| !file.as_os_str().is_empty()),
        node: args.node,
    };
    match run::all(&cluster, &args.filter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
