//! `legate-server`: reads flags, starts one server, and stops it on SIGTERM or SIGINT.

mod options;

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use legate_runtime::{file_limit, logging};
use legate_server::{Parts, Server};
use tokio::signal::unix::{SignalKind, signal};

use crate::options::{Options, Secrets};

fn main() -> ExitCode {
    let options = Options::parse();
    // It is kept to the end, so that the last line is written.
    let _log = match logging::init(options.log()) {
        Ok(log) => log,
        Err(error) => {
            // There is no log to tell it to, and a closed standard error changes nothing.
            let _ = writeln!(std::io::stderr(), "{error}");
            return ExitCode::FAILURE;
        }
    };
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| legate_runtime::block_on(runtime, run(options)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> anyhow::Result<()> {
    if let Err(error) = file_limit::raise() {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    let stop_timeout = options.stop_timeout;
    let config = options.config(Secrets::from_environment()?)?;

    // Before the server starts, so that no signal ends the process without a stop.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let server = Server::start(config, Parts::default())
        .await
        .context("legate-server cannot start")?;
    tracing::info!(
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
    let stopped = server.stop(stop_timeout).await;
    if let Some(failure) = failure {
        return Err(failure).context("a part of the server failed");
    }
    stopped.context("the server did not stop cleanly")
}

fn at(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "off".to_owned(), |address| address.to_string())
}
