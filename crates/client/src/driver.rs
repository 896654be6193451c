//! Performs the machine's actions and feeds back their results.
//!
//! Holds what the machine does not: connections, the token, the watch and the timer. It makes no
//! decisions.

mod files;
mod logout;
mod outage;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use legate_api::serverdiscovery::WatchServersResponse;
use legate_model::Secret;
use legate_runtime::file_stamp::FileStamp;
use legate_runtime::metrics::Registry;
use legate_runtime::{CancellationToken, Clock, Scope, Spawner};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep};
use tonic::Status;

use self::outage::Outage;
use crate::addresses::Addresses;
use crate::bearer;
use crate::calls::{self, LoggedIn, Watch};
use crate::config::{ClientConfig, ConfigError, Credentials, LoginConfig};
use crate::connection::{Connection, Token, authenticated};
use crate::dial::{Dialer, Link};
use crate::error::{ErrorKind, SessionError};
use crate::machine::{Action, Event, Machine, Settings, State};
use crate::metrics::{Metrics, observe};
use crate::resolve::{ResolvedServers, resolve};
use crate::session::{REPORTS, Session, SessionState};
use crate::snapshot::SessionSnapshot;
use crate::tls::Tls;

/// Time limit for the tasks of connections to end.
const STOP: Duration = Duration::from_secs(1);

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Stores the result of an operation in the driver, and converts it to an event.
type Absorb = Box<dyn FnOnce(&mut Driver) -> Event + Send>;

/// The host that resolved to each server.
#[derive(Default)]
struct Hosts {
    found: ResolvedServers,
    /// The host of the server in use. It is also used for servers in that server's list.
    current: Option<Arc<str>>,
}

impl Hosts {
    fn of(&self, server: SocketAddr) -> Option<Arc<str>> {
        let found = self.found.get(&server).cloned().flatten();
        found.or_else(|| self.current.clone())
    }
}

pub(crate) struct Driver {
    addresses: Arc<Addresses>,
    port: u16,
    login: Option<Arc<LoginConfig>>,
    dialer: Arc<Dialer>,
    /// Time limit of a feature check.
    answer: Duration,
    metrics: Arc<Metrics>,
    snapshot: watch::Sender<SessionSnapshot>,
    state: watch::Sender<SessionState>,
    reports: mpsc::Receiver<Event>,
    /// Cancelled when the proxy has its configuration.
    configured: CancellationToken,
    /// Cancelled to end the session.
    close: CancellationToken,
    /// Owns the tasks of connections.
    scope: Scope,
    machine: Machine,
    started: Instant,
    /// The pending operation. Never completes if there is none; the same holds for the timer and
    /// the watch.
    operation: BoxFuture<Absorb>,
    operation_started: Instant,
    timer: BoxFuture<()>,
    watch: Watch,
    /// When the connection in use was dialled; `None` once its duration has been recorded.
    dialed: Option<Instant>,
    hosts: Hosts,
    token: Option<Token>,
    link: Option<Link>,
    /// The replacement for `link` that is being prepared.
    replacement: Option<Link>,
    /// Replaced tokens to log out when possible, so that they do not remain until they expire.
    unwanted: Vec<Secret>,
    /// Whether the servers' list lacks the address of the server that sent it.
    detached: bool,
    /// Schedule of file checks.
    files: Interval,
    /// Stamp of the bearer token's file at the last check.
    bearer: Option<FileStamp>,
    outage: Outage,
}

