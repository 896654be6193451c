//! Performs what the machine decides, and returns to it what came of it.
//!
//! It keeps what the machine does not: connections, the token, the watch and the timer. It decides
//! nothing.

mod files;
mod logout;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::{Future, pending, ready};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use legate_api::serverdiscovery::WatchServersResponse;
use legate_runtime::{CancellationToken, Clock, Scope};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::DropGuard;
use tonic::Status;

use self::files::Files;
use self::logout::{Logout, Unwanted};
use crate::addresses::Addresses;
use crate::calls::{self, LoggedIn, Watch};
use crate::config::{LoginConfig, Timing};
use crate::connection::{AuthenticatedChannel, Connection, Token};
use crate::dial::{Dialer, Link};
use crate::error::{ErrorKind, SessionError};
use crate::facts::Facts;
use crate::machine::{Action, Event, Features, Machine};
use crate::metrics::{Metrics, observe};
use crate::resolve::{Found, resolve};
use crate::session::SessionState;

/// How long the tasks of connections may take to end; they only have to notice.
const STOP: Duration = Duration::from_secs(1);

/// What the driver is made of.
pub(crate) struct Parts {
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) port: u16,
    pub(crate) login: Option<Arc<LoginConfig>>,
    pub(crate) token: Option<Token>,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) timing: Timing,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) facts: Arc<Facts>,
    pub(crate) state: watch::Sender<SessionState>,
    pub(crate) reports: mpsc::Receiver<Event>,
    /// Cancelled when the proxy has its configuration.
    pub(crate) configured: CancellationToken,
    pub(crate) close: CancellationToken,
    /// Owns the tasks of connections.
    pub(crate) scope: Scope,
    /// Dropped when the session has ended, or the driver is dropped.
    pub(crate) _ended: DropGuard,
}

