//! The connection between two clusters: a relay that notes the messages of two real ones, and a player that sends those of
//! a recording to Legate. Neither uses TLS: a token without roots is for servers without it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use legate_api::internal::peerstream::peer_stream_service_client::PeerStreamServiceClient;
use legate_api::internal::peerstream::peer_stream_service_server::{
    PeerStreamService, PeerStreamServiceServer,
};
use legate_api::internal::peerstream::replication_message::{Payload, Request as Answer};
use legate_api::internal::peerstream::{
    ExchangeSecretRequest, ExchangeSecretResponse, ReplicationMessage,
};
use legate_runtime::{Scope, Spawner};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

use super::messages;

/// The number of messages between two tasks.
const QUEUE: usize = 64;

/// The one-time secret in the tokens of a player.
const PEERING_SECRET: &str = "of-the-token";

/// A side of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Consul,
    Legate,
}

/// What was sent so far by each side, apart from heartbeats.
#[derive(Debug, Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<(Side, Value)>>>);

impl Log {
    fn add(&self, side: Side, message: &ReplicationMessage) {
        if !matches!(message.payload, Some(Payload::Heartbeat(_))) {
            let message = messages::recorded(messages::to_json(message));
            self.0
                .lock()
                .expect("no holder panics")
                .push((side, message));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().expect("no holder panics").len()
    }

    /// What a side has sent after the first `skipped` messages.
    pub(super) fn of(&self, side: Side, skipped: usize) -> Vec<Value> {
        let all = self.0.lock().expect("no holder panics");
        let of_side = all
            .iter()
            .skip(skipped)
            .filter(|(sent_by, _)| *sent_by == side);
        of_side.map(|(_, message)| message.clone()).collect()
    }
}

/// A token of Consul or Legate, for another address without TLS.
pub(super) fn redirected(token: &str, address: SocketAddr) -> String {
    let mut json = token_of(token);
    json["CA"] = json!([]);
    json["ServerAddresses"] = json!([address.to_string()]);
    STANDARD.encode(json.to_string())
}

/// A token of a cluster that has this peering, at an address without TLS.
pub(super) fn token_for(address: SocketAddr, peering: &str) -> String {
    let token = json!({
        "CA": [], "ServerAddresses": [address.to_string()], "ServerName": "server.dc1.peering.other",
        "PeerID": peering, "EstablishmentSecret": PEERING_SECRET,
        "Remote": {"Partition": "", "Datacenter": "dc1"},
    });
    STANDARD.encode(token.to_string())
}

fn token_of(token: &str) -> Value {
    let bytes = STANDARD.decode(token).expect("a token is base64");
    serde_json::from_slice(&bytes).expect("with JSON in it")
}

type Stream = BoxStream<'static, Result<ReplicationMessage, Status>>;

/// Accepts streams in place of a cluster.
#[derive(Clone)]
struct Acceptor {
    /// The cluster to which everything goes; a recording if `None`.
    target: Option<Channel>,
    /// Who dials.
    dialer: Side,
    log: Log,
    spawner: Spawner,
    /// Where the streams of a player go.
    opened: mpsc::Sender<(
        Streaming<ReplicationMessage>,
        mpsc::Sender<ReplicationMessage>,
    )>,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Consul => Self::Legate,
            Self::Legate => Self::Consul,
        }
    }
}

#[tonic::async_trait]
impl PeerStreamService for Acceptor {
    type StreamResourcesStream = Stream;