impl Driver {
    /// Creates a session that has not started yet, and its handle. It ends with the spawner's
    /// scope.
    pub(crate) fn new(
        config: ClientConfig,
        spawner: &Spawner,
        registry: &Registry,
    ) -> Result<(Self, Session), ConfigError> {
        let tls = match &config.tls {
            None => None,
            Some(tls) => Some(Tls::new(tls.options(), config.server_name(tls)?)?),
        };
        let (token, login) = match config.credentials {
            Credentials::Login(login) => (None, Some(Arc::new(login))),
            Credentials::Static(secret) if !secret.expose().is_empty() => {
                let token = Token::new(secret, None).ok_or(ConfigError::Token)?;
                (Some(token), None)
            }
            Credentials::Static(_) | Credentials::None => (None, None),
        };
        let metrics = Arc::new(Metrics::new(registry)?);
        let settings = Settings {
            watch: !config.server_watch_disabled,
            login: login.is_some(),
            silence: config.timing.silence,
            spread: config.timing.files / 3,
        };
        // Connections must outlive the token of the caller's scope for the logout.
        let scope = spawner.child_with_own_token("server connections");
        let dialer = Dialer {
            tls,
            proxy: config.proxy,
            spawner: scope.spawner(),
        };
        let snapshot = watch::Sender::new(SessionSnapshot::default());
        let (state, states) = watch::channel(SessionState::Connecting { last_error: None });
        let (reports, reported) = mpsc::channel(REPORTS);
        let (configured, close) = (CancellationToken::new(), spawner.token().child_token());
        let session = Session {
            state: states,
            reports,
            configured: configured.clone(),
            close: close.clone(),
            metrics: Arc::clone(&metrics),
            snapshot: snapshot.clone(),
        };
        // An interval must not be zero.
        let period = config.timing.files.max(Duration::from_millis(1));
        let mut files = interval_at(Instant::now() + period, period);
        files.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let driver = Self {
            addresses: Arc::new(config.addresses),
            port: config.grpc_port,
            bearer: login.as_ref().map(|login| bearer::stamp(&login.bearer)),
            login,
            dialer: Arc::new(dialer),
            answer: config.timing.answer,
            metrics,
            snapshot,
            state,
            reports: reported,
            configured,
            close,
            scope,
            machine: Machine::new(settings, Box::new(rand::random::<f64>)),
            started: Instant::now(),
            operation: pending().boxed(),
            operation_started: Instant::now(),
            timer: pending().boxed(),
            watch: stream::pending().boxed(),
            dialed: None,
            hosts: Hosts::default(),
            token,
            link: None,
            replacement: None,
            unwanted: Vec::new(),
            detached: false,
            files,
            outage: Outage::default(),
        };
        Ok((driver, session))
    }

    /// Runs the session until it ends.
    pub(crate) async fn run(mut self) -> Result<(), Infallible> {
        self.handle(Event::Start);
        while self.machine.state != State::Closed {
            if let Some(event) = self.next().await {
                self.handle(event);
            }
        }
        let Self {
            scope,
            operation,
            watch,
            link,
            replacement,
            ..
        } = self;
        drop((operation, watch, link, replacement));
        if let Err(error) = scope.stop(STOP).await {
            tracing::debug!(target: "server-connection-manager", %error, "connections did not end by themselves");
        }
        Ok(())
    }

    /// Waits for the next event; `None` if it is irrelevant to the machine.
    async fn next(&mut self) -> Option<Event> {
        let used = self.link.as_ref();
        let used = used.filter(|_| matches!(self.machine.state, State::Connected { .. }));
        let lost = async {
            match used {
                Some(link) => {
                    link.lost.cancelled().await;
                    link.server
                }
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            // Each of these two tokens is handled once.
            () = self.close.cancelled() => {
                self.close = CancellationToken::new();
                Some(Event::Shutdown)
            }
            () = self.configured.cancelled() => {
                self.configured = CancellationToken::new();
                Some(Event::Configured)
            }
            absorb = &mut self.operation => {
                self.operation = pending().boxed();
                Some(absorb(self))
            }
            item = self.watch.next() => Some(self.watched(item)),
            () = &mut self.timer => {
                self.timer = pending().boxed();
                Some(Event::Timer)
            }
            Some(report) = self.reports.recv() => Some(report),
            server = lost => Some(Event::CallFailed {
                generation: self.machine.generation,
                error: SessionError::lost(server),
            }),
            _ = self.files.tick() => self.changed_files(),
        }
    }

    fn handle(&mut self, event: Event) {
        for action in self.machine.handle(self.started.elapsed(), event) {
            self.perform(action);
        }
        let (machine, started) = (&self.machine, self.started);
        self.snapshot
            .send_modify(|snapshot| snapshot.follow(machine, started));
    }
}

/// Actions of the machine: operations, timers and published states.
impl Driver {
    fn perform(&mut self, action: Action) {
        match action {
            Action::Resolve => self.resolve(),
            Action::Dial(server) => {
                // Users of the previous connection keep its channel.
                self.link = None;
                self.dialed = Some(Instant::now());
                self.dial(server);
            }
            Action::DialReplacement(server) => {
                self.watch = stream::pending().boxed();
                self.dial(server);
            }
            Action::Login => self.log_in(),
            Action::CheckFeatures => self.check_features(),
            Action::OpenWatch => {
                if let Some(link) = &self.link {
                    let channel = authenticated(link.channel.clone(), self.token.as_ref());
                    self.watch = calls::watch(channel);
                }
            }
            Action::StartTimer(delay) => {
                tracing::trace!(target: "server-connection-manager", ?delay, "waiting");
                self.timer = sleep(delay).boxed();
            }
            Action::PublishConnected { generation } => self.publish_connected(generation),
            Action::PublishConnecting(error) => {
                if self.outage.is_worth_a_line(&error, Instant::now()) {
                    tracing::error!(target: "server-connection-manager", %error, "connection error");
                }
                self.operation = pending().boxed();
                self.failed(&error);
                let last_error = Some(error);
                self.publish(SessionState::Connecting { last_error });
            }
            Action::PublishFailed(error) => {
                tracing::error!(target: "server-connection-manager", %error, "giving up");
                self.failed(&error);
                self.publish(SessionState::Failed(error));
            }
            Action::PublishClosed => self.publish(SessionState::Closed),
            Action::RoundFailed { list_misleads } => round_failed(list_misleads),
            Action::ReplacementFailed(error) => {
                tracing::warn!(
                    target: "server-connection-manager",
                    %error,
                    "the connection could not be replaced after its TLS files have changed; the present \
                     one stays in use"
                );
                self.replacement = None;
                self.failed(&error);
            }
            Action::Logout(servers) => self.log_out(servers),
        }
    }

