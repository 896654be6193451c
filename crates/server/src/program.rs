//! Runs a server as a whole program: from startup to a signal or a failure.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use legate_runtime::file_limit;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::ServerConfig;
use crate::server::{Parts, Server};

/// How often changed settings files are polled for.
const LOOK: Duration = Duration::from_secs(2);

/// Settings of the program around a server.
pub struct Program<'p> {
    /// Its name in error messages.
    pub name: &'p str,
    /// Time that open requests and streams get at shutdown.
    pub stop_limit: Duration,
    /// Dependencies of the server. SIGHUP triggers their `reload`.
    pub parts: Parts,
    /// Whether the node leaves on SIGTERM.
    pub leave_on_terminate: bool,
    /// Whether the node leaves on SIGINT.
    pub leave_on_interrupt: bool,
    /// Whether the files have changed since the last call and must be reloaded. `None`: changes are ignored.
    pub changed: Option<Box<dyn FnMut() -> bool + Send>>,
    /// Called once, when all listeners accept connections.
    pub started: Box<dyn FnOnce(&Server) + Send>,
}

impl<'p> Program<'p> {
    /// A program that does not watch its files, and does not leave when it ends.
    #[must_use]
    pub fn new(name: &'p str, stop_limit: Duration) -> Self {
        Self {
            name,
            stop_limit,
            parts: Parts::default(),
            leave_on_terminate: false,
            leave_on_interrupt: false,
            changed: None,
            started: Box::new(|_| {}),
        }
    }

    /// Runs a server until SIGTERM, SIGINT, a client's request to leave, or a failure.
    ///
    /// # Errors
    ///
    /// When a part of the server cannot start, fails, or does not stop in time.
    pub async fn run(self, config: ServerConfig) -> anyhow::Result<()> {
        if let Err(error) = file_limit::raise() {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
        // Before the server starts: from here on, no signal kills the process without a graceful shutdown.
        let mut signals = Signals::new()?;
        let (node, datacenter) = (config.node_name.clone(), config.datacenter.clone());
        let server = Server::start(config, self.parts)
            .await
            .with_context(|| format!("{} cannot start", self.name))?;
        tracing::info!(
            node,
            datacenter,
            http = at(server.http_addr()),
            https = at(server.https_addr()),
            grpc = at(server.grpc_addr()),
            grpc_tls = at(server.grpc_tls_addr()),
            dns = at(server.dns_addr()),
            trust_domain = server
                .ca()
                .is_created()
                .then(|| server.ca().trust_domain().to_string()),
            "started"
        );
        (self.started)(&server);
        let leave = (self.leave_on_terminate, self.leave_on_interrupt);
        let ended = until_end(&server, &mut signals, self.changed, leave).await;
        tracing::info!("stopping");
        let stopped = server.stop(self.stop_limit).await;
        ended?;
        stopped.context("the server did not stop cleanly")
    }
}

/// Runs a server until SIGTERM, SIGINT, or a failure. `program` is its name in error messages. Open requests
/// and streams get up to `stop_limit` at shutdown.
///
/// # Errors
///
/// When a part of the server cannot start, fails, or does not stop in time.
pub async fn run(config: ServerConfig, program: &str, stop_limit: Duration) -> anyhow::Result<()> {
    Program::new(program, stop_limit).run(config).await
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind, name| signal(kind).with_context(|| format!("cannot listen for {name}"));
        Ok(Self {
            terminate: listen(SignalKind::terminate(), "SIGTERM")?,
            interrupt: listen(SignalKind::interrupt(), "SIGINT")?,
            hangup: listen(SignalKind::hangup(), "SIGHUP")?,
        })
    }
}

/// Serves until the program has to end.
async fn until_end(
    server: &Server,
    signals: &mut Signals,
    mut changed: Option<Box<dyn FnMut() -> bool + Send>>,
    (on_terminate, on_interrupt): (bool, bool),
) -> anyhow::Result<()> {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let leaves = loop {
        tokio::select! {
            _ = signals.terminate.recv() => break on_terminate,
            _ = signals.interrupt.recv() => break on_interrupt,
            () = server.left() => break true,
            failure = server.failed() => {
                return Err(failure).context("a part of the server failed");
            }
            _ = signals.hangup.recv() => reload(server).await,
            _ = look.tick(), if changed.is_some() => {
                if changed.as_mut().is_some_and(|changed| changed()) {
                    reload(server).await;
                }
            }
        }
    };
    // The shutdown must proceed even if the catalog cannot be updated.
    if leaves && let Err(error) = server.leave().await {
        tracing::error!(%error, "the node could not be marked as left in the catalog");
    }
    Ok(())
}

async fn reload(server: &Server) {
    if let Err(error) = server.reload().await {
        tracing::error!(%error, "reload failed; the previous configuration stays in effect");
    }
}

fn at(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "off".to_owned(), |address| address.to_string())
}
