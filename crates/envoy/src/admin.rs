//! Client of Envoy's admin interface: one short HTTP/1.1 connection a call, bounded in time and
//! size. Goes through no proxy, follows no redirect, retries nothing.

mod active;

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use legate_runtime::http_client::{Body, HttpError, send};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::bootstrap::reachable;

/// How long a call may take in all, except [`AdminClient::server_info`].
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long [`AdminClient::server_info`] may take, which is asked again and again.
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest answer that is taken, in bytes: a configuration dump of a large mesh fits.
const BODY_LIMIT: usize = 256 * 1024 * 1024;
/// Largest answer to other calls, in bytes: Envoy's description of itself repeats its arguments.
const SMALL_BODY_LIMIT: usize = 4 * 1024 * 1024;

/// Inbound listeners only, so that the application still reaches others. Since Envoy 1.37 a
/// graceful drain ends Envoy unless `skip_exit` is given; earlier versions ignore it.
const DRAIN: &str = "/drain_listeners?inboundonly&graceful&skip_exit";

/// Closes the sockets of inbound listeners. Connections that are open stay.
const CLOSE_INBOUND: &str = "/drain_listeners?inboundonly";

/// What Envoy says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ServerInfo {
    /// `LIVE`, `DRAINING`, `PRE_INITIALIZING` or `INITIALIZING`.
    #[serde(default)]
    pub state: String,
    /// Commit, version, state of the sources, build type and TLS library, with slashes between.
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    command_line_options: CommandLineOptions,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
struct CommandLineOptions {
    #[serde(default)]
    restart_epoch: u32,
}

impl ServerInfo {
    /// Whether it serves.
    pub fn live(&self) -> bool {
        self.state == "LIVE"
    }

    /// Which epoch of a hot restart answered.
    pub fn epoch(&self) -> u32 {
        self.command_line_options.restart_epoch
    }
}

/// A call to Envoy's admin interface failed: where, what was asked, and why.
#[derive(Debug, thiserror::Error)]
#[error("envoy admin {0}")]
pub struct AdminError(pub(crate) String);

/// Calls the admin interface of one Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminClient {
    address: SocketAddr,
}

impl AdminClient {
    /// A client for the interface that binds to `address`; for a wildcard address the loopback
    /// one of the same family is called.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address: reachable(address),
        }
    }

    /// Begins to drain inbound listeners; Envoy keeps running.
    ///
    /// # Errors
    /// When Envoy does not confirm.
    pub async fn drain_listeners(&self) -> Result<(), AdminError> {
        self.post(DRAIN).await
    }

    /// Accepts no inbound connection any more, until Envoy is started anew; Envoy keeps running, and
    /// open connections too.
    ///
    /// # Errors
    /// When Envoy does not confirm.
    pub async fn close_inbound_listeners(&self) -> Result<(), AdminError> {
        self.post(CLOSE_INBOUND).await
    }

    /// Asks Envoy to end.
    ///
    /// # Errors
    /// When Envoy does not confirm.
    pub async fn quit(&self) -> Result<(), AdminError> {
        self.post("/quitquitquit").await
    }

    /// The answer to `path`, which may have a query.
    ///
    /// # Errors
    /// When there is no successful answer.
    pub async fn get(&self, path: &str) -> Result<Bytes, AdminError> {
        self.call(Method::GET, path, CALL_TIMEOUT, BODY_LIMIT).await
    }

    /// What Envoy says of itself.
    ///
    /// # Errors
    /// When there is no successful answer, or it makes no sense.
    pub async fn server_info(&self) -> Result<ServerInfo, AdminError> {
        let path = "/server_info";
        let body = self.call(Method::GET, path, INFO_TIMEOUT, SMALL_BODY_LIMIT);
        self.json(path, &body.await?)
    }

    /// How many connections clients have open. Those to the admin interface do not count, nor do
    /// those to the listeners that the dataplane adds for metrics and readiness.
    ///
    /// # Errors
    /// When there is no successful answer, or Envoy was started without these statistics.
    pub async fn active_connections(&self) -> Result<u64, AdminError> {
        let listeners = self.get(active::LISTENERS).await?;
        let listeners = self.json(active::LISTENERS, &listeners)?;
        let stats = self.get(active::STATS).await?;
        active::count(&listeners, &String::from_utf8_lossy(&stats)).ok_or_else(|| {
            let reason = "there are listeners without statistics, see stats_matcher";
            self.failed(active::STATS, reason)
        })
    }

    fn failed(&self, path: &str, reason: impl Display) -> AdminError {
        AdminError(format!("{}{path}: {reason}", self.address))
    }

    fn json<T: DeserializeOwned>(&self, path: &str, body: &[u8]) -> Result<T, AdminError> {
        serde_json::from_slice(body).map_err(|error| self.failed(path, error))
    }

    async fn post(&self, path: &str) -> Result<(), AdminError> {
        let answer = self.call(Method::POST, path, CALL_TIMEOUT, SMALL_BODY_LIMIT);
        answer.await.map(drop)
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        time: Duration,
        limit: usize,
    ) -> Result<Bytes, AdminError> {
        let deadline = Instant::now() + time;
        let exchange = async {
            let request = Request::builder().method(method).uri(path);
            let reply = send(self.address, request.body(Body::default())?, deadline).await?;
            Ok::<_, HttpError>((reply.status, reply.body(limit, deadline).await?))
        };
        match exchange.await {
            Ok((status, body)) if status.is_success() => Ok(body),
            Ok((status, _)) => Err(self.failed(path, format!("status {status}"))),
            Err(error) => Err(self.failed(path, error)),
        }
    }
}
