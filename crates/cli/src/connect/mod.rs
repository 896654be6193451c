//! `connect`: certificates and proxies of the mesh.

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

/// What is done.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// The authority of the mesh
    #[command(subcommand)]
    Ca(ca::Command),
    /// Run Envoy for a service, or print its bootstrap document
    Envoy(Box<envoy_flags::Options>),
    /// Let an ingress gateway offer a service
    Expose(expose::Options),
    /// Not served: Consul's own proxy, for tests
    Proxy(not_served::Anything),
    /// Send the traffic of this machine or container through its proxy
    RedirectTraffic(redirect_traffic::Options),
}

/// Does it.
///
/// # Errors
///
/// When it cannot be done, in Consul's words.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Ca(command) => ca::run(command).await,
        Command::Envoy(options) => envoy::run(*options).await,
        Command::Expose(options) => expose::run(options).await,
        Command::Proxy(_) => not_served::connect_proxy(),
        Command::RedirectTraffic(options) => redirect_traffic::run(options).await,
    }
}
