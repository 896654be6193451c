//! A fake control-plane server with scripted behaviour.
//!
//! A real gRPC server on loopback, plaintext or TLS, with Consul's public services and delta ADS. A
//! test sets the responses through its [`Script`] and reads the recorded requests there. It has no
//! mesh of its own: all data comes from the test.
//!
//! ```no_run
//! # async fn example() {
//! use legate_testkit::fake_server::{Call, FakeServer};
//! let server = FakeServer::plaintext().await;
//! server.script().accept_token("secret");
//! server.script().fail_next(Call::Features, tonic::Status::unavailable("starting"));
//! // … start the code under test against server.address(), then:
//! let mut ads = server.accept_ads().await;
//! let request = ads.next().await.expect("a request");
//! # }
//! ```

mod ads;
mod io;
mod record;
mod script;
mod services;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use legate_runtime::{Scope, Spawner};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tower::util::MapRequestLayer;

pub use self::ads::{AdsStream, AdsStreams, resource};
pub use self::record::{Body, Call, Recorded};
pub use self::script::{DnsAnswer, Script, WAIT, server_entry};

use crate::network::{Listener, free_port_on};

use self::io::Io;
use self::services::{Authority, Services};

/// The deadline for the tasks of a stopped server.
const STOP: Duration = Duration::from_secs(5);

/// The listener of the server.
#[derive(Clone)]
pub struct FakeServerOptions {
    /// Address to listen on; default 127.0.0.1.
    pub ip: IpAddr,
    /// Port; 0 (the default) selects a free one.
    pub port: u16,
    /// TLS settings; plaintext HTTP/2 if `None` (the default).
    pub tls: Option<Arc<ServerConfig>>,
}

impl Default for FakeServerOptions {
    fn default() -> Self {
        Self {
            ip: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            tls: None,
        }
    }
}

/// The server. Dropping it is equivalent to killing it.
pub struct FakeServer {
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    services: Services,
    streams: AdsStreams,
    cut: Cut,
    running: Option<Scope>,
}

impl FakeServer {
    /// A plaintext server on a free port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// If it cannot listen.
    pub async fn plaintext() -> Self {
        Self::start(FakeServerOptions::default()).await
    }

    /// A TLS server on a free port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// If it cannot listen.
    pub async fn tls(config: Arc<ServerConfig>) -> Self {
        Self::start(FakeServerOptions {
            tls: Some(config),
            ..FakeServerOptions::default()
        })
        .await
    }

    /// Starts a server, which accepts connections when this returns.
    ///
    /// # Panics
    ///
    /// If it cannot listen.
    pub async fn start(options: FakeServerOptions) -> Self {
        // Not an ephemeral port, which a connection could take while the server is stopped.
        let port = match options.port {
            0 => free_port_on(&[options.ip]),
            port => port,
        };
        let listener = listen(SocketAddr::new(options.ip, port)).await;
        let (accepted, streams) = mpsc::channel(ads::UNACCEPTED);
        let mut server = Self {
            address: listener.address(),
            tls: options.tls,
            services: Services::new(Script::default(), accepted),
            streams: AdsStreams::new(streams),
            cut: Cut::default(),
            running: None,
        };
        server.running = Some(server.run(listener));
        server
    }

