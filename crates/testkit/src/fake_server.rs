//! A control-plane server that does what the test says, right or wrong.
//!
//! It is a real gRPC server on loopback, plaintext or TLS, with Consul's public services and
//! delta ADS. A test tells it through its [`Script`] what to answer, and reads there what was
//! asked. It holds no mesh: what no test has put in, it does not know.
//!
//! ```no_run
//! # async fn example() {
//! use legate_testkit::fake_server::{Call, FakeServer};
//! let server = FakeServer::plaintext().await;
//! server.script().accept_token("secret");
//! server.script().fail_next(Call::Features, tonic::Status::unavailable("starting"));
//! // … start what is tested against server.address(), then:
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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tower::util::MapRequestLayer;

pub use self::ads::{AdsStream, resource};
pub use self::record::{Body, Call, Recorded};
pub use self::script::{DnsAnswer, Script, WAIT, server_entry};

use self::io::Io;
use self::services::{Authority, Services};

/// How long the tasks of a stopped server may take to end; they only have to notice.
const STOP: Duration = Duration::from_secs(5);

/// Where and how the server listens.
#[derive(Clone)]
pub struct FakeServerOptions {
    /// Address to listen on; default 127.0.0.1.
    pub ip: IpAddr,
    /// Port; 0 (the default) takes a free one.
    pub port: u16,
    /// TLS settings; plaintext HTTP/2 without (the default).
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

/// The server. Dropping it is like killing it.
pub struct FakeServer {
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    services: Services,
    streams: tokio::sync::Mutex<mpsc::Receiver<AdsStream>>,
    cut: Cut,
    running: Option<Scope>,
}

impl FakeServer {
    /// A plaintext server on a free port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// When it cannot listen.
    pub async fn plaintext() -> Self {
        Self::start(FakeServerOptions::default()).await
    }

    /// A TLS server on a free port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// When it cannot listen.
    pub async fn tls(config: Arc<ServerConfig>) -> Self {
        Self::start(FakeServerOptions {
            tls: Some(config),
            ..FakeServerOptions::default()
        })
        .await
    }

    /// Starts a server. It accepts connections when this returns.
    ///
    /// # Panics
    ///
    /// When it cannot listen.
    pub async fn start(options: FakeServerOptions) -> Self {
        let wanted = SocketAddr::new(options.ip, options.port);
        let listener = listen(wanted).await;
        let (accepted, streams) = mpsc::channel(ads::UNACCEPTED);
        let mut server = Self {
            address: listener
                .local_addr()
                .expect("a bound socket has an address"),
            tls: options.tls,
            services: Services::new(Script::default(), accepted),
            streams: tokio::sync::Mutex::new(streams),
            cut: Cut::default(),
            running: None,
        };
        server.running = Some(server.run(listener));
        server
    }

    /// Where the server listens, or listened before it was stopped.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the server does and what it was asked. Survives a restart.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.services.script
    }

    /// The next ADS stream that a client opens, in the order of their opening.
    ///
    /// # Panics
    ///
    /// When none is opened within [`WAIT`].
    pub async fn accept_ads(&self) -> AdsStream {
        let mut streams = self.streams.lock().await;
        tokio::time::timeout(WAIT, streams.recv())
            .await
            .expect("a client opens an ADS stream in time")
            .expect("the server holds the other end")
    }

    /// Closes all connections; new ones are accepted.
    pub fn cut_connections(&self) {
        self.cut.cut();
    }

    /// Stops as if killed: all connections close, new ones are refused. Done when it returns.
    ///
    /// # Panics
    ///
    /// When connections do not end.
    pub async fn stop(&mut self) {
        if let Some(scope) = self.running.take() {
            self.cut.cut();
            scope.stop(STOP).await.expect("the fake server ends");
        }
    }

    /// Starts again on the same address after [`stop`](Self::stop).
    ///
    /// # Panics
    ///
    /// When somebody else took the port meanwhile.
    pub async fn restart(&mut self) {
        self.stop().await;
        let listener = listen(self.address).await;
        self.running = Some(self.run(listener));
    }

    fn run(&self, listener: TcpListener) -> Scope {
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

async fn listen(address: SocketAddr) -> TcpListener {
    match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => panic!("the fake server cannot listen on {address}: {error}"),
    }
}

/// What connections hang on: cancelling the token closes them.
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
    listener: TcpListener,
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
            // A client that stalls in its handshake must not keep others out.
            let (tls, cut, ready) = (self.tls.clone(), self.cut.token(), self.ready.clone());
            let stopped = stopped.clone();
            self.spawner.spawn("handshake", async move {
                tokio::select! {
                    () = stopped.cancelled() => {}
                    io = handshake(stream, peer, tls, cut) => if let Some(io) = io {
                        // Nobody takes it any more when the server stops right now.
                        let _ = ready.send(io).await;
                    }
                }
                Ok::<_, Infallible>(())
            });
        }
    }
}

/// `None` when the client goes away or does not like the certificate.
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
