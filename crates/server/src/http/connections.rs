//! Accepts HTTP connections with and without TLS, and serves each in its own task, with limits per client and
//! in total.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, ready};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use legate_runtime::metrics::{Error as MetricsError, IntCounterVec, Opts, Registry};
use legate_runtime::{BoxError, CancellationToken, Spawner};
use legate_store::Reader;
use legate_wan::Caller;
use rustls::ServerConfig as TlsConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::Service as _;

use super::denial::{self, Asker};
use super::forward::{self, Forward, Passed};
use super::guard::Guard;
use crate::api_error::ApiError;
use crate::net::{self, Admission, ApiLimit};
use crate::wan::FOR_SERVERS;

/// Timeout for receiving the head of a request.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// Time in which a rejected client must send its request and receive the response.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Maximum concurrent rejections with a response. Further connections are closed without one.
const REFUSALS: usize = 64;
/// Time that requests in flight get at shutdown.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// All clients of UNIX sockets.
const LOCAL: Peer = Peer {
    address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
    transport: Transport::Socket,
};

const REFUSAL: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\n\
    content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: 65\r\n\r\n\
    Too many connections from this client: reuse them, or close some\n";

/// What a connection was accepted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// TCP without TLS.
    Plain,
    /// TCP with TLS.
    Tls,
    /// A UNIX socket.
    Socket,
    /// The port for servers: a server of another datacenter, which has accepted the request of its client.
    Server,
}

/// The client of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) transport: Transport,
}

/// Listeners of the HTTP API.
pub(crate) struct Listeners {
    /// Without TLS.
    pub(crate) plain: Vec<TcpListener>,
    /// UNIX sockets, without TLS.
    pub(crate) sockets: Vec<UnixListener>,
    /// With TLS.
    pub(crate) tls: Option<(Vec<TcpListener>, Arc<TlsConfig>)>,
}

impl Listeners {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.sockets.is_empty() && self.tls.is_none()
    }
}

/// Serves until `stop`, then lets requests in flight finish. All listeners share the limit.
pub(super) async fn serve(
    service: Arc<Service>,
    listeners: Listeners,
    limit: ApiLimit,
    spawner: Spawner,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    let connections = spawner.child("HTTP connections");
    let acceptor = Acceptor {
        service,
        connections: connections.spawner(),
        admission: Admission::new("http", limit, Some("--http-max-connections")),
        refusals: Arc::new(Semaphore::new(REFUSALS)),
        stop,
    };
    let plain = listeners.plain.into_iter();
    let plain = join_all(plain.map(|listener| acceptor.accept_plain(listener)));
    let sockets = listeners.sockets.into_iter();
    let sockets = join_all(sockets.map(|listener| acceptor.accept_local(listener)));
    let (tls, config) = listeners.tls.unzip();
    let config = config.map(TlsAcceptor::from);
    let tls = tls
        .unwrap_or_default()
        .into_iter()
        .zip(config.into_iter().cycle());
    let tls = join_all(tls.map(|(listener, config)| acceptor.accept_tls(listener, config)));
    tokio::join!(plain, sockets, tls);
    match connections.stop(DRAIN_TIME).await {
        Err(error) if !error.dropped.is_empty() => {
            tracing::info!("aborting HTTP requests that have not finished in time");
        }
        // Failures have been reported to the server's scope.
        _ => {}
    }
    Ok(())
}

