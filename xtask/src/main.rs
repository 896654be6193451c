//! `cargo xtask`: the tasks of contributors and CI.
//!
//! It runs ordinary tools (cargo, pip) and checks the repository; it has no product code, and no crate of
//! the workspace depends on it.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool prints to its user"
)]

mod background;
mod bench;
mod chart;
mod ci;
mod demo;
mod envoy;
mod etcd;
mod fuzz;
mod go;
mod images;
mod interop;
mod kind;
mod left_out;
mod machine;
mod pypi;
mod test;
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
    /// Run a small mesh on this machine and verify that it enforces mutual TLS and intentions
    Demo(demo::Options),
    /// Run every test, including scenarios with real Envoys; arguments are passed to `cargo test`. With --all, also
    /// those of whole servers with each store backend, and the tasks interop, kind and fuzz
    Test(test::Options),
    /// Render the Helm chart and compare it with tests/chart
    Chart(chart::Options),
    /// Run the scenarios with Kubernetes: in the cluster of KUBECONFIG, else in one that kind makes, else
    /// on a node of the real components that is started here (Linux, root, Go)
    Kind(kind::Options),
    /// Everything a change has to pass: format, tidy, clippy, docs, the commands of the README on a minimal machine,
    /// all tests and some fuzzing (Linux, root, debootstrap, Go)
    Ci(ci::Options),
    /// Print the path of an Envoy binary, fetching one if there is none
    Envoy {
        /// Fetch this version, even if others are available
        #[arg(long)]
        version: Option<String>,
    },
    /// Print the path of an etcd binary for the tests, fetching one if there is none
    Etcd,
    /// Build the programs of the images without docker, and print the sizes
    Images,
    /// Print the path of a Vault for the tests, building one if there is none (Go)
    Vault,
    /// Check the rules of ARCHITECTURE.md that can be checked automatically
    Tidy,
    /// Run foreign Consul clients against `legate`: the official Go client's test suite, clients for Python
    /// and Node.js, consul-template, and the scenarios with a real Vault (Go, Node.js, Python with pip)
    Interop(interop::Options),
    /// Measure the dataplane and the servers, and print tables
    Bench(bench::Options),
    /// Fuzz the parsers of untrusted input (needs a C++ compiler)
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
        Task::Test(options) => test::run(&workspace, &options),
        Task::Chart(options) => chart::run(&workspace, &options),
        Task::Kind(options) => kind::run(&workspace, &options),
        Task::Ci(options) => ci::run(&workspace, &options),
        Task::Envoy { version } => {
            let path = match version {
                Some(version) => envoy::get_version(&workspace, &version)?,
                None => envoy::get(&workspace)?,
            };
            println!("{}", path.display());
            Ok(())
        }
        Task::Etcd => {
            println!("{}", etcd::get(&workspace)?.display());
            Ok(())
        }
        Task::Images => images::measure(&workspace),
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
