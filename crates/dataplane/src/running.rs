//! Requests of the command line to a dataplane that is already running, at its lifecycle server, and
//! to its Envoy.
//!
//! They need no setting but the server's address, and work with dataplanes that are older or newer
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

/// Time limit of a request, all addresses together.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of `-check-proxy-health`.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);

/// Time limit of a restart. It is answered once the new Envoy serves, or after [`restart::PATIENCE`].
const RESTART_TIMEOUT: Duration = restart::PATIENCE.saturating_add(REQUEST_TIMEOUT);

/// Largest accepted response in bytes. The status grows with the error messages of Envoy's NACKs.
const ANSWER_LIMIT: usize = 4 * 1024 * 1024;

/// Answer of a dataplane to a request; the error is its reason for a refusal.
pub type Answer = Result<String, String>;

/// Status code of `/ready` at Envoy's admin interface, from the first of `addresses` that accepts a
/// connection: 200 to 399 if Envoy serves.
///
/// # Errors
/// When there is no response in time.
pub fn envoy_health(addresses: &[SocketAddr], timeout: Duration) -> anyhow::Result<StatusCode> {
    let (address, answer) = exchange_first(addresses, Method::GET, "/ready", timeout)?;
    let url = format!("http://{address}/ready");
    let (status, _) = answer.map_err(|error| {
        anyhow!("Error connecting to Envoy admin endpoint: Get \"{url}\": {error}")
    })?;
    Ok(status)
}

/// The status document, from the first of `addresses` that accepts a connection.
///
/// # Errors
/// When there is no response in time, or it is not a status document.
pub fn status(addresses: &[SocketAddr]) -> anyhow::Result<Value> {
    let (address, status, body) =
        request_dataplane(addresses, Method::GET, "/status", REQUEST_TIMEOUT)?;
    let not_a_dataplane = |reason: String| not_a_dataplane(address, "/status", &reason);
    ensure!(
        status == StatusCode::OK,
        not_a_dataplane(format!("HTTP status {status}"))
    );
    match serde_json::from_slice(&body) {
        Ok(document @ Value::Object(_)) => Ok(document),
        Ok(_) => Err(not_a_dataplane("its status is not an object".to_owned())),
        Err(error) => Err(not_a_dataplane(format!("its status is not JSON: {error}"))),
    }
}

/// Whether a dataplane with this status is ready. A document without the field counts as not ready.
#[must_use]
pub fn is_ready(status: &Value) -> bool {
    status["ready"] == true
}

/// Requests a new Envoy in place of the running one. Returns the dataplane's answer.
///
/// # Errors
/// When there is no response in time. It is then unknown whether a new Envoy is started; `-status`
/// shows it.
pub fn restart(addresses: &[SocketAddr]) -> anyhow::Result<Answer> {
    let unknown = "start a new Envoy: it is too old, or it has none because it only answers DNS";
    post(addresses, "/restart", RESTART_TIMEOUT, unknown)
}

/// Requests to drain inbound connections, and to refuse new ones after `accept`. Returns the
/// dataplane's answer.
///
/// # Errors
/// When there is no response in time.
pub fn drain(addresses: &[SocketAddr], accept: Duration) -> anyhow::Result<Answer> {
    let path = format!("/drain?accept_ms={}", accept.as_millis());
    post(addresses, &path, REQUEST_TIMEOUT, "drain: it is too old")
}

/// Sends a request and returns the dataplane's answer. `unknown` names what a dataplane that does not
/// have this path cannot do.
fn post(
    addresses: &[SocketAddr],
    path: &str,
    timeout: Duration,
    unknown: &str,
) -> anyhow::Result<Answer> {
    let (address, status, body) = request_dataplane(addresses, Method::POST, path, timeout)?;
    let text = page::printable(&String::from_utf8_lossy(&body));
    let status = status.as_u16();
    Ok(match status {
        200..=299 => Ok(text),
        404 => Err(format!("the dataplane at {address} cannot {unknown}")),
        _ if text.is_empty() => Err(format!(
            "the dataplane at {address} refuses: HTTP status {status}"
        )),
        _ => Err(text),
    })
}

/// The response of the first address that accepts a connection, with that address.
fn request_dataplane(
    addresses: &[SocketAddr],
    method: Method,
    path: &str,
    timeout: Duration,
) -> anyhow::Result<(SocketAddr, StatusCode, Bytes)> {
    let (address, answer) = exchange_first(addresses, method, path, timeout)?;
    match answer {
        Ok((status, body)) => Ok((address, status, body)),
        Err(error @ (HttpError::NotHttp(_) | HttpError::TooLarge(_))) => {
            Err(not_a_dataplane(address, path, &error.to_string()))
        }
        Err(error) => Err(anyhow!(
            "no dataplane answers at http://{address}{path}: {error}; if one runs, give the \
             -graceful-addr, -graceful-port or -config-file that it was started with"
        )),
    }
}

fn not_a_dataplane(address: SocketAddr, path: &str, reason: &str) -> anyhow::Error {
    anyhow!(
        "what answers at http://{address}{path} is not a dataplane ({reason}): check -graceful-addr, \
         -graceful-port and -config-file"
    )
}

type Reply = Result<(StatusCode, Bytes), HttpError>;

/// The response of the first address that accepts a connection, or else the first connect error.
fn exchange_first(
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
            match exchange_one(address, method.clone(), path, deadline).await {
                Err(error @ HttpError::Connect(_)) => {
                    failed.get_or_insert((address, Err(error)));
                }
                // A request that was sent is not repeated at another address: it may be the same
                // dataplane.
                reply => return Ok((address, reply)),
            }
        }
        failed.context("no address to ask")
    })
}

async fn exchange_one(address: SocketAddr, method: Method, path: &str, deadline: Instant) -> Reply {
    let request = Request::builder().method(method).uri(path);
    let reply = send(address, request.body(Body::default())?, deadline).await?;
    Ok((reply.status, reply.body(ANSWER_LIMIT, deadline).await?))
}
