//! The gRPC server that Envoy connects to, and the relay as the rest of the sidecar sees it.
//!
//! Only the delta variant of ADS is served; everything else is unimplemented.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::StreamExt;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use legate_api::discovery::DeltaDiscoveryRequest;
use legate_client::Session;
use legate_runtime::{CancellationToken, ReadyHandle, Spawner};
use tokio::sync::{mpsc, oneshot};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::{Code, Status, Streaming};

use super::connections::{self, Handle};
use super::core::EnvoyStreamId;
use super::drive::{Driver, Input, Opening};
use super::forward;
use super::limits::{Limits, MAX_STREAMS};
use super::listen::Listener;
use super::metrics::RelayMetrics;
use super::request::RequestDecoder;
use super::status::RelayStatus;
use super::supply::Supply;
use super::wire::Responses;

/// The one method that is served.
const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// Messages of Envoys that wait for the relay; while it is full Envoys are not read. One of each
/// stream: a message may be large.
const INPUTS: usize = MAX_STREAMS;

/// Responses that wait for one Envoy: more than there are types.
const RESPONSES: usize = 80;

/// Largest list of headers of a stream, 64 KiB: what is not about this connection goes on to servers.
const MAX_HEADERS: u32 = 64 * 1024;

/// What an Envoy may send of one stream before the relay has read it. Its first requests have 55 KiB
/// each and, when it reconnects, the names of everything it holds: at HTTP/2's own 64 KiB each of
/// them would wait for the relay. Responses are limited by the windows that Envoy grants, and made
/// no faster than it takes them.
const STREAM_WINDOW: u32 = 1024 * 1024;

/// The same for all streams of one connection of an Envoy.
const CONNECTION_WINDOW: u32 = 2 * 1024 * 1024;

/// Streams of one connection; more wait. Envoy opens one, and one more when it thinks that the first
/// is broken.
const STREAMS: u32 = 16;

/// Why the relay ended.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// No server gives this proxy a configuration, and none will.
    #[error("Envoy gets no configuration: {reason}")]
    Refused {
        /// The server's words and what to look at.
        reason: String,
    },
    /// Envoys can no longer connect.
    #[error("the xDS listener for Envoy failed: {0}")]
    Listener(#[from] tonic::transport::Error),
}

/// What a relay is made of.
#[derive(Debug)]
pub struct RelayParts {
    /// Where Envoy connects.
    pub listener: Listener,
    /// Where resources come from.
    pub session: Session,
    /// Told whether Envoy has its configuration.
    pub readiness: ReadyHandle,
    /// What is counted.
    pub metrics: RelayMetrics,
}

/// A running relay. All copies are the same one; it runs until its tasks' scope stops.
#[derive(Debug, Clone)]
pub struct Relay {
    inputs: mpsc::Sender<Input>,
}

impl Relay {
    /// Starts serving Envoy. A failure of the relay is a failed task of the spawner's scope, with
    /// a [`RelayError`].
    pub fn start(parts: RelayParts, spawner: &Spawner) -> Relay {
        let RelayParts {
            listener,
            session,
            readiness,
            metrics,
        } = parts;
        let (inputs, received) = mpsc::channel(INPUTS);
        let stop = spawner.token();
        let supply = Supply::new(session, metrics.clone());
        let driver = Driver::new(received, supply, readiness, metrics, stop.clone());
        spawner.spawn("xDS relay", driver.run());
        let service = Service {
            inputs: inputs.clone(),
            next: Arc::new(AtomicU64::new(1)),
            spawner: spawner.clone(),
        };
        spawner.spawn("xDS listener", serve(listener, service, stop));
        Relay { inputs }
    }

    /// The relay's state; `None` once it has ended.
    pub async fn status(&self) -> Option<RelayStatus> {
        let (reply, status) = oneshot::channel();
        self.inputs.send(Input::Status(reply)).await.ok()?;
        status.await.ok()
    }
}

async fn serve(
    listener: Listener,
    service: Service,
    stop: CancellationToken,
) -> Result<(), RelayError> {
    let router = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(MAX_HEADERS)
        .add_service(service);
    let stopped = stop.cancelled_owned();
    router
        .serve_with_incoming_shutdown(connections::accept(listener.socket), stopped)
        .await?;
    Ok(())
}

/// Answers Envoy's calls. Written by hand for the sake of the way responses leave: see [`wire`].
///
/// [`wire`]: super::wire
#[derive(Clone)]
struct Service {
    inputs: mpsc::Sender<Input>,
    next: Arc<AtomicU64>,
    spawner: Spawner,
}

impl NamedService for Service {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl tower::Service<Request<Body>> for Service {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let answer = service.answer(request).await;
            Ok(answer.unwrap_or_else(Status::into_http))
        })
    }
}

impl Service {
    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let path = request.uri().path();
        if path != METHOD {
            return Err(Status::unimplemented(format!("Unknown method {path}")));
        }
        let id = EnvoyStreamId(self.next.fetch_add(1, Ordering::Relaxed));
        let (sender, responses) = mpsc::channel(RESPONSES);
        let (admitted, admission) = oneshot::channel();
        let limits = Limits::default();
        let stop = self.spawner.token().child_token();
        let connection = request.extensions().get::<Handle>().cloned();
        let opening = Opening {
            id,
            responses: sender,
            metadata: forward::of_envoy(request.headers()),
            connection: connection.map(Handle::open_stream),
            reading: stop.clone().drop_guard(),
            admitted,
        };
        let decoder = RequestDecoder::new(limits);
        let largest = Some(limits.request());
        let requests = Streaming::new_request(decoder, request.into_body(), None, largest);
        let inputs = self.inputs;
        self.spawner.spawn("xDS stream of Envoy", async move {
            if inputs.send(Input::Opened(Box::new(opening))).await.is_ok() {
                let end = read(id, requests, &inputs, stop).await;
                // The relay may have ended before its streams.
                let _ = inputs.send(Input::Closed(id, end)).await;
            }
            Ok::<_, Infallible>(())
        });
        match admission.await {
            Ok(admitted) => admitted?,
            Err(_) => return Err(Status::unavailable("the relay has ended")),
        }
        let mut response = Response::new(Body::new(Responses::new(responses)));
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, grpc);
        Ok(response)
    }
}

/// Hands over requests until Envoy or the relay ends. Returns why a stream is refused.
async fn read(
    id: EnvoyStreamId,
    mut requests: Streaming<DeltaDiscoveryRequest>,
    inputs: &mpsc::Sender<Input>,
    stop: CancellationToken,
) -> Option<Status> {
    let mut stopped = pin!(stop.cancelled());
    loop {
        let request = tokio::select! {
            biased;
            () = &mut stopped => return None,
            request = requests.next() => request?,
        };
        match request {
            Ok(request) => {
                let request = Input::Request(id, Box::new(request));
                inputs.send(request).await.ok()?;
            }
            // The library's code for a message that is too large.
            Err(status) if status.code() == Code::OutOfRange => {
                return Some(Status::resource_exhausted(status.message()));
            }
            Err(status) => return Some(status),
        }
    }
}
