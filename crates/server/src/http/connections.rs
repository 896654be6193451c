//! Accepts HTTP connections and serves each in a task of its own, up to a limit per client and in
//! all. It knows nothing of what the requests mean.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::{Method, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use legate_runtime::metrics::{Error as MetricsError, IntCounterVec, Opts, Registry};
use legate_runtime::{BoxError, CancellationToken, Spawner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::Service as _;

use super::error::ApiError;

/// Connections one client address may have open. Consul's `http_max_conns_per_client`.
const PER_CLIENT: usize = 200;
/// Connections in all: each costs a descriptor, and there are a thousand or so by default.
const IN_ALL: usize = 4096;
/// How long a client may take to send the head of a request.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// How long to rest when the system refuses connections, so that a lack of descriptors does not
/// become a busy loop.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// How long a refused client gets to ask and to take its answer.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// How long open requests may go on after the stop.
const DRAIN_TIME: Duration = Duration::from_secs(5);

const REFUSAL: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\n\
    content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: 65\r\n\r\n\
    Too many connections from this client: reuse them, or close some\n";

/// Serves until the token is cancelled, then lets open requests finish.
pub(super) async fn serve(
    service: Service,
    listener: TcpListener,
    spawner: Spawner,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    let connections = spawner.child("HTTP connections");
    let counts = Arc::new(Counts::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, client)) => {
                let task = match counts.admit(client.ip()) {
                    Some(place) => connection(service.clone(), stream, client, place, stop.clone())
                        .left_future(),
                    None => refuse(stream).right_future(),
                };
                connections.spawn("connection", task.map(Ok::<(), Infallible>));
            }
            Err(error) => {
                tracing::warn!(%error, "an HTTP connection could not be accepted");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
    // Nobody may connect to a server that has stopped accepting.
    drop(listener);
    match connections.stop(DRAIN_TIME).await {
        Err(error) if !error.dropped.is_empty() => {
            tracing::info!("HTTP requests that have not ended are cut off");
        }
        // A failure has reached the server's scope.
        _ => {}
    }
    Ok(())
}

async fn connection(
    service: Service,
    stream: TcpStream,
    client: SocketAddr,
    place: Place,
    stop: CancellationToken,
) {
    // Small answers must not wait for the client's acknowledgement; failing only costs time.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| service.clone().handle(request));
    let mut builder = http1::Builder::new();
    builder
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
    drop(place);
}

/// What every connection serves.
#[derive(Clone)]
pub(super) struct Service {
    router: Router,
    requests: IntCounterVec,
}

impl Service {
    /// # Errors
    /// When the registry holds metrics of these names already.
    pub(super) fn new(router: Router, registry: &Registry) -> Result<Self, MetricsError> {
        let requests = IntCounterVec::new(
            Opts::new(
                "legate_http_requests_total",
                "Requests to the HTTP API, by method and status.",
            ),
            &["method", "status"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        Ok(Self { router, requests })
    }

    async fn handle(mut self, request: Request<Incoming>) -> Result<Response, Infallible> {
        // The query string is left out: it may carry a token.
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let handling = AssertUnwindSafe(self.router.call(request.map(Body::new)));
        let response = match handling.catch_unwind().await {
            Ok(Ok(response)) => response,
            // One request must not end the control plane for everybody else, nor pass in silence.
            Err(_) => {
                tracing::error!(%method, path, "a request ended in a panic: this is a defect");
                ApiError::internal("The server failed on this request; its log says more")
                    .into_response()
            }
        };
        let status = response.status();
        tracing::debug!(%method, path, status = status.as_u16(), "HTTP request");
        self.requests
            .with_label_values(&[label(&method), status.as_str()])
            .inc();
        Ok(response)
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
    let _ = tokio::time::timeout(REFUSAL_TIME, answer).await;
}

/// How many connections there are, by client address.
#[derive(Default)]
struct Counts {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    by_client: HashMap<IpAddr, usize>,
    all: usize,
}

/// A connection's place among those that are open.
struct Place {
    counts: Arc<Counts>,
    client: IpAddr,
}

impl Counts {
    fn admit(self: &Arc<Self>, client: IpAddr) -> Option<Place> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all >= IN_ALL {
            return None;
        }
        let of_client = open.by_client.entry(client).or_default();
        if *of_client >= PER_CLIENT {
            return None;
        }
        *of_client += 1;
        open.all += 1;
        Some(Place {
            counts: self.clone(),
            client,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self
            .counts
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        open.all -= 1;
        if let Some(of_client) = open.by_client.get_mut(&self.client) {
            *of_client -= 1;
            if *of_client == 0 {
                open.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_its_places_back() {
        let counts = Arc::new(Counts::default());
        let one = IpAddr::from([192, 0, 2, 1]);
        let other = IpAddr::from([192, 0, 2, 2]);
        let mut places: Vec<_> = (0..PER_CLIENT).filter_map(|_| counts.admit(one)).collect();
        assert_eq!(places.len(), PER_CLIENT);
        assert!(counts.admit(one).is_none());
        assert!(counts.admit(other).is_some());
        places.pop();
        assert!(counts.admit(one).is_some());
        places.clear();
        assert!(counts.open.lock().unwrap().by_client.is_empty());
    }

    #[test]
    fn the_refusal_says_how_long_it_is() {
        let text = std::str::from_utf8(REFUSAL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
    }
}
