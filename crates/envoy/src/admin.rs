//! Client of Envoy's admin interface: one short HTTP/1.1 connection a call, bounded in time and
//! size. Goes through no proxy, follows no redirect, retries nothing.

mod active;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::bootstrap::reachable;

/// How long a call may take in all, except [`AdminClient::ready`].
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long [`AdminClient::ready`] may take.
pub const READY_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest answer that is taken, in bytes: a configuration dump of a large mesh fits.
pub const BODY_LIMIT: usize = 256 * 1024 * 1024;
/// Largest answer to calls whose content does not matter, in bytes.
const SMALL_BODY_LIMIT: usize = 64 * 1024;

/// Inbound listeners only, so that the application still reaches others. Since Envoy 1.37 a
/// graceful drain ends Envoy unless `skip_exit` is given; earlier versions ignore it.
const DRAIN: &str = "/drain_listeners?inboundonly&graceful&skip_exit";

/// Closes the sockets of inbound listeners. Connections that are open stay.
const CLOSE_INBOUND: &str = "/drain_listeners?inboundonly";

/// Largest description that Envoy gives of itself, in bytes; it repeats Envoy's arguments.
const INFO_BODY_LIMIT: usize = 4 * 1024 * 1024;

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

/// Why a call to Envoy's admin interface failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Nobody listens, or the connection broke.
    #[error("envoy admin {address}{path}: {source}")]
    Connection {
        /// The interface.
        address: SocketAddr,
        /// What was asked.
        path: String,
        /// What happened.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No complete answer in time.
    #[error("envoy admin {address}{path}: no answer within {limit:?}")]
    Timeout {
        /// The interface.
        address: SocketAddr,
        /// What was asked.
        path: String,
        /// How long was waited.
        limit: Duration,
    },
    /// The answer is larger than what is taken.
    #[error("envoy admin {address}{path}: the answer is larger than {limit} bytes")]
    TooLarge {
        /// The interface.
        address: SocketAddr,
        /// What was asked.
        path: String,
        /// How much is taken.
        limit: usize,
    },
    /// The answer has another status than success.
    #[error("envoy admin {address}{path}: status {status}")]
    Status {
        /// The interface.
        address: SocketAddr,
        /// What was asked.
        path: String,
        /// The status.
        status: StatusCode,
    },
    /// The answer does not have what was asked for.
    #[error("envoy admin {address}{path}: {reason}")]
    Content {
        /// The interface.
        address: SocketAddr,
        /// What was asked.
        path: String,
        /// What is wrong with the answer.
        reason: String,
    },
}

/// Calls the admin interface of one Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminClient {
    address: SocketAddr,
}

struct Call<'a> {
    method: Method,
    path: &'a str,
    time: Duration,
    body: usize,
}

