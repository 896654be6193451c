//! The HTTP server behind every port at which the dataplane answers HTTP: lifecycle, its own
//! metrics, merged metrics. Whoever can connect may be hostile, so that everything has a bound:
//! connections, the time for a request's head, idle connections, and the time that responses wait
//! for their readers. It knows no path and decides about no answer.

mod activity;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use legate_runtime::{CancellationToken, Spawner, file_limit};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};
use tower::Service;

use self::activity::{Activity, Phase, Watched};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Largest head of a request, in bytes.
const HEAD_SIZE: usize = 16 * 1024;

/// Files that these servers leave to all others: Envoy's start, the servers' connections, the
/// relay, DNS, and what scrapes read.
const RESERVED_FILES: u64 = 128;

/// HTTP ports of one dataplane, which share the files that are left.
const PORTS: u64 = 3;

/// How long nothing is accepted after the operating system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Between two warnings about too many connections.
const WARNINGS: Duration = Duration::from_secs(60);

/// How much one port takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Open connections. One more closes the least useful of them, see [`least_useful`].
    pub(crate) connections: usize,
    /// From the connection's start, or from the first byte of a later request, to the end of the
    /// request's head.
    pub(crate) head: Duration,
    /// From an answer to the first byte of the next request.
    pub(crate) idle: Duration,
    /// How long one response may wait for its reader, all waits together.
    pub(crate) unread: Duration,
}

impl Limits {
    /// 100 connections, or fewer where the process may open few files; 10 s for a head; 30 s for
    /// a reader. Idle connections stay for 5 min: Prometheus keeps its own as long, and closing
    /// them earlier could meet its next request.
    pub(crate) fn of_process() -> Self {
        let files = file_limit::current().unwrap_or(u64::MAX);
        Self {
            connections: connections(files),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            unread: Duration::from_secs(30),
        }
    }
}

/// Connections of one port where the process may open that many files.
fn connections(files: u64) -> usize {
    let share = files.saturating_sub(RESERVED_FILES) / PORTS;
    usize::try_from(share).unwrap_or(usize::MAX).clamp(4, 100)
}