/// Accepts on any number of listeners without ever waiting for a client. The listeners are dropped at shutdown,
/// so that new connections are refused.
struct Acceptor {
    service: Arc<Service>,
    connections: Spawner,
    admission: Arc<Admission>,
    refusals: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Acceptor {
    async fn accept_plain(&self, listener: TcpListener) {
        while let Some((stream, address)) = self.next(&listener).await {
            let client = Peer {
                address,
                transport: Transport::Plain,
            };
            if let Some(place) = self.admission.admit(address.ip()) {
                let serve = connection(self.service.clone(), stream, client, self.stop.clone());
                self.spawn(serve, place);
            } else if let Ok(slot) = self.refusals.clone().try_acquire_owned() {
                self.spawn(refuse(stream), slot);
            }
        }
    }

    /// All clients of UNIX sockets count as one address.
    async fn accept_local(&self, listener: UnixListener) {
        loop {
            let accepted = self.stop.run_until_cancelled(net::accept_local(&listener));
            let Some(stream) = accepted.await else { return };
            let Some(place) = self.admission.admit(LOCAL.address.ip()) else {
                continue;
            };
            let serve = connection(self.service.clone(), stream, LOCAL, self.stop.clone());
            self.spawn(serve, place);
        }
    }

    /// Clients beyond the limit are closed without a response: the handshake would cost more than serving them.
    async fn accept_tls(&self, listener: TcpListener, tls: TlsAcceptor) {
        while let Some((stream, client)) = self.next(&listener).await {
            let Some(place) = self.admission.admit(client.ip()) else {
                continue;
            };
            let (service, stop, tls) = (self.service.clone(), self.stop.clone(), tls.clone());
            let handshake_time = self.service.guard.policy.handshake_timeout;
            let serve = async move {
                let handshake = timeout(handshake_time, tls.accept(stream));
                match stop.run_until_cancelled(handshake).await {
                    Some(Ok(Ok(stream))) => {
                        let client = Peer {
                            address: client,
                            transport: Transport::Tls,
                        };
                        connection(service, stream, client, stop).await;
                    }
                    Some(Ok(Err(error))) => {
                        tracing::debug!(%client, %error, "TLS handshake failed")
                    }
                    Some(Err(_)) => tracing::debug!(%client, "TLS handshake took too long"),
                    None => {}
                }
            };
            self.spawn(serve, place);
        }
    }

    /// The next client; `None` after `stop`.
    async fn next(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
        let accepted = self
            .stop
            .run_until_cancelled(net::accept("http", listener))
            .await;
        let (stream, client) = accepted?;
        // Small responses must not wait for the client's ACK. Failure only costs latency.
        let _ = stream.set_nodelay(true);
        Some((stream, client))
    }

    /// Runs a connection to its end, and then releases its permit.
    fn spawn(&self, serve: impl Future<Output = ()> + Send + 'static, place: impl Send + 'static) {
        // Boxed: a future that awaits another one in place is twice as large, and there may be 10,000.
        let serve = Box::pin(serve);
        self.connections.spawn("connection", async move {
            serve.await;
            drop(place);
            Ok::<(), Infallible>(())
        });
    }
}

async fn connection(
    service: Arc<Service>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: Peer,
    stop: CancellationToken,
) {
    let largest = service.guard.policy.max_header_bytes;
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(client.address));
        service.clone().handle(request, client)
    });
    let mut builder = http1::Builder::new();
    builder
        .max_buf_size(largest)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        let client = client.address;
        tracing::debug!(%client, %error, "an HTTP connection ended early");
    }
}

/// The service behind all connections.
pub(super) struct Service {
    router: Router,
    guard: Guard,
    /// Passes requests on to other datacenters.
    forward: Option<Arc<Forward>>,
    /// Looks up the accessor id of denied requests.
    reader: Reader,
    requests: IntCounterVec,
}