impl AdminClient {
    /// A client for the interface that binds to `address`; for a wildcard address the loopback
    /// one of the same family is called.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address: reachable(address),
        }
    }

    /// The address that is called.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether Envoy serves: its workers run and it has its first clusters and listeners.
    ///
    /// # Errors
    /// When there is no answer; an answer other than 200 is `false`.
    pub async fn ready(&self) -> Result<bool, AdminError> {
        let call = Call {
            method: Method::GET,
            path: "/ready",
            time: READY_TIMEOUT,
            body: SMALL_BODY_LIMIT,
        };
        Ok(self.call(&call).await?.0 == StatusCode::OK)
    }

    /// Begins to drain inbound listeners; Envoy keeps running.
    ///
    /// # Errors
    /// When Envoy does not confirm.
    pub async fn drain_listeners(&self) -> Result<(), AdminError> {
        self.success(&post(DRAIN)).await.map(drop)
    }

    /// Accepts no inbound connection any more, until Envoy is started anew; Envoy keeps running, and
    /// open connections too.
    ///
    /// # Errors
    /// When Envoy does not confirm.
    pub async fn close_inbound_listeners(&self) -> Result<(), AdminError> {
        self.success(&post(CLOSE_INBOUND)).await.map(drop)
    }

    /// Asks Envoy to end.
    ///
    /// # Errors
    /// When Envoy does not confirm.
    pub async fn quit(&self) -> Result<(), AdminError> {
        self.success(&post("/quitquitquit")).await.map(drop)
    }

    /// Envoy's configuration as JSON, with endpoints. It holds no private keys: Envoy redacts
    /// them.
    ///
    /// # Errors
    /// When there is no successful answer.
    pub async fn config_dump(&self) -> Result<Bytes, AdminError> {
        self.get("/config_dump?include_eds").await
    }

    /// The answer to `path`, which may have a query.
    ///
    /// # Errors
    /// When there is no successful answer.
    pub async fn get(&self, path: &str) -> Result<Bytes, AdminError> {
        let call = Call {
            method: Method::GET,
            path,
            time: CALL_TIMEOUT,
            body: BODY_LIMIT,
        };
        self.success(&call).await
    }

    /// What Envoy says of itself.
    ///
    /// # Errors
    /// When there is no successful answer, or it makes no sense.
    pub async fn server_info(&self) -> Result<ServerInfo, AdminError> {
        let path = "/server_info";
        let call = Call {
            method: Method::GET,
            path,
            time: READY_TIMEOUT,
            body: INFO_BODY_LIMIT,
        };
        let body = self.success(&call).await?;
        serde_json::from_slice(&body).map_err(|error| AdminError::Content {
            address: self.address,
            path: path.to_owned(),
            reason: error.to_string(),
        })
    }

    /// How many connections clients have open. Those to the admin interface do not count, nor do
    /// those to the listeners that the dataplane adds for metrics and readiness.
    ///
    /// # Errors
    /// When there is no successful answer, or Envoy was started without these statistics.
    pub async fn active_connections(&self) -> Result<u64, AdminError> {
        let wrong = |path: &str, reason: String| AdminError::Content {
            address: self.address,
            path: path.to_owned(),
            reason,
        };
        let listeners = self.get(active::LISTENERS).await?;
        let listeners = serde_json::from_slice(&listeners)
            .map_err(|error| wrong(active::LISTENERS, error.to_string()))?;
        let stats = self.get(active::STATS).await?;
        active::count(&listeners, &String::from_utf8_lossy(&stats)).ok_or_else(|| {
            let reason = "there are listeners without statistics, see stats_matcher".to_owned();
            wrong(active::STATS, reason)
        })
    }

    async fn success(&self, call: &Call<'_>) -> Result<Bytes, AdminError> {
        let (status, body) = self.call(call).await?;
        if status.is_success() {
            Ok(body)
        } else {
            Err(AdminError::Status {
                address: self.address,
                path: call.path.to_owned(),
                status,
            })
        }
    }

    async fn call(&self, call: &Call<'_>) -> Result<(StatusCode, Bytes), AdminError> {
        timeout(call.time, self.exchange(call))
            .await
            .unwrap_or_else(|_| {
                Err(AdminError::Timeout {
                    address: self.address,
                    path: call.path.to_owned(),
                    limit: call.time,
                })
            })
    }

    async fn exchange(&self, call: &Call<'_>) -> Result<(StatusCode, Bytes), AdminError> {
        let broken = |source| AdminError::Connection {
            address: self.address,
            path: call.path.to_owned(),
            source,
        };
        let stream = TcpStream::connect(self.address)
            .await
            .map_err(|error| broken(error.into()))?;
        let (mut sender, connection) = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|error| broken(error.into()))?;
        let request = Request::builder()
            .method(&call.method)
            .uri(call.path)
            .header(header::HOST, self.address.to_string())
            .header(header::CONNECTION, "close")
            .body(Empty::new())
            .map_err(|error| broken(error.into()))?;
        let exchange = async {
            let answer = sender
                .send_request(request)
                .await
                .map_err(|error| broken(error.into()))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), call.body).collect().await;
            match body {
                Ok(body) => Ok((status, body.to_bytes())),
                Err(error) if error.is::<LengthLimitError>() => Err(AdminError::TooLarge {
                    address: self.address,
                    path: call.path.to_owned(),
                    limit: call.body,
                }),
                Err(error) => Err(broken(error)),
            }
        };
        tokio::pin!(exchange);
        // The connection only moves while it is polled; its own errors reach the exchange.
        tokio::select! {
            answer = &mut exchange => answer,
            _ = connection => exchange.await,
        }
    }
}

fn post(path: &str) -> Call<'_> {
    Call {
        method: Method::POST,
        path,
        time: CALL_TIMEOUT,
        body: SMALL_BODY_LIMIT,
    }
}
