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
mod mesh;
mod namespace;
mod run;
mod scenarios;
mod workload;

use std::process::ExitCode;

use clap::Parser;

use crate::cluster::Cluster;

/// Which scenarios to run.
#[derive(Parser)]
struct Args {
    /// Those whose name has this in it; all unless given
    #[arg(long)]
    filter: Vec<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run::all(&Cluster, &args.filter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
