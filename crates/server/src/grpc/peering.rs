//! `PeerStreamService`: the exchange of secrets and the streams of the clusters that dial this one.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use legate_api::internal::peerstream::peer_stream_service_server::PeerStreamService;
use legate_api::internal::peerstream::replication_message::Open;
use legate_api::internal::peerstream::{
    ExchangeSecretRequest, ExchangeSecretResponse, ReplicationMessage,
};
use legate_model::{Locality, Peering, PeeringRemote, PeeringState, Secret};
use legate_peering::opening::{self, Known, Lifecycle, Opening, StreamSecrets};
use legate_peering::{End, Refusal, Session};
use legate_runtime::{BoxError, CancellationToken};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

use crate::peering::{self, Peerings, QUEUE};

/// The time for the first message of a stream.
const FIRST: Duration = Duration::from_secs(10);

pub(super) struct Service {
    peerings: Peerings,
    stop: CancellationToken,
}

impl Service {
    pub(super) fn new(peerings: Peerings, stop: CancellationToken) -> Self {
        Self { peerings, stop }
    }
}

type Messages = Pin<Box<dyn Stream<Item = Result<ReplicationMessage, Status>> + Send>>;

#[tonic::async_trait]
impl PeerStreamService for Service {
    type StreamResourcesStream = Messages;

    async fn stream_resources(
        &self,
        request: Request<Streaming<ReplicationMessage>>,
    ) -> Result<Response<Messages>, Status> {
        self.require_enabled()?;
        let mut incoming = request.into_inner();
        let first = match timeout(FIRST, incoming.message()).await {
            Ok(Ok(Some(first))) => first,
            Ok(Ok(None)) => return Err(Status::invalid_argument("the stream has no message")),
            Ok(Err(status)) => return Err(status),
            Err(_) => {
                let text = format!("no message within {FIRST:?}");
                return Err(Status::deadline_exceeded(text));
            }
        };
        let open = opening::first(first).map_err(status)?;
        let peering = self.peerings.state().read().peering_by_id(&open.peer_id);
        let known = peering.as_deref().map(known);
        let (peering, promote) = match (opening::decide(&open, known.as_ref()), peering) {
            (Opening::Accept { promote }, Some(peering)) => (peering, promote),
            (Opening::Accept { .. }, None) => return Err(Status::internal("no peering")),
            (
                Opening::Refuse {
                    refusal,
                    terminated,
                },
                _,
            ) => {
                let last = status(refusal);
                if !terminated {
                    return Err(last);
                }
                let messages = stream::iter([Ok(opening::terminated()), Err(last)]);
                return Ok(Response::new(messages.boxed()));
            }
        };
        if !self.peerings.has_authority() {
            return Err(status(opening::no_authority()));
        }
        if promote {
            self.promote(&peering, &open).await?;
        }
        let messages = self.start(&peering, incoming).await?;
        Ok(Response::new(messages))
    }

    async fn exchange_secret(
        &self,
        request: Request<ExchangeSecretRequest>,
    ) -> Result<Response<ExchangeSecretResponse>, Status> {
        self.require_enabled()?;
        let request = request.into_inner();
        let secret = Secret::new(Uuid::new_v4().to_string());
        let given = Secret::new(request.establishment_secret);
        let exchanged = self
            .peerings
            .exchange_secret(request.peer_id, given, secret.clone())
            .await;
        match exchanged {
            Ok(Ok(())) => Ok(Response::new(ExchangeSecretResponse {
                stream_secret: secret.expose().to_owned(),
            })),
            // Consul's text, whatever is wrong.
            Ok(Err(_)) => Err(Status::permission_denied(
                "invalid peering establishment secret",
            )),
            Err(error) => Err(Status::internal(format!(
                "failed to persist peering secret: {error}"
            ))),
        }
    }
}

impl Service {
    #[allow(clippy::result_large_err, reason = "tonic's services return this type")]
    fn require_enabled(&self) -> Result<(), Status> {
        match self.peerings.are_enabled() {
            true => Ok(()),
            false => Err(Status::failed_precondition(
                "peering is turned off on this server (peering.enabled)",
            )),
        }
    }

    async fn promote(&self, peering: &Peering, open: &Open) -> Result<(), Status> {
        let given = Secret::new(open.stream_secret_id.as_str());
        let remote = open.remote.clone().unwrap_or_default();
        let remote = PeeringRemote {
            partition: remote.partition,
            datacenter: remote.datacenter,
            locality: remote.locality.map(|locality| Locality {
                region: locality.region,
                zone: locality.zone,
            }),
        };
        if let Err(error) = remote.validate() {
            return Err(Status::invalid_argument(error.to_string()));
        }
        let id = peering.id.clone();
        let failed = |error: String| {
            let action = format!("persist peering: {error}");
            status(opening::storage_failed(&action))
        };
        match self.peerings.promote_secret(id, given, remote).await {
            Ok(promoted) => promoted.map_err(|error| failed(error.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Starts the stream. Its messages end with the error that ended it, if any.
    async fn start(
        &self,
        peering: &Peering,
        incoming: Streaming<ReplicationMessage>,
    ) -> Result<Messages, Status> {
        let (outgoing, messages) = mpsc::channel(QUEUE);
        let (rules, imported) = peering::Stream::inputs(&self.peerings, peering);
        let session = Session::acceptor(rules, imported);
        let io = (incoming.boxed(), outgoing);
        let opened = peering::Stream::open(self.peerings.clone(), peering, session, io).await;
        let stream = opened.map_err(|error| Status::unavailable(error.to_string()))?;
        let (ended, end) = oneshot::channel();
        let stop = self.stop.clone();
        let name = format!("stream of peer {}", peering.name);
        self.peerings.spawner().spawn(name, async move {
            if let (End::Failed(refusal), _) = stream.run(stop).await {
                // The connection may be gone.
                let _ = ended.send(refusal);
            }
            Ok::<_, BoxError>(())
        });
        let last = stream::once(end).filter_map(|end| async { Some(Err(status(end.ok()?))) });
        let messages = ReceiverStream::new(messages).map(Ok);
        Ok(messages.chain(last).boxed())
    }
}

/// What decides about a stream. Another stream of the peering does not: this one replaces it, since the cluster that dials
/// knows first that the other one was lost.
fn known(peering: &Peering) -> Known {
    let given = |secret: &Secret| (!secret.is_empty()).then(|| secret.clone());
    let secrets = StreamSecrets {
        active: given(&peering.active_secret),
        pending: given(&peering.pending_secret),
    };
    Known {
        lifecycle: match peering.state {
            PeeringState::Deleting => Lifecycle::Deleting,
            PeeringState::Terminated => Lifecycle::Terminated,
            _ => Lifecycle::Active,
        },
        dials: peering.dials(),
        secrets: (secrets != StreamSecrets::default()).then_some(secrets),
    }
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "it is the end of the refusal"
)]
fn status(refusal: Refusal) -> Status {
    Status::new(refusal.code.into(), refusal.message)
}