/// Outcome of an operation, with what the driver keeps of it.
enum Outcome {
    Resolved(Result<Found, SessionError>),
    Dialed(Result<Link, SessionError>),
    LoggedIn(Result<LoggedIn, SessionError>),
    Features(Result<Features, SessionError>),
    LoggedOut,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

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

struct Driver {
    parts: Parts,
    machine: Machine,
    /// Pending for ever while there is none; so are the timer and the watch.
    operation: BoxFuture<Outcome>,
    operation_started: Instant,
    timer: BoxFuture<()>,
    watch: Watch,
    /// When the connection in use was dialled, until that has been measured.
    dialed: Option<Instant>,
    hosts: Hosts,
    link: Option<Link>,
    /// What is to replace it.
    replacement: Option<Link>,
    unwanted: Unwanted,
    /// The servers' list does not hold the address of the server that sent it.
    detached: bool,
    files: Files,
    /// Of the published connection.
    generation: Option<u64>,
    configured: bool,
    closing: bool,
    finished: bool,
}

/// Runs the session until it is closed or `stopped` is cancelled.
pub(crate) async fn run(
    parts: Parts,
    machine: Machine,
    stopped: CancellationToken,
) -> Result<(), Infallible> {
    let mut driver = Driver::new(parts, machine);
    driver.handle(Event::Start);
    while !driver.finished {
        if let Some(event) = driver.next(&stopped).await {
            driver.handle(event);
        }
    }
    let Driver {
        parts,
        operation,
        watch,
        link,
        replacement,
        ..
    } = driver;
    drop((operation, watch, link, replacement));
    if let Err(error) = parts.scope.stop(STOP).await {
        tracing::debug!(target: "server-connection-manager", %error, "connections did not end by themselves");
    }
    Ok(())
}

impl Driver {
    fn new(parts: Parts, machine: Machine) -> Self {
        let files = Files::new(&parts);
        Self {
            parts,
            machine,
            operation: pending().boxed(),
            operation_started: Instant::now(),
            timer: pending().boxed(),
            watch: stream::pending().boxed(),
            dialed: None,
            hosts: Hosts::default(),
            link: None,
            replacement: None,
            unwanted: Unwanted::default(),
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
        let closed = async {
            tokio::select! {
                () = self.parts.close.cancelled() => {}
                () = stopped.cancelled() => {}
            }
        };
        tokio::select! {
            biased;
            () = closed, if !self.closing => {
                self.closing = true;
                Some(Event::Shutdown)
            }
            () = self.parts.configured.cancelled(), if !self.configured => {
                self.configured = true;
                Some(Event::Configured)
            }
            outcome = &mut self.operation => {
                self.operation = pending().boxed();
                Some(self.absorb(outcome))
            }
            item = self.watch.next() => Some(self.watched(item)),
            () = &mut self.timer => {
                self.timer = pending().boxed();
                Some(Event::Timer)
            }
            Some(report) = self.parts.reports.recv() => Some(report),
            event = lost => Some(event),
            () = self.files.due() => self.files.check(&self.parts),
        }
    }

    /// Resolves when the connection in use is gone.
    fn lost(&self) -> impl Future<Output = Event> + use<> {
        let link = self.generation.zip(self.link.as_ref());
        let link = link.map(|(generation, link)| (generation, link.server, link.lost.clone()));
        async move {
            let Some((generation, server, lost)) = link else {
                return pending().await;
            };
            lost.cancelled().await;
            Event::CallFailed {
                generation,
                error: SessionError::lost(server),
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.parts.facts.started().elapsed();
        for action in self.machine.handle(now, event) {
            self.perform(action);
        }
        self.parts.facts.update(self.machine.view());
    }
}

/// From the machine's actions to operations, timers and what the session publishes.
impl Driver {
    fn perform(&mut self, action: Action) {
        match action {
            Action::Resolve => self.resolve(),
            Action::Dial(server) => {
                // Users of the connection before keep its channel.
                self.link = None;
                self.dialed = Some(Instant::now());
                self.dial(server);
            }
            Action::DialReplacement(server) => self.dial(server),
            Action::Login => self.login(),
            Action::CheckFeatures => self.check_features(),
            Action::Adopt => self.link = self.replacement.take(),
            Action::Abandon => self.replacement = None,
            Action::CancelOperation => self.operation = pending().boxed(),
            Action::OpenWatch => {
                if let Some(link) = &self.link {
                    self.watch = calls::watch(self.authenticated(link));
                }
            }
            Action::CloseWatch => self.watch = stream::pending().boxed(),
            Action::StartTimer(delay) => {
                tracing::trace!(target: "server-connection-manager", ?delay, "waiting");
                self.timer = sleep(delay).boxed();
            }
            Action::PublishConnected { generation } => self.publish_connected(generation),
            Action::PublishConnecting(error) => {
                tracing::error!(target: "server-connection-manager", %error, "connection error");
                self.parts.facts.failed(&error);
                let last_error = Some(error);
                self.publish(SessionState::Connecting { last_error });
            }
            Action::PublishFailed(error) => {
                tracing::error!(target: "server-connection-manager", %error, "giving up");
                self.parts.facts.failed(&error);
                self.publish(SessionState::Failed(error));
            }
            Action::PublishClosed => self.publish(SessionState::Closed),
            Action::RoundFailed { list_misleads } => round_failed(list_misleads),
            Action::ReplacementFailed(error) => {
                tracing::warn!(
                    target: "server-connection-manager",
                    %error,
                    "the connection could not be replaced after its TLS files have changed; going on with \
                     the present one"
                );
                self.parts.facts.failed(&error);
            }
            Action::Logout(servers) => self.log_out(servers),
            Action::Finish => self.finished = true,
        }
    }

    fn begin(&mut self, operation: impl Future<Output = Outcome> + Send + 'static) {
        self.operation_started = Instant::now();
        self.operation = operation.boxed();
    }

    fn resolve(&mut self) {
        tracing::info!(target: "server-connection-manager", "trying to connect to a Consul server");
        let (addresses, port) = (Arc::clone(&self.parts.addresses), self.parts.port);
        self.begin(async move { Outcome::Resolved(resolve(&addresses, port).await) });
    }

    fn dial(&mut self, server: SocketAddr) {
        let dialer = Arc::clone(&self.parts.dialer);
        let host = self.hosts.of(server);
        self.begin(async move { Outcome::Dialed(dialer.dial(server, host.as_deref()).await) });
    }

    fn login(&mut self) {
        let (Some(link), Some(login)) = (&self.link, &self.parts.login) else {
            return self.begin(ready(Outcome::LoggedIn(Err(no_connection()))));
        };
        let login = calls::login(link.clone(), Arc::clone(login), Clock::system().now());
        self.begin(login.map(Outcome::LoggedIn));
    }

    fn check_features(&mut self) {
        let Some(link) = self.replacement.as_ref().or(self.link.as_ref()) else {
            return self.begin(ready(Outcome::Features(Err(no_connection()))));
        };
        let check = calls::features(
            link.clone(),
            self.parts.token.clone(),
            self.parts.login.clone(),
            self.parts.timing.answer,
        );
        self.begin(check.map(Outcome::Features));
    }

    fn log_out(&mut self, servers: Vec<SocketAddr>) {
        let Some(login) = &self.parts.login else {
            return;
        };
        self.parts.facts.token(None);
        if let Some(token) = self.parts.token.take() {
            self.unwanted.add(&token);
        }
        let logout = Logout::new(&mut self.unwanted, login);
        let channel = self.link.take().map(|link| link.channel);
        let servers = servers.into_iter();
        let servers = servers.map(|server| (server, self.hosts.of(server)));
        let servers = servers.collect();
        let dialer = Arc::clone(&self.parts.dialer);
        self.begin(async move {
            logout.at_the_end(channel, servers, &dialer).await;
            Outcome::LoggedOut
        });
    }

    /// Logs out replaced tokens, unless the connection is gone too.
    fn log_out_replaced(&mut self) {
        let (Some(link), Some(login)) = (&self.link, &self.parts.login) else {
            return;
        };
        if !self.unwanted.is_empty() && !link.lost.is_cancelled() {
            let logout = Logout::new(&mut self.unwanted, login);
            let logout = logout.of_replaced(link.channel.clone());
            self.parts.scope.spawn("logout of a replaced token", logout);
        }
    }

    /// The link's channel with the token in use.
    fn authenticated(&self, link: &Link) -> AuthenticatedChannel {
        AuthenticatedChannel::new(link.channel.clone(), self.parts.token.as_ref())
    }

    fn publish_connected(&mut self, generation: u64) {
        let Some(link) = &self.link else { return };
        if let Some(dialed) = self.dialed.take() {
            observe(&self.parts.metrics.connect, dialed.elapsed());
        }
        let address = link.server;
        tracing::info!(target: "server-connection-manager", %address, "connected to Consul server");
        let token = self.parts.token.as_ref();
        let connection = Connection::new(generation, address, link.channel.clone(), token);
        self.publish(SessionState::Connected(connection));
        self.generation = Some(generation);
        self.log_out_replaced();
    }

    fn publish(&mut self, state: SessionState) {
        self.generation = None;
        let connected = matches!(state, SessionState::Connected(_));
        self.parts.metrics.connected(connected);
        self.parts.state.send_replace(state);
    }
}

/// From what happened to events: keeps what the driver needs of it, counts and logs.
impl Driver {
    fn absorb(&mut self, outcome: Outcome) -> Event {
        match outcome {
            Outcome::Resolved(result) => self.resolved(result),
            Outcome::Dialed(result) => Event::Dialed(self.dialed(result)),
            Outcome::LoggedIn(result) => Event::LoggedIn(self.logged_in(result)),
            Outcome::Features(result) => {
                if result.is_ok() {
                    self.parts.facts.heard();
                }
                Event::Features(result.map_err(|error| self.counted(error)))
            }
            Outcome::LoggedOut => Event::LoggedOut,
        }
    }

    fn resolved(&mut self, result: Result<Found, SessionError>) -> Event {
        let found = match result {
            Ok(found) => found,
            Err(error) => return Event::Resolved(Err(error)),
        };
        let duration = self.operation_started.elapsed();
        observe(&self.parts.metrics.discover, duration);
        let servers: Vec<SocketAddr> = found.keys().copied().collect();
        tracing::info!(target: "server-connection-manager", addresses = ?servers, "discovered Consul servers");
        self.hosts.found = found;
        Event::Resolved(Ok(servers))
    }

    fn dialed(&mut self, result: Result<Link, SessionError>) -> Result<(), SessionError> {
        let link = result.map_err(|error| self.counted(error))?;
        if let Some(tls) = &self.parts.dialer.tls {
            let expires = tls.certificate_expires();
            self.parts.facts.client_certificate_expires(expires);
        }
        if self.link.is_some() {
            self.replacement = Some(link);
        } else {
            self.hosts.current = self.hosts.of(link.server);
            self.link = Some(link);
        }
        Ok(())
    }

    fn logged_in(&mut self, result: Result<LoggedIn, SessionError>) -> Result<(), SessionError> {
        let login = result.map_err(|error| {
            tracing::error!(
                target: "server-connection-manager",
                %error,
                "ACL auth method login failed"
            );
            self.counted(error)
        })?;
        let metrics = &self.parts.metrics;
        observe(&metrics.login, self.operation_started.elapsed());
        metrics.logins.inc();
        self.parts.facts.logged_in(login.bearer_expires);
        let accessor = login.token.accessor();
        tracing::info!(
            target: "server-connection-manager",
            accessorID = accessor.as_deref().unwrap_or_default(),
            "ACL auth method login succeeded"
        );
        self.parts.facts.token(Some((accessor, Instant::now())));
        if let Some(old) = self.parts.token.replace(login.token) {
            self.unwanted.add(&old);
            self.log_out_replaced();
        }
        Ok(())
    }

    fn counted(&self, error: SessionError) -> SessionError {
        if let Some(code) = error.code {
            self.parts.metrics.error(code);
        }
        error
    }

    fn watched(&mut self, item: Option<Result<WatchServersResponse, Status>>) -> Event {
        let status = match item {
            Some(Ok(list)) => {
                self.parts.facts.heard();
                return Event::Servers(self.listed(&list));
            }
            Some(Err(status)) => status,
            None => Status::unavailable("the server ended the stream of server lists"),
        };
        self.watch = stream::pending().boxed();
        self.parts.metrics.error(status.code());
        let ended =
            |link: &Link| SessionError::call(link.server, "the watch of its server list", &status);
        Event::WatchEnded(self.link.as_ref().map_or_else(no_connection, ended))
    }

    fn listed(&mut self, list: &WatchServersResponse) -> Vec<SocketAddr> {
        let mut servers = Vec::with_capacity(list.servers.len());
        for server in &list.servers {
            match server.address.parse::<IpAddr>() {
                Ok(ip) => servers.push(SocketAddr::new(ip, self.parts.port)),
                Err(_) => tracing::warn!(
                    target: "server-connection-manager",
                    address = server.address,
                    "failed to parse server address from server watch stream; ignoring address"
                ),
            }
        }
        tracing::info!(
            target: "server-connection-manager",
            addresses = ?servers,
            "updated known Consul servers from watch stream"
        );
        let sender = self.link.as_ref().map(|link| link.server);
        let detached =
            sender.is_some_and(|sender| !servers.is_empty() && !servers.contains(&sender));
        if detached && !self.detached {
            tracing::info!(
                target: "server-connection-manager",
                server = ?sender,
                "the servers' list does not hold the address that led to this server, as behind a load \
                 balancer; the addresses of -addresses come first"
            );
        }
        self.detached = detached;
        servers
    }
}

/// What an operation fails with that needs a connection where there is none: the machine must not
/// wait for an outcome that never comes.
fn no_connection() -> SessionError {
    SessionError::new(ErrorKind::Server, None, "there is no connection")
}

fn round_failed(list_misleads: bool) {
    if list_misleads {
        tracing::warn!(
            target: "server-connection-manager",
            "none of the servers in the servers' own list can be used; going back to -addresses. If the list \
             holds addresses that cannot be reached from here, set -server-watch-disabled"
        );
    } else {
        tracing::debug!(target: "server-connection-manager", "no server can be used; backing off");
    }
}
