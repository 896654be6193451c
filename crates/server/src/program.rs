//! A server that is the whole program: from its start to a signal or a failure.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use legate_runtime::file_limit;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::ServerConfig;
use crate::server::{Parts, Server};

/// Runs a server until SIGTERM, SIGINT, or a failure. `program` is its name in errors. Open requests
/// and streams get up to `stop_limit` to end.
///
/// # Errors
///
/// When a part of the server cannot start, fails, or does not stop in time.
pub async fn run(config: ServerConfig, program: &str, stop_limit: Duration) -> anyhow::Result<()> {
    if let Err(error) = file_limit::raise() {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    // Before the server starts, so that no signal ends the process without a stop.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let (node, datacenter) = (config.node_name.clone(), config.datacenter.clone());
    let server = Server::start(config, Parts::default())
        .await
        .with_context(|| format!("{program} cannot start"))?;
    tracing::info!(
        node,
        datacenter,
        http = at(server.http_addr()),
        https = at(server.https_addr()),
        grpc = at(server.grpc_addr()),
        grpc_tls = at(server.grpc_tls_addr()),
        dns = at(server.dns_addr()),
        trust_domain = %server.ca().trust_domain(),
        "started"
    );
    let failure = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        failure = server.failed() => Some(failure),
    };
    tracing::info!("stopping");
    let stopped = server.stop(stop_limit).await;
    if let Some(failure) = failure {
        return Err(failure).context("a part of the server failed");
    }
    stopped.context("the server did not stop cleanly")
}

fn at(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "off".to_owned(), |address| address.to_string())
}
