//! `legate`: the command people type.
//!
//! It composes the products and talks to their public APIs; it holds no mesh logic of its own.
#![expect(
    clippy::print_stdout,
    reason = "a command line tool talks to a terminal"
)]

mod agent;
mod config;
mod dev;
mod http_client;
mod kubernetes;
mod server_api;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Legate: a service mesh that speaks Consul's APIs.
#[derive(Parser)]
#[command(name = "legate", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one server of the control plane as `consul agent` does: with its flags and its files
    #[command(args_override_self = true)]
    Agent(Box<agent::Flags>),
    /// Run a whole mesh on this machine: a control plane, two services and a sidecar for each
    Dev(dev::Options),
    /// Read and write config entries, or look at what a write would change
    Config(config::Options),
    /// Check whether the mesh on a Kubernetes cluster is healthy; fails when it is not
    Check(kubernetes::check::Options),
    /// List the sidecars of a Kubernetes cluster or the proxies of a server, and show what one of them
    /// does and has
    Proxy(kubernetes::proxy::Options),
}

fn main() -> ExitCode {
    let line = agent::with_two_dashes(std::env::args_os());
    let args = Args::parse_from(config::with_two_dashes(line));
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| legate_runtime::block_on(runtime, run(args.command)));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    // The terminal may be gone.
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::FAILURE
}

/// Whether what was asked for is as it should be.
async fn run(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::Agent(flags) => agent::run(*flags).await.map(|()| true),
        Command::Dev(options) => dev::run(options).await.map(|()| true),
        Command::Config(options) => config::run(options).await.map(|()| true),
        Command::Check(options) => kubernetes::check::run(options).await,
        Command::Proxy(options) => kubernetes::proxy::run(options).await.map(|()| true),
    }
}
