//! Requests, each on a new connection, or on one that is kept.

use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// The deadline for a response.
const LIMIT: Duration = Duration::from_secs(10);

/// The body of a response with status 2xx.
pub(crate) async fn get(url: &str) -> anyhow::Result<String> {
    Client::default().get(url).await
}

/// A client that keeps its connection until the server closes it.
#[derive(Default)]
pub(crate) struct Client {
    open: Option<Open>,
}

struct Open {
    sender: SendRequest<Empty<Bytes>>,
    /// Moves bytes while it is polled, and ends with the connection.
    connection: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
}

impl Client {
    /// The body of a response with status 2xx. A failed request is not repeated.
    pub(crate) async fn get(&mut self, url: &str) -> anyhow::Result<String> {
        timeout(LIMIT, self.exchange(url))
            .await
            .context("no answer within 10 s")?
    }

    async fn exchange(&mut self, url: &str) -> anyhow::Result<String> {
        let uri: Uri = url.parse()?;
        let host = uri.host().context("the URL has no host")?;
        let port = uri.port_u16().unwrap_or(80);
        let kept = match self.open.take() {
            Some(mut open) => open.is_usable().await.then_some(open),
            None => None,
        };
        let mut open = match kept {
            Some(open) => open,
            None => Open::new(host, port).await?,
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::get(path)
            .header("host", format!("{host}:{port}"))
            .body(Empty::<Bytes>::new())?;
        let (answer, kept) = open.ask(request).await;
        if kept && answer.is_ok() {
            self.open = Some(open);
        }
        answer
    }
}

impl Open {
    async fn new(host: &str, port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect((host, port))
            .await
            .with_context(|| format!("cannot connect to {host}:{port}"))?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self {
            sender,
            connection: Box::pin(connection),
        })
    }

    /// Whether the server has not closed it.
    async fn is_usable(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = &mut self.connection => false,
            ready = self.sender.ready() => ready.is_ok(),
        }
    }

    /// The answer, and whether the connection has not ended with it.
    async fn ask(&mut self, request: Request<Empty<Bytes>>) -> (anyhow::Result<String>, bool) {
        let answer = async {
            let response = self.sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            let body = String::from_utf8_lossy(&body).into_owned();
            ensure!(status.is_success(), "{status}: {body}");
            Ok(body)
        };
        let mut answer = std::pin::pin!(answer);
        tokio::select! {
            answer = &mut answer => (answer, true),
            // The connection ends with the last byte; errors are also reported by the response.
            _ = &mut self.connection => (answer.await, false),
        }
    }
}

/// The same, retried until the time limit.
pub(crate) async fn get_within(url: &str, limit: Duration) -> anyhow::Result<String> {
    let start = Instant::now();
    loop {
        match get(url).await {
            Err(_) if start.elapsed() < limit => sleep(Duration::from_millis(200)).await,
            answer => return answer,
        }
    }
}

/// Sends a line and returns the reply.
pub(crate) async fn line(address: &str, text: &str) -> anyhow::Result<String> {
    let exchange = async {
        let mut stream = BufReader::new(TcpStream::connect(address).await?);
        stream.write_all(format!("{text}\n").as_bytes()).await?;
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        ensure!(
            line.ends_with('\n'),
            "the connection was closed after {line:?}"
        );
        Ok(line.trim_end().to_owned())
    };
    timeout(LIMIT, exchange)
        .await
        .context("no answer within 10 s")?
}
