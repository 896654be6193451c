//! Opens one connection to one server: TCP, a tunnel if there is a proxy, TLS, HTTP/2.
//!
//! Its channels never reconnect. When the connection is lost, calls fail, and the machine decides
//! where to connect next.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use legate_runtime::{BoxError, CancellationToken, Spawner};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::timeout;
use tokio_util::sync::DropGuard;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::error::{ErrorKind, SessionError, text_of};
use crate::greeting::Greeting;
use crate::http_proxy::{HttpProxy, Via};
use crate::tls::Tls;

/// Time limit of a connection, including its tunnel and TLS handshake.
const DEADLINE: Duration = Duration::from_secs(10);
/// Time limit of TCP: tolerates two lost packets.
const CONNECT: Duration = Duration::from_secs(5);
/// Interval of HTTP/2 pings without traffic while a call is open. Servers reject intervals below 15
/// s.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Time limit of a ping's answer, in which TCP repeats it five times. A server whose host is gone, or
/// whose packets are dropped, is left after 10 to 40 s.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// TCP keep-alive, for the time when no call is open.
const TCP_IDLE: Duration = Duration::from_secs(30);
const TCP_INTERVAL: Duration = Duration::from_secs(10);
const TCP_PROBES: u32 = 3;
/// How long sent bytes may remain unacknowledged.
#[cfg(target_os = "linux")]
const TCP_UNANSWERED: Duration = Duration::from_secs(20);
/// Configurations of large meshes come in large messages, which should not wait for a window update
/// every 64 KiB.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// An open connection.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) server: SocketAddr,
    pub(crate) channel: Channel,
    pub(crate) greeting: Arc<Greeting>,
    /// Cancelled when the connection is lost.
    pub(crate) lost: CancellationToken,
}

/// Opens connections. Their tasks run in the spawner's scope and end with its token.
pub(crate) struct Dialer {
    pub(crate) tls: Option<Tls>,
    pub(crate) proxy: Option<HttpProxy>,
    pub(crate) spawner: Spawner,
}

impl Dialer {
    /// Connects to a server; `host` is the name that resolved to it, if known.
    pub(crate) async fn dial(
        &self,
        server: SocketAddr,
        host: Option<&str>,
    ) -> Result<Link, SessionError> {
        let stream = match timeout(DEADLINE, self.open(server, host)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(failure(server, &error)),
            Err(_) => return Err(too_slow(server, DEADLINE)),
        };
        let lost = CancellationToken::new();
        let greeting = Arc::new(Greeting::new(self.tls.is_some()));
        let stream = Watched {
            stream,
            greeting: Arc::clone(&greeting),
            _lost: Some(lost.clone().drop_guard()),
        };
        let channel = self
            .channel(server, host, stream)
            .await
            .map_err(|reason| SessionError::dial(server, reason).with(greeting.hint()))?;
        Ok(Link {
            server,
            channel,
            greeting,
            lost,
        })
    }

    async fn open(&self, server: SocketAddr, host: Option<&str>) -> io::Result<Box<dyn Stream>> {
        let via = self.proxy.as_ref().map(|proxy| proxy.to(server, host));
        let via = via.transpose().map_err(io::Error::other)?.flatten();
        let stream: Box<dyn Stream> = match via {
            None => Box::new(connect(server).await?),
            Some(via) => Box::new(tunnel(via, server).await.map_err(|error| {
                io::Error::other(format!("cannot connect through {via}: {error}"))
            })?),
        };
        let Some(tls) = &self.tls else {
            return Ok(stream);
        };
        let greeting = Arc::new(Greeting::new(true));
        let stream = Watched {
            stream,
            greeting: Arc::clone(&greeting),
            _lost: None,
        };
        match (tls.connect(server, host, stream).await, greeting.hint()) {
            (Err(_), Some(hint)) => Err(io::Error::other(hint)),
            (connected, _) => Ok(Box::new(connected?)),
        }
    }

