//! Accepts HTTP connections, with and without TLS, and serves each in a task of its own, up to a limit
//! per client and in all. It knows nothing of what the requests mean.

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
use http::{Method, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use legate_runtime::metrics::{Error as MetricsError, IntCounterVec, Opts, Registry};
use legate_runtime::{BoxError, CancellationToken, Spawner};
use legate_store::Reader;
use rustls::ServerConfig as TlsConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::Service as _;

use super::denial::{self, Asker};
use super::guard::Guard;
use crate::api_error::ApiError;
use crate::net::{self, Admission, ApiLimit};

/// How long a client may take to send the head of a request.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// How long a refused client gets to ask and to take its answer.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Refused clients that get an answer at one time; what is more is closed without one.
const REFUSALS: usize = 64;
/// How long open requests may go on after the stop.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// What stands for the address of a client that came through the file system.
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

const REFUSAL: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\n\
    content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: 65\r\n\r\n\
    Too many connections from this client: reuse them, or close some\n";

/// Where the API listens: in plaintext, with TLS, or both.
pub(crate) struct Listeners {
    /// Without TLS.
    pub(crate) plain: Vec<TcpListener>,
    /// Without TLS, in the file system.
    pub(crate) sockets: Vec<UnixListener>,
    /// With TLS.
    pub(crate) tls: Option<(Vec<TcpListener>, Arc<TlsConfig>)>,
}

/// Serves until the token is cancelled, then lets open requests finish. Both ports share the limit.
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
        admission: Admission::new("http", limit),
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
            tracing::info!("HTTP requests that have not ended are cut off");
        }
        // A failure has reached the server's scope.
        _ => {}
    }
    Ok(())
}

/// Accepts on any number of listeners. It never waits for a client. Its listeners are closed as soon
/// as it stops: nobody may connect to a server that has stopped accepting.
struct Acceptor {
    service: Arc<Service>,
    connections: Spawner,
    admission: Arc<Admission>,
    refusals: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Acceptor {
    async fn accept_plain(&self, listener: TcpListener) {
        while let Some((stream, client)) = self.next(&listener).await {
            if let Some(place) = self.admission.admit(client.ip()) {
                let serve = connection(self.service.clone(), stream, client, self.stop.clone());
                self.spawn(serve, place);
            } else if let Ok(slot) = self.refusals.clone().try_acquire_owned() {
                self.spawn(refuse(stream), slot);
            }
        }
    }

    /// Clients of one machine count as one address, its own.
    async fn accept_local(&self, listener: UnixListener) {
        loop {
            let accepted = self.stop.run_until_cancelled(net::accept_local(&listener));
            let Some(stream) = accepted.await else { return };
            let Some(place) = self.admission.admit(LOCAL.ip()) else {
                continue;
            };
            let serve = connection(self.service.clone(), stream, LOCAL, self.stop.clone());
            self.spawn(serve, place);
        }
    }

    /// A client that has no place is closed without an answer: a handshake costs more than serving.
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
                    Some(Ok(Ok(stream))) => connection(service, stream, client, stop).await,
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

    /// The next client; `None` after the stop.
    async fn next(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
        let accepted = self
            .stop
            .run_until_cancelled(net::accept("http", listener))
            .await;
        let (stream, client) = accepted?;
        // Small answers must not wait for the client's acknowledgement; failing only costs time.
        let _ = stream.set_nodelay(true);
        Some((stream, client))
    }

    /// Runs a connection to its end, and gives its place or slot back then.
    fn spawn(&self, serve: impl Future<Output = ()> + Send + 'static, place: impl Send + 'static) {
        // In a box: a future that waits for another one in place has it twice, and there may be 10,000.
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
    client: SocketAddr,
    stop: CancellationToken,
) {
    let largest = service.guard.policy.max_header_bytes;
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(client));
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
        tracing::debug!(%client, %error, "an HTTP connection ended early");
    }
}

/// What every connection serves.
pub(super) struct Service {
    router: Router,
    guard: Guard,
    /// Whose token a refused request has.
    reader: Reader,
    requests: IntCounterVec,
}

impl Service {
    /// # Errors
    /// When the registry holds metrics of these names already.
    pub(super) fn new(
        router: Router,
        guard: Guard,
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
            reader,
            requests,
        })
    }

    /// Begins to answer a request. What waits for the answer holds nothing of the request but its name: there
    /// may be 10,000 that wait.
    fn handle(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        client: SocketAddr,
    ) -> BoxFuture<'static, Result<Response, Infallible>> {
        // The query string is left out: it may carry a token.
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let mut passing = Box::new(self.guard.enter(&request, client));
        let asker = Asker::default();
        request.extensions_mut().insert(asker.clone());
        let answer = match passing.refusal.take() {
            Some(refusal) => ready(Ok(refusal)).boxed(),
            None => self.router.clone().call(request.map(Body::new)).boxed(),
        };
        Box::pin(async move {
            let mut response = match AssertUnwindSafe(answer).catch_unwind().await {
                Ok(Ok(response)) => denial::complete(response, &asker, &self.reader),
                // One request must not end the control plane for everybody else, nor pass in silence.
                Err(_) => {
                    tracing::error!(%method, path, "a request ended in a panic: this is a defect");
                    ApiError::internal("The server failed on this request; its log says more")
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

/// Clients can make up methods, and every label is kept for ever.
fn label(method: &Method) -> &'static str {
    const KNOWN: [&str; 6] = ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"];
    let known = KNOWN.into_iter().find(|known| *known == method.as_str());
    known.unwrap_or("other")
}

async fn refuse(mut stream: TcpStream) {
    let answer = async {
        // Clients take an answer for theirs only when they have asked.
        let mut request = vec![0; 8 * 1024];
        if stream.read(&mut request).await? == 0 {
            return Ok(());
        }
        stream.write_all(REFUSAL).await?;
        stream.shutdown().await
    };
    // A client that does not take the answer is cut off like one that does.
    let _ = timeout(REFUSAL_TIME, answer).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_says_how_long_it_is() {
        let text = std::str::from_utf8(REFUSAL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
    }
}
