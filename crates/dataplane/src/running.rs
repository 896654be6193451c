//! What the command line asks of a dataplane that is already running, at its lifecycle server, and of
//! its Envoy.
//!
//! It needs no setting but the server's address, and works with dataplanes that are older or newer
//! than this program.

mod page;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use legate_runtime::http_client::{Body, HttpError, send};
use serde_json::Value;
use tokio::time::Instant;

use crate::restart;

pub use self::page::text;

/// How long a question may take, all addresses together.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for `-check-proxy-health`.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);

/// The same for a request for a new Envoy, which is answered when it serves, or after
/// [`restart::PATIENCE`].
const RESTART_TIMEOUT: Duration = restart::PATIENCE.saturating_add(ASK_TIMEOUT);

/// Largest answer that is read, in bytes: the status grows with what Envoy says in rejections.
const ANSWER_LIMIT: usize = 4 * 1024 * 1024;

/// What a dataplane says to a request: an error is why it refuses it.
pub type Answer = Result<String, String>;

/// What the admin interface of Envoy answers to `/ready`, at the first of `addresses` that can be
/// connected to: 200 to 399 when Envoy serves.
///
/// # Errors
/// When there is no answer in time.
pub fn envoy_health(addresses: &[SocketAddr], timeout: Duration) -> anyhow::Result<StatusCode> {
    let (address, answer) = ask(addresses, Method::GET, "/ready", timeout)?;
    let url = format!("http://{address}/ready");
    let (status, _) = answer.map_err(|error| {
        anyhow!("Error connecting to Envoy admin endpoint: Get \"{url}\": {error}")
    })?;
    Ok(status)
}

/// The status document of the first of `addresses` that can be connected to.
///
/// # Errors
/// When nobody answers in time, or with something else than a status document.
pub fn status(addresses: &[SocketAddr]) -> anyhow::Result<Value> {
    let (address, status, body) = ask_dataplane(addresses, Method::GET, "/status", ASK_TIMEOUT)?;
    let stranger = |reason: String| stranger(address, "/status", &reason);
    ensure!(
        status == StatusCode::OK,
        stranger(format!("HTTP status {status}"))
    );
    match serde_json::from_slice(&body) {
        Ok(document @ Value::Object(_)) => Ok(document),
        Ok(_) => Err(stranger("its status is no object".to_owned())),
        Err(error) => Err(stranger(format!("its status is no JSON: {error}"))),
    }
}

/// Whether a dataplane with this status is ready. A document that does not say so is one of a
/// dataplane that is not.
#[must_use]
pub fn is_ready(status: &Value) -> bool {
    status["ready"] == true
}

/// Asks for a new Envoy in place of the running one. The result is what the dataplane says, and an
/// error of it why there is none.
///
/// # Errors
/// When nobody answers in time. Whether a new Envoy is started is then not known: `-status` tells.
pub fn restart(addresses: &[SocketAddr]) -> anyhow::Result<Answer> {
    let unknown = "start a new Envoy: it is too old, or it has none because it only answers DNS";
    post(addresses, "/restart", RESTART_TIMEOUT, unknown)
}

/// Asks to drain inbound connections, and to refuse new ones after `accept`. The result is as that of
/// [`restart()`].
///
/// # Errors
/// When nobody answers in time.
pub fn drain(addresses: &[SocketAddr], accept: Duration) -> anyhow::Result<Answer> {
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
) -> anyhow::Result<Answer> {
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

/// The answer of the first address that can be connected to, and which that is.
fn ask_dataplane(
    addresses: &[SocketAddr],
    method: Method,
    path: &str,
    timeout: Duration,
) -> anyhow::Result<(SocketAddr, StatusCode, Bytes)> {
    let (address, answer) = ask(addresses, method, path, timeout)?;
    match answer {
        Ok((status, body)) => Ok((address, status, body)),
        Err(error @ (HttpError::NotHttp(_) | HttpError::TooLarge(_))) => {
            Err(stranger(address, path, &error.to_string()))
        }
        Err(error) => Err(anyhow!(
            "no dataplane answers at http://{address}{path}: {error}; if one runs, give the \
             -graceful-addr, -graceful-port or -config-file that it was started with"
        )),
    }
}

fn stranger(address: SocketAddr, path: &str, reason: &str) -> anyhow::Error {
    anyhow!(
        "what answers at http://{address}{path} is no dataplane ({reason}): check -graceful-addr, \
         -graceful-port and -config-file"
    )
}

type Reply = Result<(StatusCode, Bytes), HttpError>;

/// The answer of the first address that can be connected to, or the error of the first of all.
fn ask(
    addresses: &[SocketAddr],
    method: Method,
    path: &str,
    timeout: Duration,
) -> anyhow::Result<(SocketAddr, Reply)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    legate_runtime::block_on(runtime, async {
        let deadline = Instant::now() + timeout;
        let mut failed = None;
        for &address in addresses {
            match exchange(address, method.clone(), path, deadline).await {
                Err(error @ HttpError::Connect(_)) => {
                    failed.get_or_insert((address, Err(error)));
                }
                // Whoever was asked is not asked again elsewhere: it may be the same dataplane.
                reply => return Ok((address, reply)),
            }
        }
        failed.context("no address to ask")
    })
}

async fn exchange(address: SocketAddr, method: Method, path: &str, deadline: Instant) -> Reply {
    let request = Request::builder().method(method).uri(path);
    let reply = send(address, request.body(Body::default())?, deadline).await?;
    Ok((reply.status, reply.body(ANSWER_LIMIT, deadline).await?))
}
