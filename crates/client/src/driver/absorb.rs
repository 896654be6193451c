//! From what happened to events: keeps what the driver needs of it, counts and logs.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use legate_api::serverdiscovery::WatchServersResponse;
use tonic::Status;

use super::{Outcome, Running};
use crate::calls::{self, LoggedIn};
use crate::dial::Link;
use crate::error::SessionError;
use crate::machine::{Event, Failure};
use crate::metrics::observe;
use crate::resolve::Found;

impl Running {
    /// Keeps what an operation gave, and tells the machine that it did.
    pub(super) fn absorb(&mut self, outcome: Outcome) -> Event {
        match outcome {
            Outcome::Resolved(result) => self.resolved(result),
            Outcome::Dialed(result) => Event::Dialed(self.dialed(result)),
            Outcome::LoggedIn(result) => Event::LoggedIn(self.logged_in(result)),
            Outcome::Features(result) => {
                if result.is_ok() {
                    self.driver.facts.heard();
                }
                let link = self.replacement.as_ref().or(self.link.as_ref());
                Event::Features(
                    result.map_err(|failure| self.counted(self.explained(link, failure))),
                )
            }
            Outcome::LoggedOut => Event::LoggedOut,
        }
    }

    fn resolved(&mut self, result: Result<Found, SessionError>) -> Event {
        let found = match result {
            Ok(found) => found,
            Err(error) => return Event::Resolved(Err(Arc::new(error))),
        };
        observe(
            &self.driver.metrics.discover,
            self.operation_started.elapsed(),
        );
        let servers: Vec<SocketAddr> = found.keys().copied().collect();
        tracing::info!(target: "server-connection-manager", addresses = ?servers, "discovered Consul servers");
        self.hosts.found = found;
        Event::Resolved(Ok(servers))
    }

    fn dialed(&mut self, result: Result<Link, Failure>) -> Result<(), Failure> {
        let link = result.map_err(|failure| self.counted(failure))?;
        if let Some(tls) = self.driver.dialer.tls() {
            let expires = tls.certificate_expires();
            self.driver.facts.client_certificate_expires(expires);
        }
        if self.link.is_some() {
            self.replacement = Some(link);
        } else {
            self.hosts.current = self.hosts.of(link.server);
            self.link = Some(link);
        }
        Ok(())
    }

    fn logged_in(&mut self, result: Result<LoggedIn, Failure>) -> Result<(), Failure> {
        let login = match result {
            Ok(login) => login,
            Err(failure) => {
                let failure = self.explained(self.link.as_ref(), failure);
                tracing::error!(
                    target: "server-connection-manager",
                    error = %failure.error,
                    "ACL auth method login failed"
                );
                return Err(self.counted(failure));
            }
        };
        let metrics = &self.driver.metrics;
        observe(&metrics.login, self.operation_started.elapsed());
        metrics.logins.inc();
        self.driver.facts.logged_in(login.bearer_expires);
        tracing::info!(
            target: "server-connection-manager",
            accessorID = login.token.accessor().unwrap_or_default(),
            "ACL auth method login succeeded"
        );
        self.use_token(login.token);
        Ok(())
    }

    /// A call that failed because nothing on the connection was HTTP/2 tells what to look at.
    fn explained(&self, link: Option<&Link>, failure: Failure) -> Failure {
        let tls = self.driver.dialer.tls().is_some();
        let hint = link.and_then(|link| link.greeting.hint(tls));
        let (kind, error) = (failure.kind, Arc::unwrap_or_clone(failure.error));
        Failure {
            kind,
            error: Arc::new(error.with(hint)),
        }
    }

    fn counted(&self, failure: Failure) -> Failure {
        if let Some(code) = failure.error.code() {
            self.driver.metrics.error(code);
        }
        failure
    }

    pub(super) fn watched(&mut self, item: Option<Result<WatchServersResponse, Status>>) -> Event {
        let status = match item {
            Some(Ok(list)) => {
                self.driver.facts.heard();
                return Event::Servers(self.servers(&list));
            }
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

    fn servers(&mut self, list: &WatchServersResponse) -> Vec<SocketAddr> {
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
