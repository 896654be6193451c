//! Accepts connections with and without TLS as one stream for the gRPC server, and can close all of them.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use legate_runtime::{BoxError, CancellationToken, Spawner};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep_until, timeout, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig as TlsConfig;
use tokio_rustls::rustls::server::Acceptor as Acceptance;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

use crate::net::{self, Admission, ApiLimit, Permit};

/// Timeout from accepting a connection to the end of the HTTP/2 preface, including the TLS handshake.
const OPENING: Duration = Duration::from_secs(10);

/// Length of the HTTP/2 connection preface (RFC 9113 §3.4), in bytes.
const PREFACE: usize = 24;

/// Accepts on any number of listeners without ever waiting for a client: connections within the limits are
/// accepted at once, others are closed.
#[derive(Clone)]
pub(super) struct Acceptor {
    accepted: mpsc::Sender<Connection>,
    admission: Arc<Admission>,
    stop: CancellationToken,
    close: CancellationToken,
}

/// An accepted client.
struct Client {
    stream: TcpStream,
    /// The deadline for the preface.
    opened_by: Instant,
    place: Permit,
}

impl Acceptor {
    /// An acceptor that runs until `stop`, and the channel of its connections.
    pub(super) fn new(
        limit: ApiLimit,
        stop: CancellationToken,
    ) -> (Self, mpsc::Receiver<Connection>) {
        // Each connection in the queue has a permit, so the queue is never full.
        let (accepted, connections) = mpsc::channel(limit.in_all);
        let acceptor = Self {
            accepted,
            admission: Admission::new("grpc", limit, Some("--grpc-max-connections")),
            stop,
            close: CancellationToken::new(),
        };
        (acceptor, connections)
    }

    /// Accepts connections without TLS.
    pub(super) async fn accept_plain(self, listener: TcpListener) -> Result<(), BoxError> {
        while let Some(client) = self.next(&listener).await {
            let io = (Io::Plain(client.stream), Caller::Anyone);
            self.hand_over(io, client.opened_by, client.place);
        }
        Ok(())
    }

    /// Accepts connections with TLS. A slow or silent client does not delay others.
    pub(super) async fn accept_tls(
        self,
        listener: TcpListener,
        tls: Tls,
        spawner: Spawner,
    ) -> Result<(), BoxError> {
        while let Some(client) = self.next(&listener).await {
            let (acceptor, tls) = (self.clone(), tls.clone());
            spawner.spawn("TLS handshake", async move {
                let Client {
                    stream,
                    opened_by,
                    place,
                } = client;
                let stream = shake_hands(&tls, stream, opened_by);
                let shaken = acceptor.stop.run_until_cancelled(stream).await;
                if let Some(Some((stream, caller))) = shaken {
                    acceptor.hand_over((Io::Tls(Box::new(stream)), caller), opened_by, place);
                }
                Ok::<(), BoxError>(())
            });
        }
        Ok(())
    }

    /// The next client within the limits; `None` after `stop`.
    async fn next(&self, listener: &TcpListener) -> Option<Client> {
        loop {
            let accepted = self
                .stop
                .run_until_cancelled(net::accept("grpc", listener))
                .await;
            let (stream, client) = accepted?;
            if let Some(place) = self.admission.admit(client.ip()) {
                return Some(Client {
                    stream,
                    opened_by: Instant::now() + OPENING,
                    place,
                });
            }
        }
    }

    fn hand_over(&self, (io, caller): (Io, Caller), opened_by: Instant, place: Permit) {
        let stream = io.tcp();
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let connection = Connection {
            remote: stream.peer_addr().ok(),
            caller,
            io,
            opening: Some(Opening {
                left: PREFACE,
                deadline: Box::pin(sleep_until(opened_by)),
            }),
            close: Box::pin(self.close.clone().cancelled_owned()),
            _place: place,
        };
        // After `stop` the receiver is gone; the connection is then dropped.
        let _ = self.accepted.try_send(connection);
    }

    /// Closes all open connections, and waits until they are dropped.
    pub(super) async fn close_all(&self, deadline: Duration) {
        self.close.cancel();
        if timeout(deadline, self.admission.emptied()).await.is_err() {
            tracing::warn!("gRPC connections are still in use after they were closed");
        }
    }
}