    fn publish_connected(&mut self, generation: u64) {
        self.link = self.replacement.take().or_else(|| self.link.take());
        let Some(link) = &self.link else { return };
        if let Some(dialed) = self.dialed.take() {
            observe(&self.metrics.connect, dialed.elapsed());
        }
        let address = link.server;
        self.outage.end();
        tracing::info!(target: "server-connection-manager", %address, "connected to Consul server");
        let token = self.token.as_ref();
        let connection = Connection::new(generation, address, link.channel.clone(), token);
        self.metrics.connected(true);
        self.state.send_replace(SessionState::Connected(connection));
        self.log_out_replaced();
    }

    /// Publishes a state without a connection in use.
    fn publish(&mut self, state: SessionState) {
        self.watch = stream::pending().boxed();
        self.replacement = None;
        self.metrics.connected(false);
        self.state.send_replace(state);
    }

    fn failed(&self, error: &SessionError) {
        self.snapshot.send_modify(|snapshot| snapshot.failed(error));
    }
}

/// Operations, and recording of their results.
impl Driver {
    /// Starts an operation in place of the previous one; `absorb` converts its result to an event.
    fn begin<T: Send + 'static>(
        &mut self,
        operation: impl Future<Output = T> + Send + 'static,
        absorb: impl FnOnce(&mut Self, T) -> Event + Send + 'static,
    ) {
        self.operation_started = Instant::now();
        let operation = operation
            .map(|result| -> Absorb { Box::new(move |driver: &mut Self| absorb(driver, result)) });
        self.operation = operation.boxed();
    }

    fn resolve(&mut self) {
        if !self.outage.goes_on() {
            tracing::info!(target: "server-connection-manager", "trying to connect to a Consul server");
        }
        let (addresses, port) = (Arc::clone(&self.addresses), self.port);
        let found = async move { resolve(&addresses, port).await };
        self.begin(found, |driver, found| {
            Event::Resolved(found.map(|found| driver.resolved(found)))
        });
    }

    fn resolved(&mut self, found: ResolvedServers) -> Vec<SocketAddr> {
        observe(&self.metrics.discover, self.operation_started.elapsed());
        let servers: Vec<SocketAddr> = found.keys().copied().collect();
        if !self.outage.goes_on() {
            tracing::info!(target: "server-connection-manager", addresses = ?servers, "discovered Consul servers");
        }
        self.hosts.found = found;
        servers
    }

    fn dial(&mut self, server: SocketAddr) {
        let (dialer, host) = (Arc::clone(&self.dialer), self.hosts.of(server));
        let link = async move { dialer.dial(server, host.as_deref()).await };
        self.begin(link, |driver, link| {
            Event::Dialed(driver.counted(link).map(|link| driver.dialed(link)))
        });
    }

