//! Logs out tokens of logins: those that another one has replaced, and all of them at the end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use legate_model::Secret;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::calls;
use crate::config::LoginConfig;
use crate::connection::Token;
use crate::dial::Dialer;
use crate::machine::LOGOUT;

/// How many tokens are kept for a logout; more than one or two at a time are not expected.
const TOKENS: usize = 16;

/// Tokens to log out at the next opportunity, so that they do not stay until they expire.
#[derive(Default)]
pub(super) struct Unwanted(Vec<Secret>);

impl Unwanted {
    pub(super) fn add(&mut self, token: &Token) {
        if self.0.len() < TOKENS {
            self.0.push(token.secret().clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(super) struct Logout {
    /// Not logged out yet.
    tokens: Vec<Secret>,
    datacenter: String,
    last_error: String,
}

impl Logout {
    /// Of all tokens in `unwanted`, which is empty then.
    pub(super) fn new(unwanted: &mut Unwanted, login: &LoginConfig) -> Self {
        Self {
            tokens: std::mem::take(&mut unwanted.0),
            datacenter: login.datacenter.clone(),
            last_error: "no server is known".to_owned(),
        }
    }

    pub(super) async fn of_replaced(mut self, channel: Channel) -> Result<(), Infallible> {
        // Most often the server has deleted them already: that is why they were replaced.
        if timeout(LOGOUT, self.at(&channel)).await.is_err() {
            tracing::debug!(target: "server-connection-manager", "a replaced ACL token was not logged out");
        }
        Ok(())
    }

    /// Logs out on the connection there is, or else at the first server that answers. The
    /// machine's timer bounds it.
    pub(super) async fn at_the_end(
        mut self,
        channel: Option<Channel>,
        servers: Vec<(SocketAddr, Option<Arc<str>>)>,
        dialer: &Dialer,
    ) {
        if let Some(channel) = channel {
            self.at(&channel).await;
        }
        for (server, host) in servers {
            if self.tokens.is_empty() {
                break;
            }
            match dialer.dial(server, host.as_deref()).await {
                Ok(link) => self.at(&link.channel).await,
                Err(error) => self.last_error = error.text,
            }
        }
        if self.tokens.is_empty() {
            tracing::info!(target: "server-connection-manager", "ACL auth method logout succeeded");
        } else {
            let error = self.last_error;
            tracing::error!(target: "server-connection-manager", error, "ACL auth method logout failed");
        }
    }

    async fn at(&mut self, channel: &Channel) {
        while let Some(token) = self.tokens.last().cloned() {
            match calls::logout(channel.clone(), token, self.datacenter.clone()).await {
                Ok(()) => drop(self.tokens.pop()),
                Err(status) => {
                    self.last_error = crate::error::describe(&status);
                    return;
                }
            }
        }
    }
}