async fn shake_hands(
    tls: &Tls,
    stream: TcpStream,
    deadline: Instant,
) -> Option<(TlsStream<TcpStream>, Caller)> {
    let remote = stream.peer_addr().ok();
    match timeout_at(deadline, tls.accept(stream)).await {
        Ok(Ok(accepted)) => Some(accepted),
        Ok(Err(error)) => {
            tracing::debug!(?remote, %error, "TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!(?remote, "TLS handshake took too long");
            None
        }
    }
}

/// The configurations of a listener with TLS.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) config: Arc<TlsConfig>,
    /// For servers of peered clusters, which trust the roots of the mesh and have no certificate here.
    pub(super) for_peers: Option<Arc<TlsConfig>>,
    /// How the name of this cluster's servers starts that those of peered clusters ask for.
    pub(super) peering_name: String,
}

impl Tls {
    async fn accept(&self, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Caller)> {
        let hello = LazyConfigAcceptor::new(Acceptance::default(), stream).await?;
        let is_peer = {
            let hello = hello.client_hello();
            let asked = hello.server_name().unwrap_or_default();
            asked.to_ascii_lowercase().starts_with(&self.peering_name)
        };
        let (config, caller) = match self.for_peers.as_ref().filter(|_| is_peer) {
            Some(config) => (config, Caller::Peer),
            None => (&self.config, Caller::Anyone),
        };
        let stream = hello.into_stream(Arc::clone(config)).await?;
        Ok((stream, caller))
    }
}

/// Who opened a connection, by the server name that it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// Any client of the API, with a certificate if the listener requires one.
    Anyone,
    /// A server of a peered cluster: no certificate was required.
    Peer,
}

enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

/// An accepted connection. Its IO fails once the acceptor closes it, or if the HTTP/2 preface is not received
/// in time.
pub(super) struct Connection {
    io: Io,
    remote: Option<SocketAddr>,
    caller: Caller,
    /// `None` once the preface is complete.
    opening: Option<Opening>,
    close: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: Permit,
}

/// The remaining length and the deadline of the preface.
struct Opening {
    left: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Connection {
    /// Fails after the preface deadline. Registers the task to be woken at the deadline.
    fn check_opening(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(opening) = &mut self.opening
            && opening.deadline.as_mut().poll(cx).is_ready()
        {
            tracing::debug!(remote = ?self.remote, "no HTTP/2 preface in time");
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Counts bytes received from the client.
    fn received(&mut self, length: usize) {
        if let Some(opening) = &mut self.opening {
            opening.left = opening.left.saturating_sub(length);
            if opening.left == 0 {
                self.opening = None;
            }
        }
    }

    /// Fails if the connection was closed. Registers the task to be woken when it is.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.close.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.caller
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        self.check_opening(cx)?;
        let before = buffer.filled().len();
        let read = match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        };
        self.received(buffer.filled().len() - before);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use legate_runtime::Scope;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Both ends of a connection without TLS.
    async fn connected() -> (TcpStream, Connection, Scope) {
        let listener = net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let limit = ApiLimit {
            in_all: 1,
            per_address: 1,
        };
        let scope = Scope::new("test");
        let (acceptor, mut accepted) = Acceptor::new(limit, scope.token());
        scope.spawn("listener", acceptor.accept_plain(listener));
        let client = TcpStream::connect(address).await.unwrap();
        let connection = accepted.recv().await.unwrap();
        (client, connection, scope)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_send_the_preface_in_time_is_closed() {
        for sent in [&b""[..], &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"[..]] {
            let (mut client, mut connection, _scope) = connected().await;
            let start = Instant::now();
            client.write_all(sent).await.unwrap();
            let mut received = Vec::new();
            let ended = connection.read_to_end(&mut received).await;
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(received, sent);
            assert!(start.elapsed() <= OPENING + Duration::from_millis(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_be_silent_after_the_preface() {
        let (mut client, mut connection, _scope) = connected().await;
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        client.write_all(preface).await.unwrap();
        let mut received = [0; PREFACE];
        connection.read_exact(&mut received).await.unwrap();
        let more = connection.read_u8();
        assert!(timeout(OPENING * 10, more).await.is_err(), "it stays open");
    }
}
