//! Client of Envoy's admin interface: one short HTTP/1.1 connection per call, bounded in time and
//! size. No proxy, no redirects, no retries.

mod active;
mod direction;

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

/// Time limit of a call, except for [`AdminClient::server_info`].
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of [`AdminClient::server_info`], which is called repeatedly.
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest accepted response in bytes: suffices for a configuration dump of a large mesh.
const BODY_LIMIT: usize = 256 * 1024 * 1024;
/// Largest accepted response of other calls, in bytes: `/server_info` contains Envoy's arguments.
const SMALL_BODY_LIMIT: usize = 4 * 1024 * 1024;

/// Asks clients to close their connections. Since Envoy 1.37 a graceful drain ends Envoy unless
/// `skip_exit` is set; earlier versions ignore it.
const DRAIN: &str = "graceful&skip_exit";

/// Response of `/server_info`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ServerInfo {
    /// `LIVE`, `DRAINING`, `PRE_INITIALIZING` or `INITIALIZING`.
    #[serde(default)]
    pub state: String,
    /// Commit, version, state of the sources, build type and TLS library, separated by slashes.
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

    /// The epoch of the hot restart that responded.
    pub fn epoch(&self) -> u32 {
        self.command_line_options.restart_epoch
    }
}

/// A failed call to Envoy's admin interface: address, path, and reason.
#[derive(Debug, thiserror::Error)]
#[error("envoy admin {0}")]
pub struct AdminError(pub(crate) String);

/// Calls the admin interface of one Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminClient {
    address: SocketAddr,
}

impl AdminClient {
    /// A client for the interface that binds to `address`. For a wildcard address, it uses the
    /// loopback address of the same family.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address: reachable(address),
        }
    }

    /// Starts to drain inbound listeners, so that the application can still call others. A gateway has no
    /// application, and no inbound listeners: all of its listeners are drained. Envoy keeps running.
    ///
    /// # Errors
    /// When Envoy does not confirm.
    pub async fn drain_listeners(&self) -> Result<(), AdminError> {
        let listeners = self.drained_listeners().await;
        self.post(&format!("/drain_listeners?{listeners}{DRAIN}"))
            .await
    }

    /// Stops accepting inbound connections, or all connections of a gateway, until Envoy is restarted.
    /// Envoy keeps running and keeps open connections.
    ///
    /// # Errors
    /// When Envoy does not confirm.
    pub async fn close_inbound_listeners(&self) -> Result<(), AdminError> {
        let listeners = self.drained_listeners().await;
        let path = format!("/drain_listeners?{listeners}");
        self.post(path.trim_end_matches(['?', '&'])).await
    }

    /// Closes all listening sockets for good. Open connections stay, and Envoy runs on.
    ///
    /// # Errors
    /// When Envoy does not confirm.
    pub async fn close_listeners(&self) -> Result<(), AdminError> {
        self.post("/drain_listeners").await
    }

    /// The part of the query that says which listeners end: nothing stands for all. Those that the
    /// application uses stay whenever Envoy's answer leaves a doubt.
    async fn drained_listeners(&self) -> &'static str {
        match self.get(direction::LISTENERS).await {
            Ok(dump) if direction::is_gateway(&dump) => "",
            _ => "inboundonly&",
        }
    }

    /// Requests Envoy to exit.
    ///
    /// # Errors
    /// When Envoy does not confirm.
    pub async fn quit(&self) -> Result<(), AdminError> {
        self.post("/quitquitquit").await
    }

    /// The response of `path`, which may include a query.
    ///
    /// # Errors
    /// When there is no successful response.
    pub async fn get(&self, path: &str) -> Result<Bytes, AdminError> {
        self.call(Method::GET, path, CALL_TIMEOUT, BODY_LIMIT).await
    }

    /// Requests `/server_info`.
    ///
    /// # Errors
    /// When there is no successful response, or it cannot be parsed.
    pub async fn server_info(&self) -> Result<ServerInfo, AdminError> {
        let path = "/server_info";
        let body = self.call(Method::GET, path, INFO_TIMEOUT, SMALL_BODY_LIMIT);
        self.json(path, &body.await?)
    }

    /// Number of open client connections. Excludes those to the admin interface and to the listeners
    /// that the dataplane adds for metrics and readiness.
    ///
    /// # Errors
    /// When there is no successful response, or Envoy was started without these statistics.
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
