//! `legate proxy`: inspects sidecars.

mod config;
mod connected;
mod list;
mod server;
mod status;
mod target;

use std::io::Write;

use clap::{Args, Subcommand};

/// Options of `legate proxy`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List pods with a sidecar: readiness, server, configuration
    List(list::Options),
    /// Show one sidecar: its connection, configuration, certificate, listeners, upstreams, and its state at
    /// the server
    Status(status::Options),
    /// Show the configuration of a sidecar's Envoy, without secrets
    Config(config::Options),
}

/// Runs the command.
///
/// # Errors
///
/// If the cluster, the pod or its sidecar is unreachable.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let text = match options.command {
        Command::List(options) => list::run(options).await?,
        Command::Status(options) => status::run(options).await?,
        Command::Config(options) => config::run(options).await?,
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
