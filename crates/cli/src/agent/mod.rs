//! `legate agent`: one server of the control plane, with the command line and configuration files of
//! `consul agent`.
//!
//! Everything that is asked for is served, or refused with the name of the flag, or the file and
//! key. It runs the server of `legate-server` in this process and has no mesh logic of its own.

mod config;
mod flags;
mod refused;
mod resolve;
mod sockaddr;
mod sources;

use std::time::Duration;

use anyhow::Context;
use legate_runtime::{file_limit, logging};
use legate_server::{Parts, Server};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::flags::{Flags, with_two_dashes};
use self::resolve::Resolved;

/// How long open requests and streams get to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Runs the server until SIGTERM, SIGINT, or a failure.
///
/// # Errors
///
/// When a setting is wrong or not served, or a part of the server cannot start or fails.
pub(crate) async fn run(flags: Flags) -> anyhow::Result<()> {
    let settings = sources::read(&flags)?;
    let Resolved { server, log } = resolve::resolve(settings, flags.dev)?;
    // It is kept to the end, so that the last line is written.
    let _log = logging::init(log)?;
    if let Err(error) = file_limit::raise() {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    // Before the server starts, so that no signal ends the process without a stop.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let (node, datacenter) = (server.node_name.clone(), server.datacenter.clone());
    let server = Server::start(server, Parts::default())
        .await
        .context("legate agent cannot start")?;
    tracing::info!(
        node,
        datacenter,
        http = at(server.http_addr()),
        https = at(server.https_addr()),
        grpc = at(server.grpc_addr()),
        grpc_tls = at(server.grpc_tls_addr()),
        dns = at(server.dns_addr()),
        "started"
    );
    let failure = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        failure = server.failed() => Some(failure),
    };
    tracing::info!("stopping");
    let stopped = server.stop(STOP_LIMIT).await;
    if let Some(failure) = failure {
        return Err(failure).context("a part of the server failed");
    }
    stopped.context("the server did not stop cleanly")
}

fn at(address: Option<std::net::SocketAddr>) -> String {
    address.map_or_else(|| "off".to_owned(), |address| address.to_string())
}
