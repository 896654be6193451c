//! What the command line asks of a dataplane that is already running, at its lifecycle server, and of
//! its Envoy.
//!
//! It needs no setting but the server's address, and works with dataplanes that are older or newer
//! than this program.

mod page;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use legate_runtime::http_client::{Body, HttpError, send};
use serde_json::Value;
use tokio::time::Instant;

use crate::restart;

/// How long a question may take, all addresses together.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for `-check-proxy-health`.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);

/// The same for a request for a new Envoy, which is answered when it serves, or after
/// [`restart::PATIENCE`].
const RESTART_TIMEOUT: Duration = restart::PATIENCE.saturating_add(ASK_TIMEOUT);

/// Largest answer that is read, in bytes: the status grows with what Envoy says in rejections.
const ANSWER_LIMIT: usize = 4 * 1024 * 1024;

/// Nobody answered who could know, and what to check.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AskError(String);

impl AskError {
    fn stranger(address: SocketAddr, path: &str, reason: impl std::fmt::Display) -> AskError {
        AskError(format!(
            "what answers at http://{address}{path} is no dataplane ({reason}): check -graceful-addr, \
             -graceful-port and -config-file"
        ))
    }
}

/// Envoy's admin interface does not answer.
#[derive(Debug, thiserror::Error)]
#[error("Error connecting to Envoy admin endpoint: Get \"http://{address}/ready\": {source}")]
pub struct HealthError {
    address: SocketAddr,
    source: HttpError,
}

/// What a running dataplane tells of itself.
#[derive(Debug)]
pub struct Status(Value);

impl Status {
    /// A document that was fetched in another way.
    #[must_use]
    pub fn from_document(document: Value) -> Status {
        Status(document)
    }

    /// Whether it is ready. A document that does not say so is one of a dataplane that is not.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0["ready"] == Value::Bool(true)
    }

    /// Text for people.
    #[must_use]
    pub fn text(&self) -> String {
        page::text(&self.0)
    }

    /// The document, with line breaks.
    #[must_use]
    pub fn json(&self) -> String {
        format!("{:#}", self.0)
    }
}

/// What the admin interface of Envoy answers to `/ready`, at the first of `addresses` that can be
/// connected to: 200 to 399 when Envoy serves.
///
/// # Errors
/// When there is no answer in time.
pub fn envoy_health(
    addresses: &[SocketAddr],
    timeout: Duration,
) -> Result<StatusCode, HealthError> {
    let (address, answer) = ask(addresses, Method::GET, "/ready", timeout);
    let answer = answer.map_err(|source| HealthError { address, source });
    answer.map(|(status, _)| status)
}

/// Asks for the status at the first of `addresses` that can be connected to.
///
/// # Errors
/// When nobody answers in time, or with something else than a status document.
pub fn status(addresses: &[SocketAddr]) -> Result<Status, AskError> {
    let (address, status, body) = ask_dataplane(addresses, Method::GET, "/status", ASK_TIMEOUT)?;
    let stranger = |reason| AskError::stranger(address, "/status", reason);
    if status != StatusCode::OK {
        return Err(stranger(format!("HTTP status {status}")));
    }
    match serde_json::from_slice(&body) {
        Ok(document @ Value::Object(_)) => Ok(Status(document)),
        Ok(_) => Err(stranger("its status is no object".to_owned())),
        Err(error) => Err(stranger(format!("its status is no JSON: {error}"))),
    }
}

/// Asks for a new Envoy in place of the running one. The result is what the dataplane says, and an
/// error of it why there is none.
///
/// # Errors
/// When nobody answers in time. Whether a new Envoy is started is then not known: `-status` tells.
pub fn restart(addresses: &[SocketAddr]) -> Result<Result<String, String>, AskError> {
    let unknown = "start a new Envoy: it is too old, or it has none because it only answers DNS";
    post(addresses, "/restart", RESTART_TIMEOUT, unknown)
}

/// Asks to drain inbound connections, and to refuse new ones after `accept`. The result is as that of
/// [`restart()`].
///
/// # Errors
/// When nobody answers in time.
pub fn drain(
    addresses: &[SocketAddr],
    accept: Duration,
) -> Result<Result<String, String>, AskError> {
    let path = format!("/drain?accept_ms={}", accept.as_millis());
    post(addresses, &path, ASK_TIMEOUT, "drain: it is too old")
}

/// What a dataplane says to a request, or why it refuses it; `unknown` is what a dataplane cannot do
/// that does not know the path.
fn post(
    addresses: &[SocketAddr],
    path: &str,
    timeout: Duration,
    unknown: &str,
) -> Result<Result<String, String>, AskError> {
    let (address, status, body) = ask_dataplane(addresses, Method::POST, path, timeout)?;
    let text = page::printable(&String::from_utf8_lossy(&body));
    let status = status.as_u16();
    Ok(match status {
        200..=299 => Ok(text),
        404 => Err(format!(
            "the dataplane at {address} does not know how to {unknown}"
        )),
        _ if text.is_empty() => Err(format!(
            "the dataplane at {address} refuses: HTTP status {status}"
        )),
        _ => Err(text),
    })
}

fn ask_dataplane(
    addresses: &[SocketAddr],
    method: Method,
    path: &str,
    timeout: Duration,
) -> Result<(SocketAddr, StatusCode, Bytes), AskError> {
    let (address, answer) = ask(addresses, method, path, timeout);
    match answer {
        Ok((status, body)) => Ok((address, status, body)),
        Err(error @ (HttpError::NotHttp(_) | HttpError::TooLarge(_))) => {
            Err(AskError::stranger(address, path, error))
        }
        Err(error) => Err(AskError(format!(
            "no dataplane answers at http://{address}{path}: {error}; if one runs, give the \
             -graceful-addr, -graceful-port or -config-file that it was started with"
        ))),
    }
}

type Answer = Result<(StatusCode, Bytes), HttpError>;

/// The answer of the first address that can be connected to, or the error of the first of all.
fn ask(
    addresses: &[SocketAddr],
    method: Method,
    path: &str,
    timeout: Duration,
) -> (SocketAddr, Answer) {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return (nowhere, Err(HttpError::Connect(error))),
    };
    legate_runtime::block_on(runtime, async {
        let deadline = Instant::now() + timeout;
        let mut failed = None;
        for &address in addresses {
            match exchange(address, method.clone(), path, deadline).await {
                Err(error @ HttpError::Connect(_)) => {
                    failed.get_or_insert((address, Err(error)));
                }
                // Whoever was asked is not asked again elsewhere: it may be the same dataplane.
                answer => return (address, answer),
            }
        }
        failed.unwrap_or_else(|| {
            let error = std::io::Error::other("no address to ask");
            (nowhere, Err(HttpError::Connect(error)))
        })
    })
}

async fn exchange(address: SocketAddr, method: Method, path: &str, deadline: Instant) -> Answer {
    let request = Request::builder().method(method).uri(path);
    let reply = send(address, request.body(Body::default())?, deadline).await?;
    Ok((reply.status, reply.body(ANSWER_LIMIT, deadline).await?))
}