impl Service {
    /// Fails if the registry already contains metrics of these names.
    pub(super) fn new(
        router: Router,
        guard: Guard,
        forward: Option<Forward>,
        reader: Reader,
        registry: &Registry,
    ) -> Result<Self, MetricsError> {
        let requests = IntCounterVec::new(
            Opts::new(
                "legate_http_requests_total",
                "Requests to the HTTP API, by method and status.",
            ),
            &["method", "status"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        Ok(Self {
            router,
            guard,
            forward: forward.map(Arc::new),
            reader,
            requests,
        })
    }

    /// Starts a request. The returned future retains only the method and path of the request: 10,000 of them
    /// may be waiting.
    fn handle(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        client: Peer,
    ) -> BoxFuture<'static, Result<Response, Infallible>> {
        // Without the query string, which may contain a token.
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let mut passing = Box::new(self.guard.enter(&request, client));
        let asker = Asker::default();
        request.extensions_mut().insert(asker.clone());
        let answer = match passing.refusal.take() {
            Some(refusal) => ready(Ok(refusal)).boxed(),
            None => self.answer(request.map(Body::new), client),
        };
        Box::pin(async move {
            let mut response = match AssertUnwindSafe(answer).catch_unwind().await {
                Ok(Ok(response)) => denial::complete(response, &asker, &self.reader),
                // A panic must not stop the server, nor go unreported.
                Err(_) => {
                    tracing::error!(%method, path, "a request handler panicked: this is a bug");
                    ApiError::internal("The server failed on this request; see its log")
                        .into_response()
                }
            };
            self.guard.leave(*passing, asker.tenancy(), &mut response);
            let status = response.status();
            tracing::debug!(%method, path, status = status.as_u16(), "HTTP request");
            self.requests
                .with_label_values(&[label(&method), status.as_str()])
                .inc();
            Ok(response)
        })
    }
}

impl Service {
    /// Answers a request here, or passes it on to the datacenter that it names. What another server has passed on is
    /// answered here in any case.
    fn answer(
        &self,
        request: Request<Body>,
        client: Peer,
    ) -> BoxFuture<'static, Result<Response, Infallible>> {
        let here = client.transport == Transport::Server;
        if !here && request.uri().path().starts_with(FOR_SERVERS) {
            let refused = ApiError::new(StatusCode::FORBIDDEN, "Only other servers may ask this");
            return ready(Ok(refused.into_response())).boxed();
        }
        let forward = self.forward.as_ref().filter(|_| !here);
        match forward.and_then(|forward| Some((forward, forward.datacenter_of(request.uri())?))) {
            Some((forward, datacenter)) => forward.send(datacenter, request).map(Ok).boxed(),
            None => self.answer_or_pass(request),
        }
    }

    /// Answers a request here, or passes it on to the primary datacenter.
    fn answer_or_pass(
        &self,
        request: Request<Body>,
    ) -> BoxFuture<'static, Result<Response, Infallible>> {
        let mut router = self.router.clone();
        let forward = self.forward.clone();
        let Some(forward) = forward.filter(|forward| forward.may_be_for_primary(&request)) else {
            return router.call(request).boxed();
        };
        let answer = async move {
            match forward.pass_to_primary(request).await {
                Passed::Answered(response) => Ok(response),
                Passed::Not(request) => router.call(request).await,
            }
        };
        answer.boxed()
    }

    /// Answers a request that a server of another datacenter has passed on.
    pub(super) async fn handle_server(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        caller: Caller,
    ) -> http::Response<legate_wan::Body> {
        let client = Peer {
            address: caller.address,
            transport: Transport::Server,
        };
        request.extensions_mut().insert(ConnectInfo(caller.address));
        request.extensions_mut().insert(caller);
        forward::keep_anonymous(&mut request);
        let Ok(response) = self.handle(request, client).await;
        response.map(|body| body.map_err(BoxError::from).boxed_unsync())
    }
}

/// Clients can send arbitrary methods, and label values are never freed.
fn label(method: &Method) -> &'static str {
    const KNOWN: [&str; 6] = ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"];
    let known = KNOWN.into_iter().find(|known| *known == method.as_str());
    known.unwrap_or("other")
}

async fn refuse(mut stream: TcpStream) {
    let answer = async {
        // Clients accept a response only after they have sent a request.
        let mut request = vec![0; 8 * 1024];
        if stream.read(&mut request).await? == 0 {
            return Ok(());
        }
        stream.write_all(REFUSAL).await?;
        stream.shutdown().await
    };
    // If the client does not read the response, the connection is closed anyway.
    let _ = timeout(REFUSAL_TIME, answer).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rejection_has_the_right_content_length() {
        let text = std::str::from_utf8(REFUSAL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
    }
}
