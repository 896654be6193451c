//! `legate`: the command people type.
//!
//! It composes the products and talks to their public APIs; it holds no mesh logic of its own.
#![expect(
    clippy::print_stdout,
    reason = "a command line tool talks to a terminal"
)]

mod dev;
mod http_client;

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
    /// Run a whole mesh on this machine: a control plane, two services and a sidecar beside each
    Dev(dev::Options),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| match args.command {
            Command::Dev(options) => legate_runtime::block_on(runtime, dev::run(options)),
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The terminal may be gone.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
