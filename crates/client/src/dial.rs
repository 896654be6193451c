//! One connection to one server: TCP, TLS, HTTP/2.
//!
//! A channel made here never dials again by itself. When its connection is gone, its calls fail,
//! and the machine decides where to go.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use legate_identity::tls::{ClientTls, TlsError, client_config, server_name};
use legate_runtime::{CancellationToken, Spawner};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::DropGuard;
use tonic::transport::{Channel, Endpoint};

use crate::error::SessionError;
use crate::machine::{Failure, FailureKind};

/// How long a connection may take, with its TLS handshake.
const DEADLINE: Duration = Duration::from_secs(10);
/// A ping after so long without traffic while a call is open. Servers refuse more often than 15 s.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long a ping's answer may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Configurations of large meshes come in large messages: do not stop for every 64 KiB.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// An open connection.
pub(crate) struct Link {
    pub(crate) server: SocketAddr,
    pub(crate) channel: Channel,
    /// Cancelled when the connection is gone.
    pub(crate) lost: CancellationToken,
}

/// Opens connections.
pub(crate) struct Dialer {
    tls: Option<Tls>,
    spawner: Spawner,
}

/// TLS settings as they were last read.
pub(crate) struct Tls {
    options: ClientTls,
    config: Mutex<Arc<ClientConfig>>,
    name: Option<String>,
}

impl Tls {
    /// Reads the files for the first time. `name` is verified, or sent, or neither.
    pub(crate) fn new(options: ClientTls, name: Option<String>) -> Result<Self, TlsError> {
        if let Some(name) = &name {
            server_name(name)?;
        }
        let config = Mutex::new(client_config(&options)?);
        Ok(Self {
            options,
            config,
            name,
        })
    }

    /// The current settings. Files are few and small, and connections are rare, so they are read
    /// in place.
    fn config(&self) -> Arc<ClientConfig> {
        let mut current = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        if self.options.ca.is_some() || self.options.client_cert.is_some() {
            match client_config(&self.options) {
                Ok(config) => *current = config,
                Err(error) => tracing::warn!(
                    target: "server-connection-manager",
                    %error,
                    "TLS files cannot be read again; going on with what they held before"
                ),
            }
        }
        Arc::clone(&current)
    }

    async fn connect(&self, server: SocketAddr, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        let name = match &self.name {
            Some(name) => server_name(name).map_err(io::Error::other)?,
            // Nothing is verified, and for an IP address no name is sent.
            None => ServerName::IpAddress(server.ip().into()),
        };
        Ok(Box::new(
            TlsConnector::from(self.config())
                .connect(name, stream)
                .await?,
        ))
    }
}

impl Dialer {
    /// Tasks of connections run in the spawner's scope and end with its token.
    pub(crate) fn new(tls: Option<Tls>, spawner: Spawner) -> Self {
        Self { tls, spawner }
    }

    pub(crate) async fn dial(&self, server: SocketAddr) -> Result<Link, Failure> {
        let stream = match timeout(DEADLINE, self.open(server)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(failure(server, &error)),
            Err(_) => {
                let error = SessionError::Timeout {
                    server,
                    call: "the connection attempt",
                    after: DEADLINE,
                };
                return Err(Failure {
                    kind: FailureKind::Server,
                    error: Arc::new(error),
                });
            }
        };
        let lost = CancellationToken::new();
        let stream = Watched {
            stream,
            _lost: lost.clone().drop_guard(),
        };
        let channel = self.channel(server, stream).await.map_err(|reason| {
            let error = SessionError::Dial { server, reason };
            Failure {
                kind: FailureKind::Server,
                error: Arc::new(error),
            }
        })?;
        Ok(Link {
            server,
            channel,
            lost,
        })
    }

    async fn open(&self, server: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => tls.connect(server, stream).await,
        }
    }

    async fn channel(&self, server: SocketAddr, stream: Watched) -> Result<Channel, String> {
        let uri = self.origin(server)?;
        let endpoint = Endpoint::from(uri)
            .user_agent(concat!("legate-dataplane/", env!("CARGO_PKG_VERSION")))
            .map_err(|error| error.to_string())?
            .executor(ScopeExecutor(self.spawner.clone()))
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(false)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        // The one connection is handed out once; tonic's attempts to reconnect then fail.
        let mut stream = Some(TokioIo::new(stream));
        let connector = tower::service_fn(move |_: Uri| {
            let stream = stream.take();
            std::future::ready(stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
        });
        endpoint
            .connect_with_connector(connector)
            .await
            .map_err(|error| error.to_string())
    }

    /// Where `:authority` comes from: the TLS server name, or the server's address.
    fn origin(&self, server: SocketAddr) -> Result<Uri, String> {
        let name = self.tls.as_ref().and_then(|tls| tls.name.as_deref());
        let authority = match name {
            Some(name) => match name.parse::<IpAddr>() {
                Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
                _ => name.to_owned(),
            },
            // An authority has no place for a zone.
            None => SocketAddr::new(server.ip(), server.port()).to_string(),
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let uri = Uri::builder()
            .scheme(scheme)
            .authority(authority)
            .path_and_query("/")
            .build();
        uri.map_err(|error| error.to_string())
    }
}

fn failure(server: SocketAddr, error: &io::Error) -> Failure {
    let tls = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<rustls::Error>());
    let (kind, error) = match tls {
        Some(rustls::Error::InvalidCertificate(reason)) => {
            let error = SessionError::Untrusted {
                server,
                reason: reason.to_string(),
            };
            (FailureKind::Untrusted, error)
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            let reason =
                "it does not speak TLS on this port: check -grpc-port, or set -tls-disabled"
                    .to_owned();
            (FailureKind::Server, SessionError::Dial { server, reason })
        }
        _ => (
            FailureKind::Server,
            SessionError::Dial {
                server,
                reason: error.to_string(),
            },
        ),
    };
    Failure {
        kind,
        error: Arc::new(error),
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Tells when it is dropped, which HTTP/2 does at the end of the connection.
struct Watched {
    stream: Box<dyn Stream>,
    _lost: DropGuard,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Runs a connection's tasks in the session's scope.
struct ScopeExecutor(Spawner);

impl hyper::rt::Executor<Pin<Box<dyn Future<Output = ()> + Send>>> for ScopeExecutor {
    fn execute(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let stopped = self.0.token();
        self.0.spawn("connection to a server", async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = task => {}
            }
            Ok::<_, std::convert::Infallible>(())
        });
    }
}
