//! Connections to one member: TCP, TLS and HTTP/2 with keepalive.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_runtime::Spawner;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use super::config::Member;
use crate::backend::blocking;

/// The timeout of a connection, including its TLS handshake.
const CONNECT: Duration = Duration::from_secs(2);
/// The interval of keepalive pings without traffic during a call or watch. etcd refuses intervals
/// below 5 s (`--grpc-keepalive-min-time`).
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The timeout of a ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Large windows, because reading all rows takes many large responses.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// A channel that connects to a member on first use. The TLS files are read for each connection.
pub(super) fn channel(
    member: &Member,
    tls: &ClientTls,
    spawner: &Spawner,
) -> Result<Channel, String> {
    // `http`, because the connector does TLS, and tonic would refuse `https` here.
    let endpoint = Endpoint::from_shared(format!("http://{}", member.authority))
        .and_then(|endpoint| endpoint.user_agent(concat!("legate/", env!("CARGO_PKG_VERSION"))))
        .map_err(|error| error.to_string())?
        .executor(ScopeExecutor(spawner.clone()))
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let (member, tls) = (member.clone(), tls.clone());
    let connector = tower::service_fn(move |_: Uri| {
        let (member, tls) = (member.clone(), tls.clone());
        async move {
            let connected = timeout(CONNECT, connect(&member, tls)).await;
            let connected = connected.unwrap_or_else(|_| {
                let reason = format!("no connection within {CONNECT:?}");
                Err(io::Error::new(io::ErrorKind::TimedOut, reason))
            });
            connected.map(TokioIo::new)
        }
    });
    Ok(endpoint.connect_with_connector_lazy(connector))
}

async fn connect(member: &Member, tls: ClientTls) -> io::Result<Box<dyn Stream>> {
    let host = member.authority.host();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = member.authority.port_u16().unwrap_or_default();
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    if !member.tls {
        return Ok(Box::new(stream));
    }
    let config = blocking(move || client_config(&tls)).await;
    let config = config
        .ok_or_else(|| io::Error::other("reading the TLS files panicked"))?
        .map_err(io::Error::other)?;
    let name = server_name(host).map_err(io::Error::other)?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(Box::new(stream))
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Runs a connection's tasks in the backend's scope. They end with the channel, so that a commit in
/// flight can complete while the server stops.
struct ScopeExecutor(Spawner);

impl hyper::rt::Executor<Pin<Box<dyn Future<Output = ()> + Send>>> for ScopeExecutor {
    fn execute(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn("connection to etcd", async move {
            task.await;
            Ok::<_, std::convert::Infallible>(())
        });
    }
}
