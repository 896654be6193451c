//! Sends one HTTP/1.1 request on a new connection, with a timeout and a size limit.
//!
//! A minimal client for APIs on this machine; it has no connection pool and follows no redirects.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

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

/// Sends a request over an existing connection and returns status and response body. There is no
/// timeout; `limit` is the maximum size of the response, in bytes.
///
/// # Errors
///
/// If the connection fails, or the response exceeds the limit.
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

/// Like [`exchange`], but also returns the response headers.
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
        // The connection may end together with the response, which is still valid.
        _ = connection => answer.await,
    }
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
