//! The gRPC server that Envoy connects to, and the relay as the rest of the sidecar sees it.
//!
//! Only the delta variant of ADS is served; everything else is unimplemented.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use legate_api::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_client::Session;
use legate_runtime::{CancellationToken, ReadyHandle, Spawner};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::core::SessionId;
use super::drive::{Driver, Input};
use super::listen::{Listener, Socket};
use super::metrics::RelayMetrics;
use super::status::RelayStatus;
use super::supply::Supply;

/// Messages of Envoys that wait for the relay; while it is full Envoys are not read.
const INPUTS: usize = 64;

/// Responses that wait for one Envoy: more than there are types.
const RESPONSES: usize = 80;

/// Largest request of an Envoy, 64 MiB: the names and versions of everything it holds.
const MAX_REQUEST: usize = 64 * 1024 * 1024;

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
    let service =
        AggregatedDiscoveryServiceServer::new(service).max_decoding_message_size(MAX_REQUEST);
    let router = Server::builder().add_service(service);
    let stopped = stop.cancelled_owned();
    match listener.socket {
        Socket::Tcp(socket) => {
            let incoming = TcpIncoming::from(socket).with_nodelay(Some(true));
            router
                .serve_with_incoming_shutdown(incoming, stopped)
                .await?;
        }
        Socket::Unix(socket, file) => {
            let incoming = UnixListenerStream::new(socket);
            router
                .serve_with_incoming_shutdown(incoming, stopped)
                .await?;
            drop(file);
        }
    }
    Ok(())
}

struct Service {
    inputs: mpsc::Sender<Input>,
    next: Arc<AtomicU64>,
    spawner: Spawner,
}

#[async_trait]
impl AggregatedDiscoveryService for Service {
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let id = SessionId(self.next.fetch_add(1, Ordering::Relaxed));
        let (sender, responses) = mpsc::channel(RESPONSES);
        if self.inputs.send(Input::Opened(id, sender)).await.is_err() {
            return Err(Status::unavailable("the relay has ended"));
        }
        let inputs = self.inputs.clone();
        let stop = self.spawner.token();
        self.spawner.spawn("xDS stream of Envoy", async move {
            read(id, request.into_inner(), &inputs, stop).await;
            // The relay may have ended before its streams.
            let _ = inputs.send(Input::Closed(id)).await;
            Ok::<_, Infallible>(())
        });
        Ok(Response::new(ReceiverStream::new(responses)))
    }
}

/// Hands over requests until Envoy or the relay ends.
async fn read(
    id: SessionId,
    mut requests: Streaming<DeltaDiscoveryRequest>,
    inputs: &mpsc::Sender<Input>,
    stop: CancellationToken,
) {
    loop {
        let request = tokio::select! {
            () = stop.cancelled() => return,
            request = requests.next() => request,
        };
        let request = match request {
            Some(Ok(request)) => Box::new(request),
            Some(Err(status)) => {
                tracing::debug!(code = ?status.code(), error = status.message(), "Envoy's xDS stream broke");
                return;
            }
            None => return,
        };
        if inputs.send(Input::Request(id, request)).await.is_err() {
            return;
        }
    }
}
