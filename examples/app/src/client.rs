//! Requests, each on a connection of its own.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two requests of a load.
const PAUSE: Duration = Duration::from_millis(10);

/// Status and body of the answer.
pub(crate) async fn get(url: &str) -> anyhow::Result<(StatusCode, String)> {
    timeout(LIMIT, exchange(url))
        .await
        .context("nothing within 10 s")?
}

/// An answer in one line.
pub(crate) fn describe(answer: anyhow::Result<(StatusCode, String)>) -> String {
    match answer {
        Ok((status, body)) => format!("{status}: {}", body.trim_end()),
        Err(error) => format!("no answer: {error:#}"),
    }
}

/// Asks for a while, and says what became of the requests.
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
        // It ends with the last byte, and with an error that the answer has as well.
        _ = connection => answer.await,
    }
}
