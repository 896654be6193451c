//! Performs what the machine decides, and tells it what came of it.

mod absorb;
mod files;
mod logout;
mod perform;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use legate_api::serverdiscovery::WatchServersResponse;
use legate_model::Secret;
use legate_runtime::{CancellationToken, Clock, Scope};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::DropGuard;
use tonic::Status;

use self::files::Files;
use crate::addresses::Addresses;
use crate::calls::{LoggedIn, Watch};
use crate::config::{LoginConfig, Timing};
use crate::connection::Token;
use crate::dial::{Dialer, Link};
use crate::error::SessionError;
use crate::facts::Facts;
use crate::machine::{Credential, Event, Failure, FailureKind, Features, Machine};
use crate::metrics::Metrics;
use crate::resolve::Found;
use crate::session::{Report, SessionState};

/// How long the tasks of connections may take to end; they only have to notice.
const STOP: Duration = Duration::from_secs(1);

/// Outcome of an operation, with what the driver keeps of it.
enum Outcome {
    Resolved(Result<Found, SessionError>),
    Dialed(Result<Link, Failure>),
    LoggedIn(Result<LoggedIn, Failure>),
    Features(Result<Features, Failure>),
    LoggedOut,
}

type Operation = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What the driver is told once.
pub(crate) struct Driver {
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) port: u16,
    pub(crate) credential: Credential,
    pub(crate) login: Option<Arc<LoginConfig>>,
    pub(crate) token: Option<Token>,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) timing: Timing,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) facts: Arc<Facts>,
    pub(crate) state: watch::Sender<SessionState>,
    pub(crate) reports: mpsc::Receiver<Report>,
    /// Cancelled when the proxy has its configuration.
    pub(crate) configured: CancellationToken,
    pub(crate) close: CancellationToken,
    /// Owns the tasks of connections.
    pub(crate) scope: Scope,
    /// Tells the session's owners that it has ended, also when the driver is dropped.
    pub(crate) ended: DropGuard,
}

/// Which host led to which server.
#[derive(Default)]
struct Hosts {
    found: Found,
    /// The host of the server in use. Servers that its list names are taken to have it as well.
    current: Option<Arc<str>>,
}

impl Hosts {
    fn of(&self, server: SocketAddr) -> Option<Arc<str>> {
        let found = self.found.get(&server).cloned().flatten();
        found.or_else(|| self.current.clone())
    }
}

/// The driver at work.
struct Running {
    driver: Driver,
    machine: Machine,
    operation: Option<Operation>,
    operation_started: Instant,
    /// When the connection in use was dialled, until that has been measured.
    dialed: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    watch: Option<Watch>,
    hosts: Hosts,
    link: Option<Link>,
    /// What is to replace it.
    replacement: Option<Link>,
    /// Tokens to log out at the next opportunity.
    unwanted: Vec<Secret>,
    /// The servers' list does not hold the server that sent it; told once.
    detached: bool,
    files: Files,
    generation: Option<u64>,
    configured: bool,
    closing: bool,
    finished: bool,
}

impl Driver {
    pub(crate) async fn run(
        self,
        machine: Machine,
        stopped: CancellationToken,
    ) -> Result<(), Infallible> {
        let mut running = Running::new(self, machine);
        running.handle(Event::Start);
        while !running.finished {
            if let Some(event) = running.next(&stopped).await {
                running.handle(event);
            }
        }
        (running.link, running.replacement) = (None, None);
        let Driver {
            scope,
            state,
            ended,
            ..
        } = running.driver;
        if let Err(error) = scope.stop(STOP).await {
            tracing::debug!(target: "server-connection-manager", %error, "connections did not end by themselves");
        }
        drop((state, ended));
        Ok(())
    }
}

impl Running {
    fn new(driver: Driver, machine: Machine) -> Self {
        let now = Instant::now();
        let files = Files::new(&driver);
        Self {
            driver,
            machine,
            operation: None,
            operation_started: now,
            dialed: None,
            timer: None,
            watch: None,
            hosts: Hosts::default(),
            link: None,
            replacement: None,
            unwanted: Vec::new(),
            detached: false,
            files,
            generation: None,
            configured: false,
            closing: false,
            finished: false,
        }
    }

    /// Waits for whatever happens next; `None` when that is nothing to the machine.
    async fn next(&mut self, stopped: &CancellationToken) -> Option<Event> {
        let lost = self.lost();
        let close = self.driver.close.clone();
        let configured = self.driver.configured.clone();
        tokio::select! {
            biased;
            () = close.cancelled(), if !self.closing => Some(self.begin_closing()),
            () = stopped.cancelled(), if !self.closing => Some(self.begin_closing()),
            () = configured.cancelled(), if !self.configured => {
                self.configured = true;
                Some(Event::Configured)
            }
            outcome = operate(&mut self.operation) => {
                self.operation = None;
                Some(self.absorb(outcome))
            }
            item = follow(&mut self.watch) => Some(self.watched(item)),
            () = expire(&mut self.timer) => {
                self.timer = None;
                Some(Event::Timer)
            }
            Some(report) = self.driver.reports.recv() => {
                Some(Event::CallFailed { generation: report.generation, failure: report.failure })
            }
            event = lost => Some(event),
            () = self.files.due() => self.files.look(&self.driver),
        }
    }

    fn begin_closing(&mut self) -> Event {
        self.closing = true;
        Event::Shutdown
    }

    /// Resolves when the connection in use is gone.
    fn lost(&self) -> impl Future<Output = Event> + use<> {
        let current = self.generation.zip(self.link.as_ref());
        let watched =
            current.map(|(generation, link)| (generation, link.server, link.lost.clone()));
        async move {
            match watched {
                Some((generation, server, lost)) => {
                    lost.cancelled().await;
                    let error = Arc::new(SessionError::Lost { server });
                    Event::CallFailed {
                        generation,
                        failure: Failure {
                            kind: FailureKind::Server,
                            error,
                        },
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.driver.facts.started().elapsed();
        for action in self.machine.handle(now, event) {
            self.perform(action);
        }
        self.driver.facts.stands(self.machine.view());
    }
}

async fn operate(operation: &mut Option<Operation>) -> Outcome {
    match operation {
        Some(operation) => operation.await,
        None => std::future::pending().await,
    }
}

async fn follow(watch: &mut Option<Watch>) -> Option<Result<WatchServersResponse, Status>> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

async fn expire(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}
