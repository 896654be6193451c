//! Sends one request to an API on this machine, with a timeout and a size limit.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use legate_runtime::http_client::{self, Body};
use tokio::time::Instant;

/// The timeout of a request, including connecting.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// The maximum size of a response, in bytes.
const SIZE_LIMIT: usize = 4 << 20;

/// Sends `body` (JSON, or nothing) and returns status and response body.
///
/// # Errors
///
/// If the server is unreachable, does not respond in time, or the response exceeds the limit.
pub(crate) async fn request(
    method: Method,
    server: SocketAddr,
    path: &str,
    body: Option<&serde_json::Value>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let body = body.map(serde_json::Value::to_string).unwrap_or_default();
    let request = Request::builder()
        .method(&method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))?;
    let deadline = Instant::now() + TIME_LIMIT;
    let exchange = async {
        let reply = http_client::send(server, request, deadline).await?;
        let status = reply.status;
        Ok::<_, http_client::HttpError>((status, reply.body(SIZE_LIMIT, deadline).await?))
    };
    let answer = exchange.await;
    answer.with_context(|| format!("{method} http://{server}{path}"))
}

/// Like [`request`], but error statuses are errors with the response text.
///
/// # Errors
///
/// As [`request`], or for a status outside 200..=299.
pub(crate) async fn expect_success(
    method: Method,
    server: SocketAddr,
    path: &str,
    body: Option<&serde_json::Value>,
) -> anyhow::Result<Bytes> {
    let (status, answer) = request(method.clone(), server, path, body).await?;
    anyhow::ensure!(
        status.is_success(),
        "{method} http://{server}{path} answered {status}: {}",
        String::from_utf8_lossy(&answer).trim()
    );
    Ok(answer)
}
