//! The HTTP server behind the operator's ports. Whoever can connect may be hostile, so that
//! everything has a bound: connections, their time, the size of a head. It knows no path.
//!
//! A connection carries one request. Callers here ask seldom (the API server for a new pod, the
//! kubelet, Prometheus), and a connection that is kept open can be closed by one side just when the
//! other one uses it again: the API server would take that for a refusal.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use legate_runtime::{CancellationToken, Spawner};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::Service;

/// Largest head of a request, in bytes.
const HEAD_SIZE: usize = 16 * 1024;

/// How long nothing is accepted after the operating system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How much one port takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Open connections. One more closes the oldest one.
    pub(crate) connections: usize,
    /// From the start of a connection to its end: handshake, request and answer.
    pub(crate) time: Duration,
}

/// A port that answers with a router.
pub(crate) struct HttpServer {
    /// Name of the task.
    pub(crate) name: &'static str,
    /// What answers.
    pub(crate) router: Router,
    /// TLS, where the port has it. Its certificate may change while it is used.
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    /// How much it takes.
    pub(crate) limits: Limits,
}

/// Listens at this address.
///
/// # Errors
/// What the system says, with the address.
pub(crate) async fn bind(what: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| anyhow::anyhow!("cannot listen for {what} at {address}: {error}"))
}

impl HttpServer {
    /// Answers until the scope of `spawner` stops. Then nothing is accepted any more, and the task
    /// ends when the answers that have begun are out.
    pub(crate) fn serve(self, listener: TcpListener, spawner: &Spawner) {
        let connections = spawner.child_with_own_token(self.name);
        let stop = spawner.token();
        spawner.spawn(self.name, async move {
            let mut open: VecDeque<CancellationToken> = VecDeque::new();
            while let Some(stream) = stop.run_until_cancelled(accept(&listener)).await {
                open.retain(|connection| !connection.is_cancelled());
                if open.len() >= self.limits.connections
                    && let Some(oldest) = open.pop_front()
                {
                    tracing::warn!(
                        server = self.name,
                        "too many connections: the oldest is closed"
                    );
                    oldest.cancel();
                }
                let end = CancellationToken::new();
                open.push_back(end.clone());
                let (router, tls) = (self.router.clone(), self.tls.clone());
                let time = self.limits.time;
                connections.spawn("connection", async move {
                    let served = timeout(time, connection(stream, tls, router));
                    let _ = end.run_until_cancelled(served).await;
                    end.cancel();
                    Ok::<_, Infallible>(())
                });
            }
            drop(listener);
            // A connection that is dropped at its deadline concerns its peer only.
            let _ = connections.stop(self.limits.time).await;
            Ok::<_, Infallible>(())
        });
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What goes wrong with a connection concerns its peer, who sees it.
async fn connection(
    stream: TcpStream,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
) -> io::Result<()> {
    match tls {
        Some(tls) => request(TlsAcceptor::from(tls).accept(stream).await?, router).await,
        None => request(stream, router).await,
    }
    Ok(())
}

async fn request(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let service = service_fn(|request| {
        let mut router = router.clone();
        async move { router.call(request).await }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .header_read_timeout(None)
        .max_buf_size(HEAD_SIZE)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}
