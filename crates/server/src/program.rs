//! A server that is the whole program: from its start to a signal or a failure.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use legate_runtime::file_limit;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::ServerConfig;
use crate::control::{self, Request, Requests};
use crate::server::{Parts, Server};

/// How often settings are looked at that are read again when they change.
const LOOK: Duration = Duration::from_secs(2);

/// Where a program reads its settings again.
pub trait Settings: Send {
    /// Reads all of them. What concerns the program and not the server is applied by this.
    ///
    /// # Errors
    /// Names what cannot be read, and changes nothing.
    fn read(&mut self) -> anyhow::Result<ServerConfig>;

    /// Whether they have changed since they were read, and are to be read again for that.
    fn have_changed(&mut self) -> bool {
        false
    }
}

/// What a program does around its server.
pub struct Program<'p> {
    /// Its name in errors.
    pub name: &'p str,
    /// How long open requests and streams get to end.
    pub stop_limit: Duration,
    /// Whether SIGTERM takes the node out of the catalog.
    pub leave_on_terminate: bool,
    /// Whether SIGINT takes the node out of the catalog.
    pub leave_on_interrupt: bool,
    /// Where settings are read again, at SIGHUP.
    pub settings: Option<Box<dyn Settings>>,
    /// Called once when the server is reached at its addresses.
    pub started: Box<dyn FnOnce(&Server) + Send>,
}

impl<'p> Program<'p> {
    /// One that reads nothing again, and stays in the catalog when it ends.
    #[must_use]
    pub fn new(name: &'p str, stop_limit: Duration) -> Self {
        Self {
            name,
            stop_limit,
            leave_on_terminate: false,
            leave_on_interrupt: false,
            settings: None,
            started: Box::new(|_| {}),
        }
    }

    /// Runs a server until SIGTERM, SIGINT, or a failure.
    ///
    /// # Errors
    ///
    /// When a part of the server cannot start, fails, or does not stop in time.
    pub async fn run(self, config: ServerConfig) -> anyhow::Result<()> {
        if let Err(error) = file_limit::raise() {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
        // Before the server starts, so that no signal ends the process without a stop.
        let mut signals = Signals::new(self.settings.is_some())?;
        let (node, datacenter) = (config.node_name.clone(), config.datacenter.clone());
        let (control, requests) = control::channel();
        let parts = Parts {
            control,
            ..Parts::default()
        };
        let server = Server::start(config, parts)
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
        let ended = until_end(&server, &mut signals, requests, self.settings, leave).await;
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
    /// `None` where it ends the process, as it does by default.
    hangup: Option<Signal>,
}

impl Signals {
    fn new(with_hangup: bool) -> anyhow::Result<Self> {
        let listen = |kind, name| signal(kind).with_context(|| format!("cannot listen for {name}"));
        Ok(Self {
            terminate: listen(SignalKind::terminate(), "SIGTERM")?,
            interrupt: listen(SignalKind::interrupt(), "SIGINT")?,
            hangup: match with_hangup {
                true => Some(listen(SignalKind::hangup(), "SIGHUP")?),
                false => None,
            },
        })
    }
}

async fn hung_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => {
            hangup.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Serves until the program has to end.
async fn until_end(
    server: &Server,
    signals: &mut Signals,
    mut requests: Requests,
    mut settings: Option<Box<dyn Settings>>,
    (on_terminate, on_interrupt): (bool, bool),
) -> anyhow::Result<()> {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return leave_if(server, on_terminate).await,
            _ = signals.interrupt.recv() => return leave_if(server, on_interrupt).await,
            failure = server.failed() => {
                return Err(failure).context("a part of the server failed");
            }
            () = hung_up(&mut signals.hangup) => log(reload(server, &mut settings).await),
            _ = look.tick() => {
                if settings.as_mut().is_some_and(|settings| settings.have_changed()) {
                    log(reload(server, &mut settings).await);
                }
            }
            request = requests.next() => match request {
                Request::Reload(answer) => {
                    let result = reload(server, &mut settings).await;
                    let text = result.as_ref().map(|()| ()).map_err(|error| format!("{error:#}"));
                    log(result);
                    // Who asked may have gone.
                    let _ = answer.send(text);
                }
                Request::Leave(answer) => {
                    let result = server.leave().await;
                    let left = result.is_ok();
                    let _ = answer.send(result.map_err(|error| error.to_string()));
                    if left {
                        return Ok(());
                    }
                }
            },
        }
    }
}

fn log(reloaded: anyhow::Result<()>) {
    match reloaded {
        Ok(()) => tracing::info!("the settings were read again"),
        Err(error) => {
            tracing::error!(
                error = format!("{error:#}"),
                "the settings were not read again"
            );
        }
    }
}

async fn reload(server: &Server, settings: &mut Option<Box<dyn Settings>>) -> anyhow::Result<()> {
    let Some(settings) = settings else {
        anyhow::bail!("this program has its settings from its command line only");
    };
    Ok(server.reload(&settings.read()?).await?)
}

/// Whoever ends the program waits for it, whether its node can leave or not.
async fn leave_if(server: &Server, leaves: bool) -> anyhow::Result<()> {
    if leaves && let Err(error) = server.leave().await {
        tracing::error!(%error, "the node stays in the catalog");
    }
    Ok(())
}

fn at(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "off".to_owned(), |address| address.to_string())
}