    async fn channel(
        &self,
        server: SocketAddr,
        host: Option<&str>,
        stream: Watched<Box<dyn Stream>>,
    ) -> Result<Channel, String> {
        let uri = self.origin(server, host)?;
        let endpoint = Endpoint::from(uri)
            .user_agent(concat!("legate-dataplane/", env!("CARGO_PKG_VERSION")))
            .map_err(|error| error.to_string())?
            .executor(ScopeExecutor(self.spawner.clone()))
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(false)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        // The connector returns the connection once; tonic's attempts to reconnect then fail.
        let mut stream = Some(TokioIo::new(stream));
        let connector = tower::service_fn(move |_: Uri| {
            let stream = stream.take();
            std::future::ready(stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
        });
        endpoint
            .connect_with_connector(connector)
            .await
            .map_err(|error| text_of(&error))
    }

    /// Origin for `:authority`: the TLS server name, or the server's address.
    fn origin(&self, server: SocketAddr, host: Option<&str>) -> Result<Uri, String> {
        let name = self.tls.as_ref().and_then(|tls| tls.name(host));
        let authority = match name {
            Some(name) => match name.parse::<IpAddr>() {
                Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
                _ => name,
            },
            // An authority cannot contain a zone.
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

async fn tunnel(via: &Via, server: SocketAddr) -> Result<impl Stream + use<>, BoxError> {
    via.tunnel(connect(via.authority()).await?, server).await
}

/// Opens a TCP connection that detects the loss of its peer.
async fn connect(to: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = match timeout(CONNECT, TcpStream::connect(to)).await {
        Ok(stream) => stream?,
        Err(_) => {
            let reason = format!("no answer within {CONNECT:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
        }
    };
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let probes = TcpKeepalive::new()
        .with_time(TCP_IDLE)
        .with_interval(TCP_INTERVAL)
        .with_retries(TCP_PROBES);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(TCP_UNANSWERED))?;
    Ok(stream)
}

fn too_slow(server: SocketAddr, after: Duration) -> SessionError {
    SessionError::timeout(server, "the connection attempt", after)
}

fn failure(server: SocketAddr, error: &io::Error) -> SessionError {
    let tls = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<rustls::Error>());
    match (error.kind(), tls) {
        (io::ErrorKind::TimedOut, _) => SessionError {
            kind: ErrorKind::Unreachable,
            ..too_slow(server, CONNECT)
        },
        (
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable,
            _,
        ) => SessionError::unreachable(server, error),
        (_, Some(rustls::Error::InvalidCertificate(reason))) => {
            let text = format!(
                "the certificate of server {server} is not trusted: {}; check -ca-certs and \
                 -tls-server-name",
                untrusted_reason(reason)
            );
            SessionError::new(ErrorKind::Untrusted, Code::Unavailable, text)
        }
        (_, Some(rustls::Error::InvalidMessage(_))) => SessionError::dial(
            server,
            "it does not speak TLS on this port: check -grpc-port, or set -tls-disabled",
        ),
        _ => SessionError::dial(server, error),
    }
}

/// Why a certificate is not trusted. The TLS library has no readable text for a CA certificate that
/// is used by a server.
fn untrusted_reason(reason: &rustls::CertificateError) -> String {
    let text = reason.to_string();
    match text.contains("CaUsedAsEndEntity") {
        true => {
            "it is a CA certificate (CA:TRUE), which is accepted from a server only when -ca-certs \
             contains it: add it there, or let the CA issue a certificate for the server"
                .to_owned()
        }
        false => text,
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Records the first bytes that arrive. HTTP/2 drops it at the end of the connection.
struct Watched<S> {
    stream: S,
    greeting: Arc<Greeting>,
    _lost: Option<DropGuard>,
}

impl<S: Stream> Watched<S> {
    /// Reads the received bytes when sending fails. HTTP/2 aborts then without reading, and a
    /// server with another protocol has often responded before it closed the connection.
    fn sent<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(_)) = &poll {
            let mut bytes = [0; 64];
            let mut arrived = ReadBuf::new(&mut bytes);
            if let Poll::Ready(Ok(())) = Pin::new(&mut self.stream).poll_read(cx, &mut arrived) {
                self.greeting.arrived(arrived.filled());
            }
        }
        poll
    }
}

impl<S: Stream> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.greeting.arrived(&buf.filled()[before..]);
        poll
    }
}

impl<S: Stream> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.sent(cx, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        self.sent(cx, poll)
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
            stopped.run_until_cancelled(task).await;
            Ok::<_, std::convert::Infallible>(())
        });
    }
}

#[cfg(test)]
mod tests {
    use legate_runtime::Scope;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn tcp_keepalive_is_enabled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = connect(listener.local_addr().unwrap()).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), TCP_IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), TCP_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), TCP_PROBES);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(TCP_UNANSWERED));
    }

    /// A peer that has responded and closed the connection, so that nothing more can be sent.
    struct Closed(&'static [u8]);

    impl AsyncRead for Closed {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Closed {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn an_unread_response_identifies_the_protocol() {
        let greeting = Arc::new(Greeting::new(false));
        let mut stream = Watched {
            stream: Closed(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            greeting: Arc::clone(&greeting),
            _lost: None,
        };
        stream.write_all(b"PRI * HTTP/2.0").await.unwrap_err();
        let hint = greeting.hint().unwrap();
        assert!(hint.contains("speaks HTTP/1"), "{hint}");
    }

    #[test]
    fn a_ca_certificate_used_by_a_server_is_explained() {
        #[derive(Debug)]
        struct CaUsedAsEndEntity;
        impl std::fmt::Display for CaUsedAsEndEntity {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("CaUsedAsEndEntity")
            }
        }
        impl std::error::Error for CaUsedAsEndEntity {}
        let other = rustls::OtherError(Arc::new(CaUsedAsEndEntity));
        let text = untrusted_reason(&rustls::CertificateError::Other(other));
        assert!(text.contains("CA:TRUE"), "{text}");
        let text = untrusted_reason(&rustls::CertificateError::Expired);
        assert!(!text.contains("CA:TRUE"), "{text}");
    }

    #[tokio::test]
    async fn a_proxy_that_cannot_be_used_is_named() {
        let scope = Scope::new("test");
        let dialer = Dialer {
            tls: None,
            proxy: HttpProxy::new("socks5://proxy:1080", "", 8502),
            spawner: scope.spawner(),
        };
        let server = SocketAddr::from(([192, 0, 2, 1], 8502));
        let error = dialer.dial(server, None).await.err().unwrap();
        assert!(error.text.contains("HTTPS_PROXY"), "{error}");
    }
}
