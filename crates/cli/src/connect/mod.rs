//! `connect`: manages certificates and proxies of the mesh.

mod ca;
mod envoy;
mod envoy_bootstrap;
mod envoy_flags;
mod envoy_proxy;
mod envoy_registration;
mod expose;
mod redirect_traffic;

use std::process::ExitCode;

use clap::Subcommand;

use crate::not_served;

/// Subcommands of `connect`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Manage the mesh's CA
    #[command(subcommand)]
    Ca(ca::Command),
    /// Run Envoy for a service, or print its bootstrap document
    Envoy(Box<envoy_flags::Options>),
    /// Expose a service through an ingress gateway
    Expose(expose::Options),
    /// Not supported: Consul's own proxy, for tests
    Proxy(not_served::Anything),
    /// Redirect the traffic of this machine or container to its proxy
    RedirectTraffic(redirect_traffic::Options),
}

/// Runs the command.
///
/// # Errors
///
/// If the command fails; the texts are Consul's.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Ca(command) => ca::run(command).await,
        Command::Envoy(options) => envoy::run(*options).await,
        Command::Expose(options) => expose::run(options).await,
        Command::Proxy(_) => not_served::refuse(not_served::CONNECT_PROXY),
        Command::RedirectTraffic(options) => redirect_traffic::run(options).await,
    }
}
