//! Requests, each on a new connection.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// The deadline for a response.
const LIMIT: Duration = Duration::from_secs(10);
/// The interval between requests of a load.
const PAUSE: Duration = Duration::from_millis(10);

/// Status and body of the response.
pub(crate) async fn get(url: &str) -> anyhow::Result<(StatusCode, String)> {
    timeout(LIMIT, exchange(url))
        .await
        .context("nothing within 10 s")?
}

/// The response on one line.
pub(crate) fn describe(answer: anyhow::Result<(StatusCode, String)>) -> String {
    match answer {
        Ok((status, body)) => format!("{status}: {}", body.trim_end()),
        Err(error) => format!("no answer: {error:#}"),
    }
}

/// Sends requests for a while, and summarizes the results.
pub(crate) async fn load(url: &str, length: Duration) -> String {
    let start = Instant::now();
    let (mut answered, mut failed) = (0, 0);
    let mut last_failure = String::new();
    while start.elapsed() < length {
        match get(url).await {
            Ok((StatusCode::OK, _)) => answered += 1,
            other => {
                failed += 1;
                last_failure = format!(", the last one: {}", describe(other));
            }
        }
        sleep(PAUSE).await;
    }
    format!("{answered} requests answered, {failed} failed{last_failure}")
}

async fn exchange(url: &str) -> anyhow::Result<(StatusCode, String)> {
    let uri: Uri = url.parse().context("this is no URL")?;
    let host = uri.host().context("the URL has no host")?;
    let port = uri.port_u16().unwrap_or(80);
    let stream = TcpStream::connect((host, port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header("host", uri.authority().map_or(host, |host| host.as_str()))
        .body(Empty::<Bytes>::new())?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection ends with the last byte; errors are also reported by the response.
        _ = connection => answer.await,
    }
}
