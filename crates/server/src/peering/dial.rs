//! Connections to the servers of peered clusters: TCP, TLS with the roots of that cluster, and HTTP/2.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use legate_identity::tls::{client_config_with_roots, server_name};
use legate_model::Peering;
use legate_runtime::Spawner;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

/// The time for a connection with its handshakes. Consul's.
const CONNECT: Duration = Duration::from_secs(2);
/// The time without traffic until a ping is sent, and the time for its answer. Consul's.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a server of the peered cluster, or through the mesh gateway, at an address.
///
/// # Errors
/// The reason why there is none.
pub(super) async fn connect(
    peering: &Peering,
    address: &str,
    spawner: &Spawner,
) -> Result<Channel, String> {
    let roots = peering.peer_ca_pems.concat();
    let name = peering.peer_server_name.clone();
    let dialed = address.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let (address, name, roots) = (dialed.clone(), name.clone(), roots.clone());
        async move { open(&address, &name, &roots).await.map(TokioIo::new) }
    });
    // `http`, because the connector does TLS, and tonic would refuse `https` here.
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| error.to_string())?
        .executor(ScopeExecutor(spawner.clone()))
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    match timeout(CONNECT, endpoint.connect_with_connector(connector)).await {
        Ok(connected) => connected.map_err(|error| whole(&error)),
        Err(_) => Err(format!("no connection within {CONNECT:?}")),
    }
}

async fn open(address: &str, name: &str, roots: &str) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    if roots.is_empty() {
        // A token without roots is for servers without TLS.
        return Ok(Box::new(stream));
    }
    let config = client_config_with_roots(roots, "the roots of the peered cluster")
        .map_err(io::Error::other)?;
    let mut config = (*config).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = server_name(name).map_err(io::Error::other)?;
    let stream = TlsConnector::from(std::sync::Arc::new(config))
        .connect(name, stream)
        .await?;
    Ok(Box::new(stream))
}

/// An error with its causes. Tonic's own text says "transport error" only.
fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    let last = causes.last();
    last.map_or_else(|| error.to_string(), ToString::to_string)
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Runs a connection's tasks in the scope of its stream.
struct ScopeExecutor(Spawner);

impl hyper::rt::Executor<Pin<Box<dyn Future<Output = ()> + Send>>> for ScopeExecutor {
    fn execute(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn("connection to a peered cluster", async move {
            task.await;
            Ok::<_, Infallible>(())
        });
    }
}