    fn dialed(&mut self, link: Link) {
        if let Some(tls) = &self.dialer.tls {
            let expires = tls.certificate_expires();
            self.snapshot
                .send_modify(|snapshot| snapshot.client_certificate_expires = expires);
        }
        if self.link.is_some() {
            self.replacement = Some(link);
        } else {
            self.hosts.current = self.hosts.of(link.server);
            self.link = Some(link);
        }
    }

    fn log_in(&mut self) {
        let parts = self.link.clone().zip(self.login.clone());
        let login = async move {
            let (link, login) = parts.ok_or_else(no_connection)?;
            calls::login(link, login, Clock::system().now()).await
        };
        self.begin(login, |driver, login| {
            let login = driver.counted(login).inspect_err(|error| {
                tracing::error!(
                    target: "server-connection-manager",
                    %error,
                    "ACL auth method login failed"
                );
            });
            Event::LoggedIn(login.map(|login| driver.logged_in(login)))
        });
    }

    fn logged_in(&mut self, login: LoggedIn) {
        observe(&self.metrics.login, self.operation_started.elapsed());
        self.metrics.logins.inc();
        let accessor = login.token.accessor.clone();
        tracing::info!(
            target: "server-connection-manager",
            accessorID = accessor.as_deref().unwrap_or_default(),
            "ACL auth method login succeeded"
        );
        self.snapshot.send_modify(|snapshot| {
            snapshot.logins += 1;
            snapshot.bearer_expires = login.bearer_expires;
            snapshot.accessor_id = accessor;
            snapshot.token_since = Some(Instant::now());
        });
        if let Some(old) = self.token.replace(login.token) {
            self.discard(old);
            self.log_out_replaced();
        }
    }

    fn check_features(&mut self) {
        let link = self.replacement.clone().or_else(|| self.link.clone());
        let (token, login, answer) = (self.token.clone(), self.login.clone(), self.answer);
        let features = async move {
            let link = link.ok_or_else(no_connection)?;
            calls::features(link, token, login, answer).await
        };
        self.begin(features, |driver, features| {
            Event::Features(driver.counted(features).inspect(|_| driver.heard()))
        });
    }

    fn counted<T>(&self, result: Result<T, SessionError>) -> Result<T, SessionError> {
        if let Some(code) = result.as_ref().err().and_then(|error| error.code) {
            self.metrics.error(code);
        }
        result
    }

    fn heard(&self) {
        let now = Instant::now();
        self.snapshot
            .send_modify(|snapshot| snapshot.heard = Some(now));
    }
}

/// The server list.
impl Driver {
    fn watched(&mut self, item: Option<Result<WatchServersResponse, Status>>) -> Event {
        let status = match item {
            Some(Ok(list)) => {
                self.heard();
                return Event::Servers(self.listed(&list));
            }
            Some(Err(status)) => status,
            None => Status::unavailable("the server ended the stream of server lists"),
        };
        self.watch = stream::pending().boxed();
        self.metrics.error(status.code());
        let ended =
            |link: &Link| SessionError::call(link.server, "the watch of its server list", &status);
        Event::WatchEnded(self.link.as_ref().map_or_else(no_connection, ended))
    }

    fn listed(&mut self, list: &WatchServersResponse) -> Vec<SocketAddr> {
        let mut servers = Vec::with_capacity(list.servers.len());
        for server in &list.servers {
            match server.address.parse::<IpAddr>() {
                Ok(ip) => servers.push(SocketAddr::new(ip, self.port)),
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
                "the servers' list lacks the address that led to this server, as behind a load \
                 balancer; the addresses of -addresses come first"
            );
        }
        self.detached = detached;
        servers
    }
}

/// Error of an operation that requires a connection if there is none. Failing is necessary: the
/// machine waits for the result.
fn no_connection() -> SessionError {
    SessionError::new(ErrorKind::Server, None, "there is no connection")
}

fn round_failed(list_misleads: bool) {
    if list_misleads {
        tracing::warn!(
            target: "server-connection-manager",
            "none of the servers in the servers' own list can be used; falling back to -addresses. If the list \
             contains addresses that cannot be reached from here, set -server-watch-disabled"
        );
    } else {
        tracing::debug!(target: "server-connection-manager", "no server can be used; backing off");
    }
}
