//! Performs what the machine decides, and tells it what came of it.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use legate_api::serverdiscovery::WatchServersResponse;
use legate_model::Secret;
use legate_runtime::{CancellationToken, Scope};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::sync::DropGuard;
use tonic::Status;
use tonic::transport::Channel;

use crate::calls::{self, Watch};
use crate::config::{Addresses, LoginConfig};
use crate::connection::{AuthenticatedChannel, Connection, Token};
use crate::dial::{Dialer, Link};
use crate::error::SessionError;
use crate::machine::{
    Action, Credential, Event, Failure, FailureKind, Features, LOGOUT, Machine, Origin,
};
use crate::metrics::{Metrics, observe};
use crate::resolve::resolve;
use crate::session::{Report, SessionState};

/// How long the tasks of connections may take to end; they only have to notice.
const STOP: Duration = Duration::from_secs(1);

/// Outcome of an operation, with what the driver keeps of it.
enum Outcome {
    Resolved(Result<Vec<SocketAddr>, SessionError>),
    Dialed(Result<Link, Failure>),
    LoggedIn(Result<Token, Failure>),
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
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) state: watch::Sender<SessionState>,
    pub(crate) reports: mpsc::Receiver<Report>,
    pub(crate) close: CancellationToken,
    /// Owns the tasks of connections.
    pub(crate) scope: Scope,
    /// Tells the session's owners that it has ended, also when the driver is dropped.
    pub(crate) ended: DropGuard,
}

/// The driver at work.
struct Running {
    driver: Driver,
    machine: Machine,
    started: Instant,
    operation: Option<Operation>,
    operation_started: Instant,
    dialed: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    watch: Option<Watch>,
    link: Option<Link>,
    generation: Option<u64>,
    closing: bool,
    finished: bool,
}

