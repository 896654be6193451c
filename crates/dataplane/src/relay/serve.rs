//! The gRPC server that Envoy connects to, and the relay as the rest of the sidecar sees it.
//!
//! Only the delta variant of ADS is served; everything else is unimplemented.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use legate_api::discovery::DeltaDiscoveryRequest;
use legate_api::metadata;
use legate_client::Session;
use legate_runtime::net::accept;
use legate_runtime::{CancellationToken, ReadyHandle, Spawner};
use tokio::sync::{mpsc, oneshot};
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status, Streaming};

use super::connections::{Connection, Connections, OpenStream};
use super::core::EnvoyStreamId;
use super::drive::{Driver, Envoy, Input};
use super::limits::{Limits, MAX_STREAMS};
use super::listen::{Listener, Stream};
use super::metrics::RelayMetrics;
use super::request::RequestDecoder;
use super::server_streams::ServerStreams;
use super::status::RelayStatus;
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

/// What a relay is made of.
#[derive(Debug)]
pub struct RelayParts {
    /// Where Envoy connects.
    pub listener: Listener,
    /// Where resources come from.
    pub session: Session,
    /// Learns whether Envoy has its configuration.
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
    /// a `RelayError`.
    pub fn start(parts: RelayParts, spawner: &Spawner) -> Relay {
        let RelayParts {
            listener,
            session,
            readiness,
            metrics,
        } = parts;
        let (inputs, received) = mpsc::channel(INPUTS);
        let servers = ServerStreams::new(session, metrics.clone());
        let driver = Driver::new(received, servers, readiness, metrics);
        spawner.spawn("xDS relay", driver.run(spawner.token()));
        let service = Service {
            inputs: inputs.clone(),
            next: Arc::new(AtomicU64::new(1)),
            spawner: spawner.clone(),
        };
        spawner.spawn("xDS listener", service.accept(listener));
        Relay { inputs }
    }

    /// The relay's state; `None` once it has ended.
    pub async fn status(&self) -> Option<RelayStatus> {
        let (reply, status) = oneshot::channel();
        self.inputs.send(Input::Status(reply)).await.ok()?;
        status.await.ok()
    }
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

impl Service {
    /// Takes connections until the scope stops.
    async fn accept(self, listener: Listener) -> Result<(), Infallible> {
        let stop = self.spawner.token();
        let mut connections = Connections::default();
        let next = || accept("xDS", || listener.accept());
        while let Some(stream) = stop.run_until_cancelled(next()).await {
            let served = self.clone().serve(stream, connections.open());
            self.spawner.spawn("xDS connection of Envoy", served);
        }
        Ok(())
    }

    /// Serves one connection to its end. What goes wrong with it concerns Envoy, who sees it.
    async fn serve(self, stream: Stream, connection: Connection) -> Result<(), Infallible> {
        let _ends = connection.ends();
        let stop = self.spawner.token();
        let service = service_fn(|request| {
            let answer = self.clone().answer(request, connection.open_stream());
            async { Ok::<_, Infallible>(answer.await.unwrap_or_else(Status::into_http)) }
        });
        let http = http2::Builder::new(StreamTasks(self.spawner.clone()))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(MAX_HEADERS)
            .serve_connection(TokioIo::new(stream), service);
        let mut http = pin!(http);
        tokio::select! {
            _ = &mut http => return Ok(()),
            () = connection.is_unused() => return Ok(()),
            () = stop.cancelled() => {}
        }
        http.as_mut().graceful_shutdown();
        let _ = http.await;
        Ok(())
    }

    async fn answer(
        self,
        request: Request<Incoming>,
        connection: OpenStream,
    ) -> Result<Response<Body>, Status> {
        let path = request.uri().path();
        if path != METHOD {
            return Err(Status::unimplemented(format!("Unknown method {path}")));
        }
        let id = EnvoyStreamId(self.next.fetch_add(1, Ordering::Relaxed));
        let (sender, responses) = mpsc::channel(RESPONSES);
        let (admitted, admission) = oneshot::channel();
        let limits = Limits::default();
        let stop = self.spawner.token().child_token();
        let metadata = forwarded(request.headers());
        let reading = stop.clone().drop_guard();
        let envoy = Box::new(Envoy::new(sender, metadata, connection, reading));
        let decoder = RequestDecoder::new(limits);
        let largest = Some(limits.request());
        let requests = Streaming::new_request(decoder, request.into_body(), None, largest);
        let inputs = self.inputs;
        self.spawner.spawn("xDS stream of Envoy", async move {
            let opened = Input::Opened(id, envoy, admitted);
            if inputs.send(opened).await.is_ok() {
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

/// Runs the streams of a connection in the relay's scope.
#[derive(Clone)]
struct StreamTasks(Spawner);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamTasks {
    fn execute(&self, task: F) {
        self.0.spawn("xDS response to Envoy", async {
            task.await;
            Ok::<_, Infallible>(())
        });
    }
}

/// The metadata of an Envoy's stream that servers get to see: all that is not about this connection
/// or about who may do what. An `x-consul-token` of Envoy's is not passed on; the session's own
/// takes its place.
fn forwarded(headers: &HeaderMap) -> MetadataMap {
    let own = [CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, USER_AGENT];
    let mut forwarded = HeaderMap::new();
    for (name, value) in headers {
        let reserved = own.contains(name) || name.as_str().starts_with("grpc-");
        if !reserved && *name != metadata::TOKEN {
            forwarded.append(name, value.clone());
        }
    }
    MetadataMap::from_headers(forwarded)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_but_for_what_is_reserved() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", "envoy"),
            ("grpc-timeout", "1S"),
            ("grpc-accept-encoding", "gzip"),
            ("x-consul-token", "of Envoy"),
            ("x-envoy-internal", "true"),
            ("x-twice", "a"),
            ("x-twice", "b"),
            ("x-some-bin", "AAEC"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let forwarded = forwarded(&headers).into_headers();
        let mut left: Vec<_> = forwarded
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [
                ("x-envoy-internal", "true"),
                ("x-some-bin", "AAEC"),
                ("x-twice", "a"),
                ("x-twice", "b"),
            ]
        );
    }
}
