//! One HTTP/1.1 request on a connection of its own, with a time limit and a size limit.
//!
//! Enough to talk to an API on this machine; it keeps no connections and follows no redirects.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// How long a request may take, connecting included.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Largest answer that is read, in bytes.
const SIZE_LIMIT: usize = 4 << 20;

/// Sends `body` (JSON, or nothing) and returns status and answer.
///
/// # Errors
///
/// When the server cannot be reached, does not answer in time, or answers more than the limit.
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
        .header(header::HOST, server.to_string())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let exchange = async {
        let stream = TcpStream::connect(server).await?;
        exchange(stream, request, SIZE_LIMIT).await
    };
    tokio::time::timeout(TIME_LIMIT, exchange)
        .await
        .context("no answer in time")
        .flatten()
        .with_context(|| format!("{method} http://{server}{path}"))
}

/// Sends a request over a connection that is there, and returns status and answer. It sets no time
/// limit; `limit` is the largest answer that is read, in bytes.
///
/// # Errors
///
/// When the connection fails, or the answer is larger than the limit.
pub(crate) async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
    limit: usize,
) -> anyhow::Result<(StatusCode, Bytes)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answer = exchange_with_head(stream, request, limit).await?;
    Ok((answer.status(), answer.into_body()))
}

/// Like [`exchange`], for those who read headers of the answer as well.
///
/// # Errors
///
/// As [`exchange`].
pub(crate) async fn exchange_with_head<S>(
    stream: S,
    request: Request<Full<Bytes>>,
    limit: usize,
) -> anyhow::Result<Response<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, limit)
            .collect()
            .await
            .map_err(anyhow::Error::from_boxed)?;
        anyhow::Ok(Response::from_parts(head, body.to_bytes()))
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection may end in the same moment as the answer: what was received still counts.
        _ = connection => answer.await,
    }
}

/// Like [`request`], for answers that have to be a success; others are errors with their text.
///
/// # Errors
///
/// As [`request`], and for every status outside 200..=299.
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
