//! Accepts connections, with and without TLS, as one stream for the gRPC server, and keeps the
//! means to close them all.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use legate_runtime::{BoxError, CancellationToken, Spawner};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig as TlsConfig;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

/// Connections at one time; the next client waits to be accepted.
const MAX_CONNECTIONS: u32 = 8_192;

/// TLS handshakes at one time.
const MAX_HANDSHAKES: usize = 256;

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long a listener rests when the machine has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepted connections on their way to the gRPC server.
const QUEUE: usize = 16;

/// Accepts on any number of listeners.
#[derive(Clone)]
pub(super) struct Acceptor {
    accepted: mpsc::Sender<Connection>,
    slots: Arc<Semaphore>,
    stop: CancellationToken,
    close: CancellationToken,
}

impl Acceptor {
    /// An acceptor that accepts until `stop`, and where its connections come out.
    pub(super) fn new(stop: CancellationToken) -> (Self, mpsc::Receiver<Connection>) {
        let (accepted, connections) = mpsc::channel(QUEUE);
        let acceptor = Self {
            accepted,
            slots: Arc::new(Semaphore::new(MAX_CONNECTIONS as usize)),
            stop,
            close: CancellationToken::new(),
        };
        (acceptor, connections)
    }

    /// Accepts connections without TLS.
    pub(super) async fn accept_plain(self, listener: TcpListener) -> Result<(), BoxError> {
        while let Some((stream, slot)) = self.next(&listener).await? {
            self.hand_over(Io::Plain(stream), slot).await;
        }
        Ok(())
    }

    /// Accepts connections with TLS. A client that is slow or says nothing delays nobody.
    pub(super) async fn accept_tls(
        self,
        listener: TcpListener,
        config: Arc<TlsConfig>,
        spawner: Spawner,
    ) -> Result<(), BoxError> {
        let tls = TlsAcceptor::from(config);
        let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
        while let Some((stream, slot)) = self.next(&listener).await? {
            let handshake = handshakes.clone().acquire_owned().await?;
            let (acceptor, tls) = (self.clone(), tls.clone());
            spawner.spawn("TLS handshake", async move {
                let _handshake = handshake;
                let stream = acceptor.stop.run_until_cancelled(shake_hands(&tls, stream));
                if let Some(Some(stream)) = stream.await {
                    acceptor.hand_over(Io::Tls(Box::new(stream)), slot).await;
                }
                Ok::<(), BoxError>(())
            });
        }
        Ok(())
    }

    /// The next client, once there is room for it; `None` after the stop.
    async fn next(
        &self,
        listener: &TcpListener,
    ) -> Result<Option<(TcpStream, OwnedSemaphorePermit)>, BoxError> {
        let accept = async {
            let slot = self.slots.clone().acquire_owned().await?;
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => return Ok((stream, slot)),
                    Err(error) => {
                        // Running out of descriptors passes; it must not end the listener.
                        tracing::warn!(%error, "a gRPC connection could not be accepted");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        };
        self.stop.run_until_cancelled(accept).await.transpose()
    }

    async fn hand_over(&self, io: Io, slot: OwnedSemaphorePermit) {
        let stream = io.tcp();
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let connection = Connection {
            remote: stream.peer_addr().ok(),
            io,
            close: Box::pin(self.close.clone().cancelled_owned()),
            _slot: slot,
        };
        // The receiver is gone after the stop, and the connection with it.
        let _ = self.accepted.send(connection).await;
    }

    /// Breaks every connection that is still open, and waits until their owners have let go of
    /// them.
    pub(super) async fn close_all(&self, deadline: Duration) {
        self.close.cancel();
        let all = self.slots.acquire_many(MAX_CONNECTIONS);
        if timeout(deadline, all).await.is_err() {
            tracing::warn!("gRPC connections are still in use after they were closed");
        }
    }
}

async fn shake_hands(tls: &TlsAcceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    let remote = stream.peer_addr().ok();
    match timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
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

/// One accepted connection. It fails as soon as the acceptor closes it.
pub(super) struct Connection {
    io: Io,
    remote: Option<SocketAddr>,
    close: Pin<Box<WaitForCancellationFutureOwned>>,
    _slot: OwnedSemaphorePermit,
}

impl Connection {
    /// Fails when the connection was closed; else the task is woken when that happens.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.close.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Option<SocketAddr>;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.remote
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
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
