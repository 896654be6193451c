//! One request to a server of metrics pages, over HTTP or HTTPS. Goes through no proxy, follows
//! nothing and retries nothing; the caller limits the time.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_runtime::Spawner;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

use super::Format;
use super::fetch::{FetchError, Target};

/// How much of a page waits in the connection, in bytes.
const BUFFER: usize = 64 * 1024;

/// Opens connections, in tasks of the scope of its spawner. Copies share what is read once, and
/// the one turn for look-ups of names.
#[derive(Debug, Clone)]
pub(super) struct Dialer {
    spawner: Spawner,
    /// The TLS configuration, once the system's authorities have been read.
    tls: Arc<Mutex<Option<Arc<ClientConfig>>>>,
    /// A look-up that nobody waits for any more goes on in its thread: there is one at a time.
    look_up: Arc<Mutex<()>>,
}

impl Dialer {
    pub(super) fn new(spawner: Spawner) -> Dialer {
        Dialer {
            spawner,
            tls: Arc::default(),
            look_up: Arc::default(),
        }
    }

    pub(super) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// The answer to a target's path, over a connection of its own.
    pub(super) async fn get(
        &self,
        target: &Target,
        wanted: Format,
    ) -> Result<Response<Incoming>, FetchError> {
        let accept = match wanted {
            Format::Text => "text/plain;version=0.0.4;q=0.9,*/*;q=0.1",
            Format::OpenMetrics => {
                "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
            }
        };
        let failed = |reason: String| FetchError::Connection {
            target: target.clone(),
            reason,
        };
        let request = Request::get(target.path())
            .header(header::HOST, target.authority())
            .header(header::ACCEPT, accept)
            .header(header::CONNECTION, "close")
            .body(Empty::new())
            .map_err(|error| failed(error.to_string()))?;
        let mut sender = self.connect(target).await.map_err(failed)?;
        let answer = sender.send_request(request).await;
        answer.map_err(|error| failed(error.to_string()))
    }

    async fn connect(&self, target: &Target) -> Result<http1::SendRequest<Empty<Bytes>>, String> {
        let failed = |error: io::Error| error.to_string();
        let addresses = self.addresses(target).await.map_err(failed)?;
        let stream = TcpStream::connect(&*addresses).await.map_err(failed)?;
        if !target.tls() {
            return handshake(stream, &self.spawner).await;
        }
        let name = server_name(target.host()).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(self.tls().await?)
            .connect(name, stream)
            .await
            .map_err(failed)?;
        handshake(stream, &self.spawner).await
    }

    async fn addresses(&self, target: &Target) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = target.host().parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, target.port())]);
        }
        let turn = Arc::clone(&self.look_up).lock_owned().await;
        let name = (target.host().to_owned(), target.port());
        let found = spawn_blocking(move || {
            let _turn = turn;
            name.to_socket_addrs().map(Vec::from_iter)
        });
        found.await.map_err(io::Error::other)?
    }

    /// Reading the system's authorities takes a while, and is done once, in a thread of its own.
    async fn tls(&self) -> Result<Arc<ClientConfig>, String> {
        let mut tls = Arc::clone(&self.tls).lock_owned().await;
        if let Some(config) = &*tls {
            return Ok(Arc::clone(config));
        }
        // Files and variables name no authority for the application: the system's are believed.
        let options = ClientTls {
            ca: None,
            client_cert: None,
            insecure_skip_verify: false,
            alpn_h2: false,
        };
        // It is kept also when whoever asked has no time left.
        let read = spawn_blocking(move || {
            let config = client_config(&options).map_err(|error| error.to_string())?;
            *tls = Some(Arc::clone(&config));
            Ok(config)
        });
        read.await.map_err(|error| error.to_string())?
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    spawner: &Spawner,
) -> Result<http1::SendRequest<Empty<Bytes>>, String> {
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let stop = spawner.token();
    spawner.spawn("metrics connection", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            // Whoever reads the page sees its errors.
            _ = connection => {}
        }
        Ok::<_, Infallible>(())
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use legate_runtime::Scope;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_look_up_that_hangs_keeps_others_waiting_and_starts_no_threads() {
        let scope = Scope::new("test");
        let dialer = Dialer::new(scope.spawner());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = |host: &str| format!("http://{host}:{port}/").parse::<Target>().unwrap();
        let hangs = Arc::clone(&dialer.look_up).lock_owned().await;
        for _ in 0..100 {
            let localhost = target("localhost");
            let connect = dialer.connect(&localhost);
            let waited = timeout(Duration::from_millis(1), connect).await;
            assert!(waited.is_err(), "it looked the name up");
        }
        // An address needs no look-up.
        dialer.connect(&target("127.0.0.1")).await.unwrap();
        drop(hangs);
        dialer.connect(&target("localhost")).await.unwrap();
    }
}
