//! From the machine's actions to operations, timers and what the session publishes.

use std::future::{Future, ready};
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::{Outcome, Running};
use crate::calls::{self, FeatureCheck};
use crate::connection::{AuthenticatedChannel, Connection};
use crate::dial::Link;
use crate::error::SessionError;
use crate::facts::Stage;
use crate::machine::{Action, Failure, FailureKind};
use crate::metrics::observe;
use crate::resolve::resolve;
use crate::session::SessionState;

impl Running {
    pub(super) fn perform(&mut self, action: Action) {
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
            Action::CancelOperation => self.operation = None,
            Action::OpenWatch => {
                let link = self.link.as_ref();
                self.watch = link.map(|link| calls::watch(self.authenticated(link)));
            }
            Action::CloseWatch => self.watch = None,
            Action::StartTimer(delay) => {
                tracing::trace!(target: "server-connection-manager", ?delay, "waiting");
                self.timer = Some(Box::pin(sleep(delay)));
            }
            Action::PublishConnected { generation } => self.publish_connected(generation),
            Action::PublishConnecting(error) => {
                tracing::error!(target: "server-connection-manager", %error, "connection error");
                self.driver.facts.failed(&error);
                self.publish(SessionState::Connecting {
                    last_error: Some(error),
                });
            }
            Action::PublishFailed(error) => {
                tracing::error!(target: "server-connection-manager", %error, "giving up");
                self.driver.facts.failed(&error);
                self.publish(SessionState::Failed(error));
            }
            Action::PublishClosed => self.publish(SessionState::Closed),
            Action::RoundFailed { list_misleads } => round_failed(list_misleads),
            Action::ReplacementFailed(error) => self.replacement_failed(&error),
            Action::Logout(servers) => self.logout(servers),
            Action::Finish => self.finished = true,
        }
    }

    pub(super) fn begin(&mut self, operation: impl Future<Output = Outcome> + Send + 'static) {
        self.operation_started = Instant::now();
        self.operation = Some(Box::pin(operation));
    }

    fn resolve(&mut self) {
        tracing::info!(target: "server-connection-manager", "trying to connect to a Consul server");
        let (addresses, port) = (Arc::clone(&self.driver.addresses), self.driver.port);
        self.begin(async move { Outcome::Resolved(resolve(&addresses, port).await) });
    }

    fn dial(&mut self, server: SocketAddr) {
        let dialer = Arc::clone(&self.driver.dialer);
        let host = self.hosts.of(server);
        self.begin(async move { Outcome::Dialed(dialer.dial(server, host.as_deref()).await) });
    }

    fn login(&mut self) {
        let (Some(link), Some(login)) = (&self.link, &self.driver.login) else {
            let failure = self.no_connection();
            return self.begin(ready(Outcome::LoggedIn(Err(failure))));
        };
        let now = self.driver.clock.now();
        let login = calls::login(link.server, link.channel.clone(), Arc::clone(login), now);
        self.begin(async move { Outcome::LoggedIn(login.await) });
    }

    fn check_features(&mut self) {
        let Some(link) = self.newest() else {
            let failure = self.no_connection();
            return self.begin(ready(Outcome::Features(Err(failure))));
        };
        let login = self.driver.login.as_ref();
        let check = FeatureCheck {
            server: link.server,
            channel: self.authenticated(link),
            credential: self.driver.credential,
            auth_method: login
                .map(|login| login.auth_method.clone())
                .unwrap_or_default(),
            deadline: self.driver.timing.answer,
        };
        self.begin(async move { Outcome::Features(calls::features(check).await) });
    }

    /// What an operation fails with that needs a connection where there is none: the machine must
    /// not wait for an outcome that never comes.
    fn no_connection(&self) -> Failure {
        let (_, server) = Stage::of(self.machine.view().state);
        let server = server.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
        Failure {
            kind: FailureKind::Server,
            error: Arc::new(SessionError::Lost { server }),
        }
    }

    /// The replacement of the connection in use, or else that connection.
    fn newest(&self) -> Option<&Link> {
        self.replacement.as_ref().or(self.link.as_ref())
    }

    /// The link's channel with the token in use.
    fn authenticated(&self, link: &Link) -> AuthenticatedChannel {
        AuthenticatedChannel::new(link.channel.clone(), self.driver.token.as_ref())
    }

    fn replacement_failed(&mut self, error: &Arc<SessionError>) {
        tracing::warn!(
            target: "server-connection-manager",
            %error,
            "the connection could not be replaced after its TLS files have changed; going on with the present one"
        );
        self.driver.facts.failed(error);
    }

    fn publish_connected(&mut self, generation: u64) {
        let Some(link) = &self.link else { return };
        if let Some(dialed) = self.dialed.take() {
            observe(&self.driver.metrics.connect, dialed.elapsed());
        }
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
        self.discard_unwanted();
    }

    fn publish(&mut self, state: SessionState) {
        self.generation = None;
        self.driver
            .metrics
            .connected(matches!(state, SessionState::Connected(_)));
        self.driver.state.send_replace(state);
    }
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