/// Listens at this address; at `::` for IPv4 as well, and for IPv4 alone where there is no IPv6.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let all = address.ip() == Ipv6Addr::UNSPECIFIED;
    match listen(address) {
        Err(error) if all && !matches!(error.kind(), io::ErrorKind::AddrInUse) => {
            let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            listen(v4).map_err(|_| error)
        }
        other => other,
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(address.ip() != Ipv6Addr::UNSPECIFIED)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Answers with `router` until the scope of `spawner` stops. Then nothing is accepted any more,
/// and the task ends when the answers that have begun have been read.
pub(crate) fn serve(
    name: &'static str,
    listener: TcpListener,
    router: Router,
    limits: Limits,
    spawner: &Spawner,
) {
    let server = Server {
        name,
        router,
        limits,
        graceful: GracefulShutdown::new(),
        open: Open::default(),
        warned: None,
    };
    spawner.spawn(name, server.run(listener, spawner.token()));
}

struct Server {
    name: &'static str,
    router: Router,
    limits: Limits,
    graceful: GracefulShutdown,
    open: Open,
    /// When too many connections were last logged.
    warned: Option<Instant>,
}

impl Server {
    async fn run(
        mut self,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Result<(), Infallible> {
        let mut running = FuturesUnordered::new();
        let mut pause = None;
        loop {
            tokio::select! {
                // Each connection is looked at before another one is accepted: a request that has
                // arrived is answered however many connections follow.
                biased;
                () = stop.cancelled() => break,
                Some(id) = running.next() => self.open.remove(id),
                accepted = accept(&listener, pause) => {
                    pause = None;
                    match accepted {
                        Ok(stream) => running.push(self.connection(stream)),
                        Err(error) if is_of_connection(&error) => {}
                        Err(error) => {
                            self.make_room(Some(&error));
                            pause = Some(Instant::now() + ACCEPT_PAUSE);
                        }
                    }
                }
            }
        }
        drop(listener);
        let answers = async { while running.next().await.is_some() {} };
        tokio::join!(self.graceful.shutdown(), answers);
        Ok(())
    }

    /// Admits a connection, in the place of another one where there are enough.
    fn connection(&mut self, stream: TcpStream) -> impl Future<Output = u64> + use<> {
        if self.open.len() >= self.limits.connections {
            self.make_room(None);
        }
        let activity = Arc::new(Activity::new(self.limits));
        let id = self.open.insert(Arc::clone(&activity));
        let served = serve_one(
            stream,
            self.router.clone(),
            activity,
            self.graceful.watcher(),
        );
        async move {
            served.await;
            id
        }
    }

    fn make_room(&mut self, refused: Option<&io::Error>) {
        let closed = self.open.close_least_useful();
        let now = Instant::now();
        let rested = |warned: Instant| now.duration_since(warned) >= WARNINGS;
        if self.warned.is_none_or(rested) {
            self.warned = Some(now);
            let reason = refused.map_or_else(
                || format!("{} are open", self.limits.connections),
                io::Error::to_string,
            );
            tracing::warn!(
                server = self.name,
                reason,
                closed,
                "too many connections: for each new one, one that is idle or does not read is closed"
            );
        }
    }
}

async fn accept(listener: &TcpListener, pause: Option<Instant>) -> io::Result<TcpStream> {
    if let Some(until) = pause {
        sleep_until(until).await;
    }
    listener.accept().await.map(|(stream, _)| stream)
}

/// Whether the connection is gone, and nothing else is wrong.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

/// One connection, to its end or to the first limit that it exceeds.
async fn serve_one(stream: TcpStream, router: Router, activity: Arc<Activity>, watcher: Watcher) {
    let service = service_fn(|request: Request<Incoming>| {
        let answering = activity.answering();
        let mut router = router.clone();
        async move {
            // A router is always ready.
            let response = router.call(request).await?;
            // The answer lasts until its body has been handed to the connection.
            Ok::<_, Infallible>(response.map(move |body| {
                Body::new(body.map_frame(move |frame| {
                    let _lasts = &answering;
                    frame
                }))
            }))
        }
    });
    let io = TokioIo::new(Watched::new(stream, Arc::clone(&activity)));
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(HEAD_SIZE)
        .serve_connection(io, service);
    tokio::select! {
        // What goes wrong with a connection concerns its peer, who sees it.
        _ = watcher.watch(connection) => {}
        () = activity.overdue() => {}
    }
}

/// The open connections of one port, in the order in which they came.
#[derive(Default)]
struct Open {
    next: u64,
    connections: BTreeMap<u64, Arc<Activity>>,
}

impl Open {
    fn len(&self) -> usize {
        self.connections.len()
    }

    fn insert(&mut self, activity: Arc<Activity>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.connections.insert(id, activity);
        id
    }

    fn remove(&mut self, id: u64) {
        self.connections.remove(&id);
    }

    /// Closes the least useful connection; returns what it was doing.
    fn close_least_useful(&mut self) -> Option<&'static str> {
        let phases = self.connections.iter();
        let (id, phase) = least_useful(phases.map(|(id, activity)| (*id, activity.phase())))?;
        if let Some(activity) = self.connections.remove(&id) {
            activity.close();
        }
        Some(phase.as_str())
    }
}

/// Which connection to close: the one that has been idle longest; else the one whose reader has been
/// waited for longest; else the last one that came, because a flood must not cost those who came
/// before it their answers.
fn least_useful(open: impl Iterator<Item = (u64, Phase)>) -> Option<(u64, Phase)> {
    open.min_by_key(|(id, phase)| match *phase {
        Phase::Idle(since) => (0, Some(since), *id),
        Phase::Unread(since) => (1, Some(since), *id),
        Phase::Answering => (2, None, u64::MAX - *id),
    })
}

#[cfg(test)]
mod tests;
