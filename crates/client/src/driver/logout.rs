//! Gives tokens of logins back: when another one has replaced them, and at the end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use legate_model::Secret;
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;

use super::{Outcome, Running};
use crate::calls;
use crate::config::LoginConfig;
use crate::connection::Token;
use crate::dial::Dialer;
use crate::machine::LOGOUT;

/// Tokens that are kept in mind; more than one or two at a time are unheard of.
const UNWANTED: usize = 16;

impl Running {
    /// Uses this token from now on, and gives the one before back.
    pub(super) fn use_token(&mut self, token: Token) {
        self.driver
            .facts
            .token(Some((token.accessor_id(), Instant::now())));
        if let Some(old) = self.driver.token.replace(token) {
            self.discard(&old);
            self.discard_unwanted();
        }
    }

    /// Notes that a token is not needed any more, so that it does not stay until it expires.
    pub(super) fn discard(&mut self, token: &Token) {
        if self.unwanted.len() < UNWANTED {
            self.unwanted.push(token.secret().clone());
        }
    }

    /// Logs out what is not needed any more, unless the connection is gone too.
    pub(super) fn discard_unwanted(&mut self) {
        let (Some(link), Some(login)) = (&self.link, &self.driver.login) else {
            return;
        };
        if self.unwanted.is_empty() || link.lost.is_cancelled() {
            return;
        }
        let mut logout = Logout::new(std::mem::take(&mut self.unwanted), login);
        let channel = link.channel.clone();
        self.driver.scope.spawn("logout of a replaced token", async move {
            // Most often the server has forgotten it already: that is why it was replaced.
            let logout = timeout(LOGOUT, logout.at(&channel)).await;
            if logout.is_err() {
                tracing::debug!(target: "server-connection-manager", "a replaced ACL token was not logged out");
            }
            Ok::<_, Infallible>(())
        });
    }

    /// The last operation. The machine's timer bounds it.
    pub(super) fn logout(&mut self, servers: Vec<SocketAddr>) {
        let Some(login) = &self.driver.login else {
            return;
        };
        let token = self.driver.token.take();
        let token = token.map(|token| token.secret().clone());
        let logout = Logout::new(self.unwanted.drain(..).chain(token).collect(), login);
        self.driver.facts.token(None);
        let channel = self.link.take().map(|link| link.channel);
        let servers = servers
            .into_iter()
            .map(|server| (server, self.hosts.of(server)))
            .collect();
        let dialer = Arc::clone(&self.driver.dialer);
        self.begin(async move {
            match logout.everywhere(channel, servers, &dialer).await {
                Ok(()) => tracing::info!(target: "server-connection-manager", "ACL auth method logout succeeded"),
                Err(error) => {
                    tracing::error!(target: "server-connection-manager", error, "ACL auth method logout failed");
                }
            }
            Outcome::LoggedOut
        });
    }
}

struct Logout {
    /// Not logged out yet.
    tokens: Vec<Secret>,
    datacenter: String,
    /// What went wrong last.
    error: String,
}

impl Logout {
    fn new(tokens: Vec<Secret>, login: &LoginConfig) -> Self {
        Self {
            tokens,
            datacenter: login.datacenter.clone(),
            error: "no server is known".to_owned(),
        }
    }

    /// Logs out at the connection there is, or else at the first server that answers.
    async fn everywhere(
        mut self,
        channel: Option<Channel>,
        servers: Vec<(SocketAddr, Option<Arc<str>>)>,
        dialer: &Dialer,
    ) -> Result<(), String> {
        if let Some(channel) = channel {
            self.at(&channel).await;
        }
        for (server, host) in servers {
            if self.tokens.is_empty() {
                break;
            }
            match dialer.dial(server, host.as_deref()).await {
                Ok(link) => self.at(&link.channel).await,
                Err(failure) => self.error = failure.error.to_string(),
            }
        }
        match self.tokens.is_empty() {
            true => Ok(()),
            false => Err(self.error),
        }
    }

    async fn at(&mut self, channel: &Channel) {
        while let Some(token) = self.tokens.last().cloned() {
            match calls::logout(channel.clone(), token, self.datacenter.clone()).await {
                Ok(()) => drop(self.tokens.pop()),
                Err(status) => {
                    self.error = crate::error::describe(&status);
                    return;
                }
            }
        }
    }
}
