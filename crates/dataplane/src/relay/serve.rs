//! The gRPC server that Envoy connects to, and the relay's interface to the rest of the sidecar.
//!
//! Only the delta variant of ADS is served; every other method is unimplemented.

use std::convert::Infallible;

use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, USER_AGENT};
use http::{HeaderMap, Request};
use legate_api::discovery::DeltaDiscoveryResponse;
use legate_api::metadata;
use legate_client::Session;
use legate_runtime::net::accept;
use legate_runtime::{ReadyHandle, Spawner};
use tokio::sync::{mpsc, oneshot};
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::connections::{Connection, Connections};
use super::drive::{Call, Driver, FromProxy, Input, LocalStream};
use super::limits::MAX_STREAMS;
use super::listen::{Listener, Stream};
use super::metrics::RelayMetrics;
use super::server_streams::ServerStreams;
use super::status::RelayStatus;
use super::wire::{Message, refuse};

/// The only method that is served.
const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// Capacity of the queue of Envoys' calls. While it is full, their connections are not read.
const INPUTS: usize = MAX_STREAMS;

/// Capacity of the queues of a proxy in this process. Each type of resources has at most one response that is not
/// answered, and there are fewer types than this.
const LOCAL: usize = 16;

/// Maximum size of a stream's headers, 64 KiB. Headers that do not concern this connection are
/// forwarded to servers.
const MAX_HEADERS: u32 = 64 * 1024;

/// How much an Envoy may send on one stream before the relay has read it. Its first requests have 55
/// KiB each and, when it reconnects, the names of all its resources; with HTTP/2's default of 64 KiB
/// each of them would wait for the relay. Responses are limited by Envoy's own windows.
const STREAM_WINDOW: u32 = 1024 * 1024;

/// The same for all streams of one connection.
const CONNECTION_WINDOW: u32 = 2 * 1024 * 1024;

/// Maximum number of concurrent streams of a connection; further ones wait. Envoy opens one, and
/// another one if it considers the first broken.
const STREAMS: u32 = 16;

/// A running relay. Clones refer to the same one. It runs until the scope of its tasks stops.
#[derive(Debug, Clone)]
pub struct Relay {
    inputs: mpsc::Sender<Input>,
}

impl Relay {
    /// Starts serving Envoy on `listener` with resources from the session's servers. `readiness`
    /// shows whether Envoy has its configuration. If the relay fails, its task fails in the scope of
    /// `spawner`, with a `RelayError`.
    pub fn start(
        listener: Listener,
        session: Session,
        readiness: ReadyHandle,
        metrics: RelayMetrics,
        spawner: &Spawner,
    ) -> Relay {
        let (inputs, received) = mpsc::channel(INPUTS);
        let servers = ServerStreams::new(session, metrics.clone());
        let driver = Driver::new(received, servers, readiness, metrics);
        spawner.spawn("xDS relay", driver.run(spawner.token()));
        let service = Service {
            inputs: inputs.clone(),
            spawner: spawner.clone(),
        };
        spawner.spawn("xDS listener", service.accept(listener));
        Relay { inputs }
    }

    /// Opens a stream for a proxy in this process. It is one more Envoy to the relay. The stream ends when one of the
    /// two ends is dropped; dropped at once if the relay has ended.
    pub async fn join(
        &self,
    ) -> (
        mpsc::Sender<FromProxy>,
        mpsc::Receiver<DeltaDiscoveryResponse>,
    ) {
        let (requests, from_proxy) = mpsc::channel(LOCAL);
        let (to_proxy, responses) = mpsc::channel(LOCAL);
        let stream = LocalStream {
            requests: from_proxy,
            responses: to_proxy,
        };
        // Fails if the relay has ended, which the caller sees at its ends.
        let _ = self.inputs.send(Input::Joined(stream)).await;
        (requests, responses)
    }

    /// The relay's state; `None` once it has ended.
    pub async fn status(&self) -> Option<RelayStatus> {
        let (reply, status) = oneshot::channel();
        self.inputs.send(Input::Status(reply)).await.ok()?;
        status.await.ok()
    }
}

/// Accepts Envoy's calls and passes them to the driver, which reads and writes their streams itself:
/// one task per stream would need a wake-up for every message.
#[derive(Clone)]
struct Service {
    inputs: mpsc::Sender<Input>,
    spawner: Spawner,
}

impl Service {
    /// Accepts connections until the scope stops.
    async fn accept(self, listener: Listener) -> Result<(), Infallible> {
        let stop = self.spawner.token();
        let mut connections = Connections::default();
        let next = || accept("xDS", || listener.accept());
        while let Some(stream) = stop.run_until_cancelled(next()).await {
            let connection = connections.open(&stop);
            let watched = connection.clone().end_when_unused();
            self.spawner.spawn("idle xDS connections", watched);
            let served = self.clone().serve(stream, connection);
            self.spawner.spawn("xDS connection of Envoy", served);
        }
        Ok(())
    }

    /// Serves one connection until it ends. Its errors are visible to Envoy and need no handling
    /// here.
    async fn serve(self, stream: Stream, connection: Connection) -> Result<(), Infallible> {
        let ended = connection.ended();
        let _ends = ended.clone().drop_guard();
        let handshake = h2::server::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(MAX_HEADERS)
            .handshake(stream);
        let Some(Ok(mut http)) = ended.run_until_cancelled(handshake).await else {
            return Ok(());
        };
        while let Some(Some(call)) = ended.run_until_cancelled(http.accept()).await {
            match call {
                Ok((request, respond)) => self.call(request, respond, &connection).await,
                Err(_) => return Ok(()),
            }
        }
        if self.spawner.token().is_cancelled() {
            http.graceful_shutdown();
            while let Some(Ok(_)) = http.accept().await {}
        }
        Ok(())
    }

    async fn call(
        &self,
        request: Request<RecvStream>,
        respond: SendResponse<Message>,
        connection: &Connection,
    ) {
        let path = request.uri().path();
        if path != METHOD {
            let status = Status::unimplemented(format!("Unknown method {path}"));
            return refuse(respond, status);
        }
        let call = Call {
            metadata: forwarded(request.headers()),
            requests: request.into_body(),
            respond,
            connection: connection.open_stream(),
        };
        if let Err(mpsc::error::SendError(Input::Opened(call))) =
            self.inputs.send(Input::Opened(Box::new(call))).await
        {
            refuse(call.respond, Status::unavailable("the relay has ended"));
        }
    }
}

/// The metadata of an Envoy's stream that is forwarded to servers: everything except headers of the
/// connection and the ACL token. The session sends its own token.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_forwarded_except_for_reserved_headers() {
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
