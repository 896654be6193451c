//! A minimal HTTP/1.1 server for the ports with metrics and status of a program. Clients may be
//! hostile, so everything is bounded: the number of connections, and the duration of each phase of a
//! connection. Routing and responses are up to the service.
//!
//! Each connection serves one request. Clients rarely send requests, and a reused connection could be
//! closed just as the next request arrives.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::net::accept;
use crate::{Spawner, Throttle};

/// Length of the kernel's accept queue.
const BACKLOG: u32 = 1024;

/// The maximum size of a request's head, in bytes.
const HEAD_SIZE: usize = 16 * 1024;

/// Interval between warnings about too many connections.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Limits of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open connections. Each additional one closes the least useful: the oldest without a complete
    /// request; otherwise the oldest that reads its response; otherwise the newest, because a flood
    /// must not cost earlier clients their responses.
    pub connections: usize,
    /// From the start of the connection to the end of the request's head, including a TLS handshake.
    pub head: Duration,
    /// From then until the start of the response. The service may have stricter limits.
    pub making: Duration,
    /// From the start of the response to its end.
    pub answer: Duration,
}

/// Listens on an address; on `::` for IPv4 as well, and for IPv4 only if IPv6 is unavailable.
///
/// # Errors
/// The system's error.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let all = address.ip() == Ipv6Addr::UNSPECIFIED;
    match listen(address) {
        Err(error) if all && error.kind() != io::ErrorKind::AddrInUse => {
            let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            listen(v4).map_err(|_| error)
        }
        other => other,
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if address.is_ipv6() {
        let alone = address.ip() != Ipv6Addr::UNSPECIFIED;
        setsockopt(&socket, sockopt::Ipv6V6Only, &alone)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves requests with `service` until the scope of `spawner` stops. Then no connections are
/// accepted any more, and the task ends once the responses in progress have been read. `open`
/// converts a connection to the transport for HTTP, for example with a TLS handshake.
pub fn serve<S, B, O, F, I>(
    name: &'static str,
    listener: TcpListener,
    open: O,
    service: S,
    limits: Limits,
    spawner: &Spawner,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    O: Fn(TcpStream) -> F + Send + 'static,
    F: Future<Output = io::Result<I>> + Send + 'static,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stop = spawner.token();
    spawner.spawn(name, async move {
        let mut port = Port {
            name,
            limits,
            open: Vec::new(),
            warnings: Throttle::new(WARNING_INTERVAL),
        };
        let graceful = GracefulShutdown::new();
        let mut running = FuturesUnordered::new();
        {
            let next = || accept(name, || listener.accept());
            // It is retained while connections end, so that repeated system errors are logged once.
            let mut incoming = pin!(next());
            loop {
                tokio::select! {
                    // Connections are processed before another one is accepted: a request that has
                    // arrived is answered however many connections follow.
                    biased;
                    () = stop.cancelled() => break,
                    Some(()) = running.next() => {}
                    (stream, _) = &mut incoming => {
                        incoming.set(next());
                        let (stream, service) = (open(stream), service.clone());
                        let connection = port.admit();
                        running.push(connection.serve(stream, service, graceful.watcher(), limits));
                    }
                }
            }
        }
        drop(listener);
        let answers = async { while running.next().await.is_some() {} };
        tokio::join!(graceful.shutdown(), answers);
        Ok::<_, Infallible>(())
    });
}

/// Phase of a connection, in the order in which connections are closed to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Waiting for the request.
    Asking,
    /// Sending the response.
    Reading,
    /// Waiting for the service.
    Waiting,
}

/// An open connection.
struct Connection {
    phase: watch::Sender<Phase>,
    /// Cancelled when the connection has ended, or in order to end it.
    end: CancellationToken,
}

/// The connections of one port.
struct Port {
    name: &'static str,
    limits: Limits,
    /// Open connections, the oldest first.
    open: Vec<Arc<Connection>>,
    warnings: Throttle,
}

impl Port {
    /// Admits a connection; closes another one if the limit is reached.
    fn admit(&mut self) -> Arc<Connection> {
        self.open.retain(|one| !one.end.is_cancelled());
        if self.open.len() >= self.limits.connections {
            self.make_room();
        }
        let connection = Arc::new(Connection {
            phase: watch::Sender::new(Phase::Asking),
            end: CancellationToken::new(),
        });
        self.open.push(Arc::clone(&connection));
        connection
    }

    /// Closes the least useful connection, see [`Limits::connections`].
    fn make_room(&mut self) {
        let places = self.open.iter().enumerate();
        let least_useful = places.min_by_key(|(place, one)| match *one.phase.borrow() {
            Phase::Waiting => (Phase::Waiting, usize::MAX - place),
            phase => (phase, *place),
        });
        if let Some((place, _)) = least_useful {
            self.open.remove(place).end.cancel();
        }
        if self.warnings.pass().is_some() {
            tracing::warn!(
                server = self.name,
                limit = self.limits.connections,
                "too many connections: closing one that sends or reads slowly for each new one"
            );
        }
    }
}

impl Connection {
    /// Serves the connection until its end, or until it exceeds a limit.
    async fn serve<S, B, I>(
        self: Arc<Self>,
        stream: impl Future<Output = io::Result<I>>,
        service: S,
        watcher: Watcher,
        limits: Limits,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
        I: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let phase = &self.phase;
        let service = service_fn(move |request| {
            phase.send_replace(Phase::Waiting);
            let answer = service.call(request);
            async move {
                let answer = answer.await;
                phase.send_replace(Phase::Reading);
                answer
            }
        });
        let served = async {
            if let Ok(stream) = stream.await {
                let http = http1::Builder::new()
                    .keep_alive(false)
                    .header_read_timeout(None)
                    .max_buf_size(HEAD_SIZE)
                    .serve_connection(TokioIo::new(stream), service);
                // Errors of a connection only concern the peer, which sees them.
                let _ = watcher.watch(http).await;
            }
        };
        tokio::select! {
            () = served => {}
            () = self.is_overdue(limits) => {}
            () = self.end.cancelled() => {}
        }
        self.end.cancel();
    }

    /// Waits until a phase exceeds its limit.
    async fn is_overdue(&self, limits: Limits) {
        let mut phase = self.phase.subscribe();
        loop {
            let limit = match *phase.borrow_and_update() {
                Phase::Asking => limits.head,
                Phase::Waiting => limits.making,
                Phase::Reading => limits.answer,
            };
            if timeout(limit, phase.changed()).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
