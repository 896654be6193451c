//! A server that is the whole program: from its start to a signal or a failure.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use legate_runtime::file_limit;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::ServerConfig;
use crate::server::{Parts, Server};

/// How often settings are looked at that are read again when they change.
const LOOK: Duration = Duration::from_secs(2);

/// What a program does around its server.
pub struct Program<'p> {
    /// Its name in errors.
    pub name: &'p str,
    /// How long open requests and streams get to end.
    pub stop_limit: Duration,
    /// What the server stands on. SIGHUP has its files read again.
    pub parts: Parts,
    /// Whether SIGTERM makes the node leave.
    pub leave_on_terminate: bool,
    /// Whether SIGINT makes the node leave.
    pub leave_on_interrupt: bool,
    /// Whether the files have changed since this was asked last, and are to be read again for that.
    pub changed: Option<Box<dyn FnMut() -> bool + Send>>,
    /// Called once, when the server is reached at its addresses.
    pub started: Box<dyn FnOnce(&Server) + Send>,
}

impl<'p> Program<'p> {
    /// One that reads nothing again, and does not leave when it ends.
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

    /// Runs a server until SIGTERM, SIGINT, a client that asks it to leave, or a failure.
    ///
    /// # Errors
    ///
    /// When a part of the server cannot start, fails, or does not stop in time.
    pub async fn run(self, config: ServerConfig) -> anyhow::Result<()> {
        if let Err(error) = file_limit::raise() {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
        // Before the server starts, so that no signal ends the process without a stop.
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
            trust_domain = %server.ca().trust_domain(),
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

/// Runs a server until SIGTERM, SIGINT, or a failure. `program` is its name in errors. Open requests
/// and streams get up to `stop_limit` to end.
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
    // Whoever ends the program waits for it, whether the node can leave or not.
    if leaves && let Err(error) = server.leave().await {
        tracing::error!(%error, "the catalog does not say that the node has left");
    }
    Ok(())
}

async fn reload(server: &Server) {
    if let Err(error) = server.reload().await {
        tracing::error!(%error, "the configuration stays as it was");
    }
}

fn at(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "off".to_owned(), |address| address.to_string())
}
