//! Accepts HTTP connections and serves each in a task of its own, up to a limit per client and in
//! all. It knows nothing of what the requests mean.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::Service as _;

use super::error::ApiError;
use crate::net::{self, Admission, ApiLimit, Place};

/// How long a client may take to send the head of a request.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// How long a refused client gets to ask and to take its answer.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Refused clients that get an answer at one time; what is more is closed without one.
const REFUSALS: usize = 64;
/// How long open requests may go on after the stop.
const DRAIN_TIME: Duration = Duration::from_secs(5);

const REFUSAL: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\n\
    content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: 65\r\n\r\n\
    Too many connections from this client: reuse them, or close some\n";

/// Serves until the token is cancelled, then lets open requests finish.
pub(super) async fn serve(
    service: Service,
    listener: TcpListener,
    limit: ApiLimit,
    spawner: Spawner,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    let connections = spawner.child("HTTP connections");
    let admission = Admission::new("http", limit);
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    loop {
        let (stream, client) = tokio::select! {
            accepted = net::accept("http", &listener) => accepted,
            () = stop.cancelled() => break,
        };
        let task = if let Some(place) = admission.admit(client.ip()) {
            connection(service.clone(), stream, client, place, stop.clone()).left_future()
        } else if let Ok(slot) = refusals.clone().try_acquire_owned() {
            refuse(stream, slot).right_future()
        } else {
            continue;
        };
        connections.spawn("connection", task.map(Ok::<(), Infallible>));
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

async fn refuse(mut stream: TcpStream, _slot: OwnedSemaphorePermit) {
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
