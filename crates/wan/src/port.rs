//! The port for servers: accepts servers of all datacenters by mutual TLS and gives each connection to what its
//! ALPN name asks for. Who is not a server is refused before any other work is done.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use legate_runtime::admission::{Admission, ApiLimit};
use legate_runtime::{BoxError, CancellationToken, Spawner};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::arrivals::{Arrival, Arrivals};
use crate::executor::Tasks;
use crate::{PING, Protocol, Wan, exchange};

/// The largest number of connections of servers.
const CONNECTIONS: usize = 512;
/// Those of one address, unless servers are behind gateways: then all of them have the addresses of these.
const PER_ADDRESS: usize = 128;
/// The time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The time in which a server that exchanges members must send something.
const IDLE: Duration = Duration::from_secs(120);
/// The largest number of requests at a time of one connection. A server has 10,000 that wait for changes.
const REQUESTS: u32 = 16_384;
/// The time that open requests get at shutdown.
const DRAIN: Duration = Duration::from_secs(5);
/// The first byte of a TLS handshake.
const TLS: u8 = 22;

/// The body of a request or response.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Who sends a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The datacenters in its certificate.
    pub datacenters: Vec<String>,
    /// Its address.
    pub address: SocketAddr,
}

/// Answers the requests of other servers.
pub type Service =
    Arc<dyn Fn(Request<Incoming>, Caller) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// Accepts until `stop`, then lets open requests finish.
pub(crate) async fn serve(
    wan: Wan,
    listener: TcpListener,
    service: Service,
    spawner: Spawner,
    stop: CancellationToken,
) {
    let connections = spawner.child("connections of servers");
    let per_address = match wan.is_behind_gateways() {
        true => CONNECTIONS,
        false => PER_ADDRESS,
    };
    let limit = ApiLimit {
        in_all: CONNECTIONS,
        per_address,
    };
    let admission = Admission::new("servers", limit, None);
    let arrivals = Arrivals::default();
    let accepted = || legate_runtime::net::accept("servers", || listener.accept());
    while let Some((stream, address)) = stop.run_until_cancelled(accepted()).await {
        let connection = Accepted {
            wan: wan.clone(),
            service: Arc::clone(&service),
            address,
            arrival: arrivals.add(),
            admission: Arc::clone(&admission),
            tasks: Tasks(connections.spawner()),
            stop: stop.clone(),
        };
        connections.spawn("connection of a server", async move {
            if let Err(error) = Box::pin(connection.serve(stream)).await {
                tracing::debug!(%address, %error, "a connection of a server has ended");
            }
            Ok::<_, Infallible>(())
        });
    }
    drop(listener);
    // Failures were reported to the scope of the server.
    let _ = connections.stop(DRAIN).await;
}

struct Accepted {
    wan: Wan,
    service: Service,
    address: SocketAddr,
    arrival: Arrival,
    admission: Arc<Admission>,
    tasks: Tasks,
    stop: CancellationToken,
}

impl Accepted {
    async fn serve(self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let stop = self.stop.clone();
        let handshake = timeout(HANDSHAKE, self.handshake(stream));
        let handshake = self.arrival.yields.run_until_cancelled(handshake);
        let Some(done) = stop.run_until_cancelled(handshake).await else {
            return Ok(());
        };
        let yields = || io::Error::other("too many connections are waiting for their handshake");
        let (stream, datacenters) = done.ok_or_else(yields)???;
        let Self {
            wan,
            service,
            address,
            arrival,
            admission,
            tasks,
            stop,
        } = self;
        drop(arrival);
        let Some(_permit) = admission.admit(address.ip()) else {
            return Err(io::Error::other(
                "there are too many connections of servers",
            ));
        };
        let caller = Caller {
            datacenters,
            address,
        };
        match Protocol::of(stream.get_ref().1.alpn_protocol()) {
            Some(Protocol::Members) => exchange_lists(&wan, stream, &caller, &stop).await,
            Some(Protocol::Requests) => answer(service, tasks, stop, stream, caller).await,
            None => Err(io::Error::other("it names no protocol by ALPN")),
        }
    }

    /// The stream, and the datacenters of the server at its other end.
    async fn handshake(
        &self,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Vec<String>)> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != TLS {
            return Err(io::Error::other(format!(
                "it does not speak TLS (the first byte is {}): servers of Consul cannot be joined",
                first[0]
            )));
        }
        let tls = self.wan.identity().current();
        let stream = TlsAcceptor::from(tls.server()).accept(stream).await?;
        let certificates = stream.get_ref().1.peer_certificates();
        let own = certificates.and_then(|chain| chain.first());
        let datacenters = own.map(|own| tls.datacenters(own)).unwrap_or_default();
        if datacenters.is_empty() {
            let domain = &self.wan.identity().domain;
            return Err(io::Error::other(format!(
                "its certificate has no name server.<datacenter>.{domain}"
            )));
        }
        Ok((stream, datacenters))
    }
}

/// Answers the lists of another server with the list of this one, until it closes the connection.
async fn exchange_lists(
    wan: &Wan,
    mut stream: TlsStream<TcpStream>,
    caller: &Caller,
    stop: &CancellationToken,
) -> io::Result<()> {
    loop {
        let received = timeout(IDLE, exchange::receive(&mut stream, &caller.datacenters));
        let Some(received) = stop.run_until_cancelled(received).await else {
            return Ok(());
        };
        let Some(list) = received?? else {
            return Ok(());
        };
        let own = wan.merge_list(list);
        timeout(HANDSHAKE, exchange::send(&mut stream, &own)).await??;
    }
}

/// Answers requests over HTTP/2.
async fn answer(
    service: Service,
    tasks: Tasks,
    stop: CancellationToken,
    stream: TlsStream<TcpStream>,
    caller: Caller,
) -> io::Result<()> {
    let service = service_fn(move |request| {
        let answer = service(request, caller.clone());
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut builder = http2::Builder::new(tasks);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(REQUESTS)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(io::Error::other)
}
