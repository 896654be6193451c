//! `cargo xtask`: what contributors and CI run.
//!
//! It starts the ordinary tools (cargo, pip) and checks the repository; it holds no product code
//! and no crate of the workspace depends on it.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to a terminal"
)]

mod bench;
mod chart;
mod ci;
mod demo;
mod envoy;
mod fuzz;
mod go;
mod images;
mod interop;
mod kind;
mod tidy;
mod vault;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Tasks of the Legate repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run a small mesh on this machine and prove that it enforces mutual TLS and intentions
    Demo(demo::Options),
    /// Run every test, the scenarios with real Envoys included, those of whole servers with each
    /// kind of store (memory, file, etcd); arguments go to `cargo test`
    Test {
        /// Passed on to `cargo test`, for example `-p legate-tests --test mesh` or `-- name`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Render the Helm chart and compare it with tests/chart
    Chart(chart::Options),
    /// Run the scenarios with Kubernetes: in the cluster of KUBECONFIG, else in one that kind makes, else
    /// on a node of the real components that is started here (Linux, root, Go)
    Kind(kind::Options),
    /// Everything a change has to pass: format, tidy, clippy, docs, the tests and some fuzzing
    Ci,
    /// Print the path of an Envoy binary, fetching one when there is none
    Envoy {
        /// Fetch this version, whatever others are there
        #[arg(long)]
        version: Option<String>,
    },
    /// Print the path of a Vault for the tests, building one when there is none (Go)
    Vault,
    /// Check the rules of ARCHITECTURE.md that a program can check
    Tidy,
    /// Run clients of Consul that others wrote against `legate`: the official Go client's test suite, and
    /// clients for Python and Node.js and consul-template, and the scenarios with a real Vault (Go, Node.js,
    /// Python with pip)
    Interop(interop::Options),
    /// Measure the dataplane and print the figures as a table
    Bench(bench::Options),
    /// Feed what others may send to the code that reads it (needs a C++ compiler)
    Fuzz(fuzz::Options),
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    let workspace = Workspace::find()?;
    match args.task {
        Task::Demo(options) => demo::run(&workspace, &options),
        Task::Test { args } => ci::test(&workspace, &args),
        Task::Chart(options) => chart::run(&workspace, &options),
        Task::Kind(options) => kind::run(&workspace, &options),
        Task::Ci => ci::run(&workspace),
        Task::Envoy { version } => {
            let path = match version {
                Some(version) => envoy::get_version(&workspace, &version)?,
                None => envoy::get(&workspace)?,
            };
            println!("{}", path.display());
            Ok(())
        }
        Task::Vault => {
            println!("{}", vault::get(&workspace)?.display());
            Ok(())
        }
        Task::Tidy => tidy::run(&workspace),
        Task::Interop(options) => interop::run(&workspace, &options),
        Task::Bench(options) => bench::run(&workspace, &options),
        Task::Fuzz(options) => fuzz::run(&workspace, &options),
    }
}