impl Driver {
    pub(crate) async fn run(
        self,
        machine: Machine,
        stopped: CancellationToken,
    ) -> Result<(), Infallible> {
        let now = Instant::now();
        let mut running = Running {
            driver: self,
            machine,
            started: now,
            operation: None,
            operation_started: now,
            dialed: now,
            timer: None,
            watch: None,
            link: None,
            generation: None,
            closing: false,
            finished: false,
        };
        running.handle(Event::Start);
        while !running.finished {
            let event = running.next(&stopped).await;
            running.handle(event);
        }
        running.link = None;
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
    /// Waits for whatever happens next.
    async fn next(&mut self, stopped: &CancellationToken) -> Event {
        let lost = self.lost();
        let close = self.driver.close.clone();
        tokio::select! {
            biased;
            () = close.cancelled(), if !self.closing => self.begin_closing(),
            () = stopped.cancelled(), if !self.closing => self.begin_closing(),
            outcome = operate(&mut self.operation) => {
                self.operation = None;
                self.absorb(outcome)
            }
            item = follow(&mut self.watch) => self.watched(item),
            () = expire(&mut self.timer) => {
                self.timer = None;
                Event::Timer
            }
            Some(report) = self.driver.reports.recv() => {
                Event::CallFailed { generation: report.generation, failure: report.failure }
            }
            event = lost => event,
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

    /// Keeps what an operation gave, and tells the machine that it did.
    fn absorb(&mut self, outcome: Outcome) -> Event {
        let took = self.operation_started.elapsed();
        let metrics = &self.driver.metrics;
        match outcome {
            Outcome::Resolved(Ok(servers)) => {
                observe(&metrics.discover, took);
                tracing::info!(target: "server-connection-manager", addresses = ?servers, "discovered Consul servers");
                Event::Resolved(Ok(servers))
            }
            Outcome::Resolved(Err(error)) => Event::Resolved(Err(Arc::new(error))),
            Outcome::Dialed(Ok(link)) => {
                self.link = Some(link);
                Event::Dialed(Ok(()))
            }
            Outcome::Dialed(Err(failure)) => Event::Dialed(Err(self.counted(failure))),
            Outcome::LoggedIn(Ok(token)) => {
                observe(&metrics.login, took);
                let accessor = token.accessor().unwrap_or_default();
                tracing::info!(
                    target: "server-connection-manager",
                    accessorID = accessor,
                    "ACL auth method login succeeded"
                );
                if let Some(old) = self.driver.token.replace(token) {
                    self.discard(&old);
                }
                Event::LoggedIn(Ok(()))
            }
            Outcome::LoggedIn(Err(failure)) => {
                tracing::error!(
                    target: "server-connection-manager",
                    error = %failure.error,
                    "ACL auth method login failed"
                );
                Event::LoggedIn(Err(self.counted(failure)))
            }
            Outcome::Features(result) => {
                Event::Features(result.map_err(|failure| self.counted(failure)))
            }
            Outcome::LoggedOut => Event::LoggedOut,
        }
    }

    fn counted(&self, failure: Failure) -> Failure {
        if let Some(code) = failure.error.code() {
            self.driver.metrics.error(code);
        }
        failure
    }

    /// Logs out a token that a new one has replaced, so that it does not stay until it expires.
    fn discard(&self, old: &Token) {
        let (Some(link), Some(login)) = (&self.link, &self.driver.login) else {
            return;
        };
        let logout = calls::logout(
            link.channel.clone(),
            old.secret().clone(),
            login.datacenter.clone(),
        );
        self.driver.scope.spawn("logout of a replaced token", async move {
            // Most often the server has forgotten it already: that is why it was replaced.
            if !matches!(timeout(LOGOUT, logout).await, Ok(Ok(()))) {
                tracing::debug!(target: "server-connection-manager", "a replaced ACL token was not logged out");
            }
            Ok::<_, Infallible>(())
        });
    }

    fn watched(&mut self, item: Option<Result<WatchServersResponse, Status>>) -> Event {
        let status = match item {
            Some(Ok(list)) => return Event::Servers(self.servers(&list)),
            Some(Err(status)) => status,
            None => Status::unavailable("the server ended the stream of server lists"),
        };
        self.watch = None;
        self.driver.metrics.error(status.code());
        let server = self.link.as_ref().map(|link| link.server);
        let server = server.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
        let error = Arc::new(SessionError::call(
            server,
            "the watch of its server list",
            &status,
        ));
        Event::WatchEnded(Failure {
            kind: calls::kind(&status),
            error,
        })
    }

    fn servers(&self, list: &WatchServersResponse) -> Vec<SocketAddr> {
        let mut servers = Vec::with_capacity(list.servers.len());
        for server in &list.servers {
            match server.address.parse::<IpAddr>() {
                Ok(ip) => servers.push(SocketAddr::new(ip, self.driver.port)),
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
        servers
    }

    fn handle(&mut self, event: Event) {
        let now = self.started.elapsed();
        for action in self.machine.handle(now, event) {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Resolve => self.resolve(),
            Action::Dial(server) => self.dial(server),
            Action::Login => self.login(),
            Action::CheckFeatures => self.check_features(),
            Action::CancelOperation => self.operation = None,
            Action::OpenWatch => {
                self.watch = self.channel().map(calls::watch);
            }
            Action::CloseWatch => self.watch = None,
            Action::StartTimer(delay) => {
                tracing::trace!(target: "server-connection-manager", ?delay, "waiting");
                self.timer = Some(Box::pin(sleep(delay)));
            }
            Action::PublishConnected { generation } => self.publish_connected(generation),
            Action::PublishConnecting(error) => {
                tracing::error!(target: "server-connection-manager", %error, "connection error");
                self.publish(SessionState::Connecting {
                    last_error: Some(error),
                });
            }
            Action::PublishFailed(error) => {
                tracing::error!(target: "server-connection-manager", %error, "giving up");
                self.publish(SessionState::Failed(error));
            }
            Action::PublishClosed => self.publish(SessionState::Closed),
            Action::RoundFailed {
                origin: Origin::Configured,
            } => {
                tracing::debug!(target: "server-connection-manager", "no server can be used; backing off");
            }
            Action::RoundFailed {
                origin: Origin::Watch,
            } => tracing::warn!(
                target: "server-connection-manager",
                "none of the servers in the servers' own list can be used; going back to -addresses. If the list \
                 holds addresses that cannot be reached from here, set -server-watch-disabled"
            ),
            Action::Logout(servers) => self.logout(servers),
            Action::Finish => self.finished = true,
        }
    }

    fn begin(&mut self, operation: impl Future<Output = Outcome> + Send + 'static) {
        self.operation_started = Instant::now();
        self.operation = Some(Box::pin(operation));
    }

    fn resolve(&mut self) {
        tracing::info!(target: "server-connection-manager", "trying to connect to a Consul server");
        let (addresses, port) = (Arc::clone(&self.driver.addresses), self.driver.port);
        self.begin(async move { Outcome::Resolved(resolve(&addresses, port).await) });
    }

    fn dial(&mut self, server: SocketAddr) {
        // Users of the connection before keep its channel.
        self.link = None;
        self.dialed = Instant::now();
        let dialer = Arc::clone(&self.driver.dialer);
        self.begin(async move { Outcome::Dialed(dialer.dial(server).await) });
    }

    fn login(&mut self) {
        let (Some(link), Some(login)) = (&self.link, &self.driver.login) else {
            return;
        };
        let login = calls::login(link.server, link.channel.clone(), Arc::clone(login));
        self.begin(async move { Outcome::LoggedIn(login.await) });
    }

    fn check_features(&mut self) {
        let Some((link, channel)) = self.link.as_ref().zip(self.channel()) else {
            return;
        };
        let (server, credential) = (link.server, self.driver.credential);
        let method = self
            .driver
            .login
            .as_ref()
            .map(|login| login.auth_method.clone())
            .unwrap_or_default();
        self.begin(async move {
            Outcome::Features(calls::features(server, channel, credential, method).await)
        });
    }

    fn channel(&self) -> Option<AuthenticatedChannel> {
        let channel = self.link.as_ref()?.channel.clone();
        Some(AuthenticatedChannel::new(
            channel,
            self.driver.token.as_ref(),
        ))
    }

    fn publish_connected(&mut self, generation: u64) {
        let Some(link) = &self.link else { return };
        observe(&self.driver.metrics.connect, self.dialed.elapsed());
        let address = link.server;
        tracing::info!(target: "server-connection-manager", %address, "connected to Consul server");
        let connection = Connection::new(
            generation,
            address,
            link.channel.clone(),
            self.driver.token.as_ref(),
        );
        self.publish(SessionState::Connected(connection));
        self.generation = Some(generation);
    }

    fn publish(&mut self, state: SessionState) {
        self.generation = None;
        self.driver
            .metrics
            .connected(matches!(state, SessionState::Connected(_)));
        self.driver.state.send_replace(state);
    }

    fn logout(&mut self, servers: Vec<SocketAddr>) {
        let token = self.driver.token.take().map(|token| token.secret().clone());
        let (Some(token), Some(login)) = (token, &self.driver.login) else {
            return;
        };
        let datacenter = login.datacenter.clone();
        let channel = self.link.take().map(|link| link.channel);
        let dialer = Arc::clone(&self.driver.dialer);
        self.begin(async move {
            match log_out(channel, &servers, &dialer, token, datacenter).await {
                Ok(()) => tracing::info!(target: "server-connection-manager", "ACL auth method logout succeeded"),
                Err(error) => {
                    tracing::error!(target: "server-connection-manager", error, "ACL auth method logout failed");
                }
            }
            Outcome::LoggedOut
        });
    }
}

/// Logs out at the connection there is, or else at the first server that answers.
async fn log_out(
    channel: Option<Channel>,
    servers: &[SocketAddr],
    dialer: &Dialer,
    token: Secret,
    datacenter: String,
) -> Result<(), String> {
    let mut error = "no server is known".to_owned();
    if let Some(channel) = channel {
        match calls::logout(channel, token.clone(), datacenter.clone()).await {
            Ok(()) => return Ok(()),
            Err(status) => error = crate::error::describe(&status),
        }
    }
    for server in servers {
        let link = match dialer.dial(*server).await {
            Ok(link) => link,
            Err(failure) => {
                error = failure.error.to_string();
                continue;
            }
        };
        match calls::logout(link.channel, token.clone(), datacenter.clone()).await {
            Ok(()) => return Ok(()),
            Err(status) => error = crate::error::describe(&status),
        }
    }
    Err(error)
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