    /// The server's address, which remains after it was stopped.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's behaviour and recorded requests, which survive a restart.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.services.script
    }

    /// The next ADS stream opened by a client, in order.
    ///
    /// # Panics
    ///
    /// If none is opened within [`WAIT`].
    pub async fn accept_ads(&self) -> AdsStream {
        tokio::time::timeout(WAIT, self.streams.next())
            .await
            .expect("a client opens an ADS stream in time")
            .expect("the server holds the other end")
    }

    /// The ADS streams opened by clients, for a task that serves them across restarts of the server.
    #[must_use]
    pub fn ads_streams(&self) -> AdsStreams {
        self.streams.clone()
    }

    /// Closes all connections; new ones are accepted.
    pub fn cut_connections(&self) {
        self.cut.cut();
    }

    /// Stops the server as if it was killed: connections are closed and new ones refused when this
    /// returns.
    ///
    /// # Panics
    ///
    /// If connections do not end.
    pub async fn stop(&mut self) {
        if let Some(scope) = self.running.take() {
            self.cut.cut();
            scope.stop(STOP).await.expect("the fake server ends");
        }
    }

    /// Restarts it on the same address after [`stop`](Self::stop).
    ///
    /// # Panics
    ///
    /// If another process has taken the port meanwhile.
    pub async fn restart(&mut self) {
        self.stop().await;
        let listener = listen(self.address).await;
        self.running = Some(self.run(listener));
    }

    fn run(&self, listener: Listener) -> Scope {
        let scope = Scope::new("fake-server");
        let (ready, incoming) = mpsc::channel(16);
        let accept = Accept {
            listener,
            tls: self.tls.clone().map(TlsAcceptor::from),
            cut: self.cut.clone(),
            ready,
            spawner: scope.spawner(),
        };
        scope.spawn("accept", accept.run());
        let authority = MapRequestLayer::new(|mut request: http::Request<_>| {
            let authority = request.uri().authority().map(ToString::to_string);
            request.extensions_mut().insert(Authority(authority));
            request
        });
        let router = self
            .services
            .clone()
            .add_to(Server::builder().layer(authority));
        let stopped = scope.token();
        let incoming =
            tokio_stream::StreamExt::map(ReceiverStream::new(incoming), Ok::<_, Infallible>);
        scope.spawn("serve", async move {
            router
                .serve_with_incoming_shutdown(incoming, stopped.cancelled_owned())
                .await
        });
        scope
    }
}

impl std::fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeServer")
            .field("address", &self.address)
            .field("tls", &self.tls.is_some())
            .field("running", &self.running.is_some())
            .finish_non_exhaustive()
    }
}

async fn listen(address: SocketAddr) -> Listener {
    match Listener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => panic!("the fake server cannot listen on {address}: {error}"),
    }
}

/// The token of all connections: cancelling it closes them.
#[derive(Clone, Default)]
struct Cut(Arc<Mutex<CancellationToken>>);

impl Cut {
    fn token(&self) -> CancellationToken {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn cut(&self) {
        let mut token = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *token).cancel();
    }
}

struct Accept {
    listener: Listener,
    tls: Option<TlsAcceptor>,
    cut: Cut,
    ready: mpsc::Sender<Io>,
    spawner: Spawner,
}

impl Accept {
    async fn run(self) -> std::io::Result<()> {
        let stopped = self.spawner.token();
        loop {
            let (stream, peer) = tokio::select! {
                () = stopped.cancelled() => return Ok(()),
                accepted = self.listener.accept() => accepted?,
            };
            // A client that stalls in its handshake must not block others.
            let (tls, cut, ready) = (self.tls.clone(), self.cut.token(), self.ready.clone());
            let stopped = stopped.clone();
            self.spawner.spawn("handshake", async move {
                tokio::select! {
                    () = stopped.cancelled() => {}
                    io = handshake(stream, peer, tls, cut) => if let Some(io) = io {
                        // The receiver is gone if the server is being stopped.
                        let _ = ready.send(io).await;
                    }
                }
                Ok::<_, Infallible>(())
            });
        }
    }
}

/// `None` if the client disconnects or rejects the certificate.
async fn handshake(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    cut: CancellationToken,
) -> Option<Io> {
    let local = stream.local_addr().ok()?;
    stream.set_nodelay(true).ok()?;
    match tls {
        None => Some(Io::new(stream, local, peer, cut)),
        Some(acceptor) => Some(Io::new(
            acceptor.accept(stream).await.ok()?,
            local,
            peer,
            cut,
        )),
    }
}