    async fn stream_resources(
        &self,
        request: Request<Streaming<ReplicationMessage>>,
    ) -> Result<Response<Stream>, Status> {
        let mut incoming = request.into_inner();
        let (forward, forwarded) = mpsc::channel(QUEUE);
        let Some(target) = self.target.clone() else {
            let sent = self.opened.send((incoming, forward)).await;
            sent.map_err(|_| Status::unavailable("the recording has ended"))?;
            return Ok(Response::new(
                ReceiverStream::new(forwarded).map(Ok).boxed(),
            ));
        };
        let (log, dialer) = (self.log.clone(), self.dialer);
        self.spawner.spawn("messages of the dialer", async move {
            while let Ok(Some(message)) = incoming.message().await {
                log.add(dialer, &message);
                if forward.send(message).await.is_err() {
                    break;
                }
            }
            Ok::<_, Status>(())
        });
        let mut client = PeerStreamServiceClient::new(target);
        let answers = client
            .stream_resources(ReceiverStream::new(forwarded))
            .await?;
        let log = self.log.clone();
        let answers = answers.into_inner().inspect(move |message| {
            if let Ok(message) = message {
                log.add(dialer.other(), message);
            }
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn exchange_secret(
        &self,
        request: Request<ExchangeSecretRequest>,
    ) -> Result<Response<ExchangeSecretResponse>, Status> {
        match self.target.clone() {
            Some(target) => {
                let mut client = PeerStreamServiceClient::new(target);
                client.exchange_secret(request.into_inner()).await
            }
            None => Ok(Response::new(ExchangeSecretResponse {
                stream_secret: "of-the-recording".to_owned(),
            })),
        }
    }
}

/// Starts an acceptor, and returns its address.
async fn serve(acceptor: Acceptor, scope: &Scope) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let stop = scope.token().cancelled_owned();
    scope.spawn("acceptor of streams", async move {
        let service = PeerStreamServiceServer::new(acceptor);
        let server = Server::builder().add_service(service);
        server
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop)
            .await
    });
    address
}

/// Starts a relay to a cluster that accepts. Returns the address to dial.
pub(super) async fn relay(
    target: SocketAddr,
    dialer: Side,
    log: &Log,
    scope: &Scope,
) -> SocketAddr {
    let target = Channel::from_shared(format!("http://{target}")).expect("an address");
    let (opened, _) = mpsc::channel(1);
    let acceptor = Acceptor {
        target: Some(target.connect_lazy()),
        dialer,
        log: log.clone(),
        spawner: scope.spawner(),
        opened,
    };
    serve(acceptor, scope).await
}

/// Sends the messages of Consul in a recording to Legate, and answers what Legate sends.
pub(super) struct Player {
    to_legate: mpsc::Sender<ReplicationMessage>,
    /// What the placeholders stand for.
    secret: String,
    peering: String,
}

impl Player {
    /// Opens a stream to Legate with its token.
    pub(super) async fn dial(legate: SocketAddr, token: &str, log: &Log, scope: &Scope) -> Self {
        let token = token_of(token);
        let text = |field: &str| token[field].as_str().unwrap_or_default().to_owned();
        let channel = Channel::from_shared(format!("http://{legate}")).expect("an address");
        let mut client = PeerStreamServiceClient::new(channel.connect_lazy());
        let exchange = ExchangeSecretRequest {
            peer_id: text("PeerID"),
            establishment_secret: text("EstablishmentSecret"),
        };
        let secret = client.exchange_secret(exchange).await.expect("a secret");
        let (to_legate, messages) = mpsc::channel(QUEUE);
        let (log, answers) = (log.clone(), to_legate.clone());
        scope.spawn("stream to Legate", async move {
            let messages = ReceiverStream::new(messages);
            let stream = client.stream_resources(messages).await?;
            listen(stream.into_inner(), &answers, &log).await;
            Ok::<_, Status>(())
        });
        Self {
            to_legate,
            secret: secret.into_inner().stream_secret,
            peering: text("PeerID"),
        }
    }

    /// Accepts a stream of Legate, for which `establish` is called with the address.
    pub(super) async fn accept(
        establish: impl AsyncFnOnce(SocketAddr),
        peering: &str,
        log: &Log,
        scope: &Scope,
    ) -> Self {
        let (opened, mut streams) = mpsc::channel(1);
        let acceptor = Acceptor {
            target: None,
            dialer: Side::Legate,
            log: log.clone(),
            spawner: scope.spawner(),
            opened,
        };
        establish(serve(acceptor, scope).await).await;
        let (stream, to_legate) = streams.recv().await.expect("the acceptor runs");
        let (log, answers) = (log.clone(), to_legate.clone());
        scope.spawn("stream of Legate", async move {
            listen(stream, &answers, &log).await;
            Ok::<_, Status>(())
        });
        Self {
            to_legate,
            secret: String::new(),
            peering: peering.to_owned(),
        }
    }

    /// Sends the messages of a part. Answers to what Legate sent while it was recorded are left out: those to what it sends now
    /// are sent by themselves.
    pub(super) async fn send(&self, part: &[Value]) {
        for message in part {
            if message.pointer("/request/responseNonce").is_some() {
                continue;
            }
            let mut message = message.clone();
            messages::change(&mut message, &|text| match text {
                messages::SECRET => self.secret.clone(),
                messages::PEERING => self.peering.clone(),
                other => other.to_owned(),
            });
            let sent = self.to_legate.send(messages::from_json(&message)).await;
            sent.expect("the stream is open");
        }
    }
}

/// Notes what Legate sends until the end, and accepts every resource.
async fn listen(
    mut stream: Streaming<ReplicationMessage>,
    answers: &mpsc::Sender<ReplicationMessage>,
    log: &Log,
) {
    while let Ok(Some(message)) = stream.message().await {
        log.add(Side::Legate, &message);
        if let Some(Payload::Response(response)) = message.payload {
            let answer = Answer {
                response_nonce: response.nonce,
                resource_url: response.resource_url,
                ..Answer::default()
            };
            let payload = Some(Payload::Request(answer));
            // The test may have ended.
            let _ = answers.send(ReplicationMessage { payload }).await;
        }
    }
}
