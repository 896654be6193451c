//! An HTTP client with a new connection for every request, so that each request uses Envoy's
//! current configuration.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::request::Builder;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use legate_runtime::BoxError;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(10);

/// Status and body of a response.
pub type Answer = (StatusCode, String);

/// Sends one line on a new connection; the result is empty if the connection ends first.
pub async fn line(server: SocketAddr, text: &str) -> String {
    let mut reply = String::new();
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(format!("{text}\n").as_bytes()).await?;
        BufReader::new(stream).read_line(&mut reply).await
    };
    // A connection that breaks has no answer either.
    let _ = exchange.await;
    reply
}

/// `GET` without a body.
///
/// # Errors
///
/// If there is no complete HTTP response in time.
pub async fn get(server: SocketAddr, path: &str) -> Result<Answer, BoxError> {
    send(Method::GET, server, path, None, None).await
}

/// A request with an optional JSON body and an optional ACL token.
///
/// # Errors
///
/// If there is no complete HTTP response in time.
pub async fn send(
    method: Method,
    server: SocketAddr,
    path: &str,
    token: Option<&str>,
    body: Option<&Value>,
) -> Result<Answer, BoxError> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", server.to_string());
    if let Some(token) = token {
        request = request.header("x-consul-token", token);
    }
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = request.body(Full::new(Bytes::from(body)))?;
    timeout(LIMIT, exchange(server, request)).await?.map(text)
}

/// A request without a body on an existing connection.
///
/// # Errors
///
/// If there is no complete HTTP response. There is no timeout.
pub async fn get_on(stream: TcpStream, request: Builder) -> Result<Answer, BoxError> {
    exchange_on(stream, request.body(Full::new(Bytes::new()))?)
        .await
        .map(text)
}

/// A request without a body on an existing connection, with the whole response.
///
/// # Errors
///
/// If there is no complete HTTP response in time.
pub async fn answer_on(stream: TcpStream, request: Builder) -> Result<Response<Bytes>, BoxError> {
    let request = request.body(Full::new(Bytes::new()))?;
    timeout(LIMIT, respond_on(stream, request)).await?
}

/// Any request, with the whole response.
///
/// # Errors
///
/// If there is no complete HTTP response in time.
pub async fn ask(
    server: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, BoxError> {
    let exchange = async { respond_on(TcpStream::connect(server).await?, request).await };
    timeout(LIMIT, exchange).await?
}

/// Sends a request verbatim on a new connection.
///
/// # Errors
///
/// If there is no HTTP/1.1 response in time.
pub async fn raw(server: SocketAddr, request: &str) -> Result<Answer, BoxError> {
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, BoxError>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = timeout(LIMIT, exchange).await??;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    let status = head.split(' ').nth(1).ok_or("no status")?;
    Ok((status.parse()?, body.to_owned()))
}

/// A request and response with arbitrary bytes and a longer timeout.
///
/// # Errors
///
/// If there is no complete HTTP response within `limit`.
pub async fn transfer(
    limit: Duration,
    method: Method,
    server: SocketAddr,
    path: &str,
    body: Bytes,
) -> Result<(StatusCode, Bytes), BoxError> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("host", server.to_string());
    timeout(limit, exchange(server, request.body(Full::new(body))?)).await?
}

/// `POST` without a body, to a server that responds slowly.
///
/// # Errors
///
/// If there is no complete HTTP response within `limit`.
pub async fn post_within(
    limit: Duration,
    server: SocketAddr,
    path: &str,
) -> Result<Answer, BoxError> {
    let request = Request::post(path).header("host", server.to_string());
    let request = request.body(Full::new(Bytes::new()))?;
    timeout(limit, exchange(server, request)).await?.map(text)
}

fn text((status, body): (StatusCode, Bytes)) -> Answer {
    (status, String::from_utf8_lossy(&body).into_owned())
}

async fn exchange(
    server: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), BoxError> {
    exchange_on(TcpStream::connect(server).await?, request).await
}

async fn exchange_on(
    stream: TcpStream,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), BoxError> {
    let response = respond_on(stream, request).await?;
    Ok((response.status(), response.into_body()))
}

async fn respond_on(
    stream: TcpStream,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, BoxError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        _ = connection => answer.await,
    }
}
