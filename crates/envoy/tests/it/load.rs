//! Steady load on an Envoy, with counters: HTTP/1.1 with keep-alive, HTTP/2, and raw TCP through a
//! proxy to an echo server.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

/// Time limit of a request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two requests of a client.
const PAUSE: Duration = Duration::from_millis(2);

/// Outcomes of requests of one kind.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) good: Cell<u64>,
    pub(crate) connections: Cell<u64>,
    pub(crate) bad: RefCell<Vec<String>>,
}

impl Counts {
    fn failed(&self, what: &str, error: &dyn std::fmt::Debug) {
        self.bad.borrow_mut().push(format!("{what}: {error:?}"));
    }

    fn succeeded(&self) {
        self.good.set(self.good.get() + 1);
    }

    fn connected(&self) {
        self.connections.set(self.connections.get() + 1);
    }
}

fn request(target: SocketAddr) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{target}/"))
        .header("host", "load")
        .body(Empty::new())
        .unwrap()
}

/// Requests over connections that are kept open until Envoy closes them. Runs forever.
pub(crate) async fn http1(target: SocketAddr, counts: &Counts) {
    loop {
        let Ok(stream) = connect(target, counts).await else {
            continue;
        };
        let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(stream)).await else {
            continue;
        };
        let requests = async {
            while sender.ready().await.is_ok() {
                let exchange = timeout(PATIENCE, async {
                    let answer = sender.send_request(request(target)).await?;
                    let status = answer.status();
                    answer.into_body().collect().await.map(|_| status)
                });
                if !judge("http/1.1", exchange.await, counts) {
                    break;
                }
                sleep(PAUSE).await;
            }
        };
        tokio::select! { () = requests => {}, _ = connection => {} }
    }
}

/// The same over HTTP/2.
pub(crate) async fn http2(target: SocketAddr, counts: &Counts) {
    loop {
        let Ok(stream) = connect(target, counts).await else {
            continue;
        };
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let Ok((mut sender, connection)) = handshake else {
            continue;
        };
        let requests = async {
            while sender.ready().await.is_ok() {
                let exchange = timeout(PATIENCE, async {
                    let answer = sender.send_request(request(target)).await?;
                    let status = answer.status();
                    answer.into_body().collect().await.map(|_| status)
                });
                if !judge("http/2", exchange.await, counts) {
                    break;
                }
                sleep(PAUSE).await;
            }
        };
        // The requests may complete slightly after the end of the connection was announced.
        tokio::pin!(requests);
        tokio::select! { () = &mut requests => {}, _ = connection => requests.await }
    }
}

/// A new connection for each exchange. Runs forever.
pub(crate) async fn tcp(target: SocketAddr, counts: &Counts) {
    loop {
        if let Ok(mut stream) = connect(target, counts).await {
            match timeout(PATIENCE, echo(&mut stream)).await {
                Ok(Ok(())) => counts.succeeded(),
                Ok(Err(error)) => counts.failed("tcp", &error),
                Err(late) => counts.failed("tcp", &late),
            }
        }
        sleep(PAUSE).await;
    }
}

/// Uses one connection as long as it lives. Returns when it ended, and sets `works` once it works.
pub(crate) async fn long_tcp(target: SocketAddr, works: &Cell<bool>) -> Instant {
    let mut stream = TcpStream::connect(target).await.unwrap();
    while let Ok(Ok(())) = timeout(PATIENCE, echo(&mut stream)).await {
        works.set(true);
        sleep(PAUSE * 5).await;
    }
    Instant::now()
}

pub(crate) async fn echo(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"hello").await?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"hello");
    Ok(())
}

/// Echoes every byte. Runs forever.
pub(crate) async fn echo_server(listener: &TcpListener) {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (mut stream, _) = accepted.unwrap();
                connections.push(async move {
                    let (mut from, mut to) = stream.split();
                    drop(tokio::io::copy(&mut from, &mut to).await);
                });
            }
            Some(()) = connections.next() => {}
        }
    }
}

async fn connect(target: SocketAddr, counts: &Counts) -> std::io::Result<TcpStream> {
    let connected = TcpStream::connect(target).await;
    match &connected {
        Ok(_) => counts.connected(),
        Err(error) => {
            counts.failed("connect", error);
            sleep(PAUSE).await;
        }
    }
    connected
}

type Exchange = Result<hyper::Result<StatusCode>, tokio::time::error::Elapsed>;

/// Whether the connection can be used again.
fn judge(what: &str, exchange: Exchange, counts: &Counts) -> bool {
    match exchange {
        Ok(Ok(StatusCode::OK)) => {
            counts.succeeded();
            return true;
        }
        Ok(Ok(status)) => counts.failed(what, &status),
        // Never sent, because the connection had been closed in an orderly way before.
        Ok(Err(error)) if error.is_canceled() => {}
        Ok(Err(error)) => counts.failed(what, &error),
        Err(late) => counts.failed(what, &late),
    }
    false
}
