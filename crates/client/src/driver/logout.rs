//! Logs out tokens of logins: replaced ones when possible, and all of them at the end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use legate_model::Secret;
use tokio::time::timeout;
use tonic::transport::Channel;

use super::Driver;
use crate::calls;
use crate::connection::Token;
use crate::error::describe;
use crate::machine::{Event, LOGOUT};

/// Maximum number of tokens stored for a logout. More than one or two at a time are not expected.
const TOKENS: usize = 16;

impl Driver {
    /// Stores a token for the next logout.
    pub(super) fn discard(&mut self, token: Token) {
        if self.unwanted.len() < TOKENS {
            self.unwanted.push(token.secret);
        }
    }

    /// Logs out replaced tokens, unless the connection has been lost, too.
    pub(super) fn log_out_replaced(&mut self) {
        let (Some(link), Some(login)) = (&self.link, &self.login) else {
            return;
        };
        if self.unwanted.is_empty() || link.lost.is_cancelled() {
            return;
        }
        let mut tokens = std::mem::take(&mut self.unwanted);
        let (channel, datacenter) = (link.channel.clone(), login.datacenter.clone());
        self.scope.spawn("logout of a replaced token", async move {
            // Usually the server has already deleted them, which is why they were replaced.
            let done = timeout(LOGOUT, log_out(&channel, &mut tokens, &datacenter)).await;
            if done.is_err() {
                tracing::debug!(target: "server-connection-manager", "a replaced ACL token was not logged out");
            }
            Ok::<_, Infallible>(())
        });
    }

    /// Logs out on the current connection, or else at the first of these servers that responds. The
    /// machine's timer bounds it.
    pub(super) fn log_out(&mut self, servers: Vec<SocketAddr>) {
        let Some(login) = self.login.clone() else {
            return;
        };
        self.snapshot.send_modify(|snapshot| {
            snapshot.accessor_id = None;
            snapshot.token_since = None;
        });
        if let Some(token) = self.token.take() {
            self.discard(token);
        }
        let mut tokens = std::mem::take(&mut self.unwanted);
        let channel = self.link.take().map(|link| link.channel);
        let servers = servers.into_iter();
        let servers: Vec<_> = servers
            .map(|server| (server, self.hosts.of(server)))
            .collect();
        let dialer = Arc::clone(&self.dialer);
        let logout = async move {
            let mut outcome = Err("no server is known".to_owned());
            if let Some(channel) = channel {
                outcome = log_out(&channel, &mut tokens, &login.datacenter).await;
            }
            for (server, host) in servers {
                if outcome.is_ok() {
                    break;
                }
                outcome = match dialer.dial(server, host.as_deref()).await {
                    Ok(link) => log_out(&link.channel, &mut tokens, &login.datacenter).await,
                    Err(error) => Err(error.text),
                };
            }
            match outcome {
                Ok(()) => {
                    tracing::info!(target: "server-connection-manager", "ACL auth method logout succeeded");
                }
                Err(error) => {
                    tracing::error!(target: "server-connection-manager", error, "ACL auth method logout failed");
                }
            }
        };
        self.begin(logout, |_, ()| Event::LoggedOut);
    }
}

/// Logs out the tokens one by one, and removes those that succeed.
async fn log_out(
    channel: &Channel,
    tokens: &mut Vec<Secret>,
    datacenter: &str,
) -> Result<(), String> {
    while let Some(token) = tokens.last() {
        let logout = calls::logout(channel.clone(), token.clone(), datacenter.to_owned());
        logout.await.map_err(|status| describe(&status))?;
        tokens.pop();
    }
    Ok(())
}
