//! One simulated gateway: a connection whose responses are read as they arrive.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use h2::SendStream;
use legate_api::discovery::DeltaDiscoveryResponse;
use legate_runtime::{BoxError, Scope};
use prost::Message;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep};

use super::session::{Session, Size};
use crate::proxies::{AGAIN, Messages, connect, request, send};

/// A response that arrived, or the end of the stream.
#[derive(Debug)]
pub(super) enum Event {
    Response {
        at: Instant,
        url: String,
        /// The whole message.
        bytes: Bytes,
        /// What the gateway lacks with it; `None` if it is configured.
        lacks: Option<String>,
    },
    Ended(String),
}

/// A gateway that connects, again and again if the server ends its stream. Dropping it disconnects it.
pub(super) struct Envoy {
    _task: Scope,
    pub(super) events: UnboundedReceiver<Event>,
}

impl Envoy {
    pub(super) fn connect(server: SocketAddr, node: Bytes, expected: Size) -> Self {
        let task = Scope::new("gateway");
        let (sender, events) = mpsc::unbounded_channel();
        let endless = async move {
            loop {
                let ended = run(server, node.clone(), expected, &sender).await;
                let reason = ended
                    .err()
                    .map_or_else(String::new, |error| error.to_string());
                // The receiver is only dropped at the end.
                let _ = sender.send(Event::Ended(reason));
                sleep(AGAIN).await;
            }
        };
        task.spawn::<_, Infallible>("gateway", endless);
        Self {
            _task: task,
            events,
        }
    }
}

async fn run(
    server: SocketAddr,
    node: Bytes,
    expected: Size,
    events: &UnboundedSender<Event>,
) -> Result<(), BoxError> {
    let (client, connection) = connect(server).await?;
    let mut client = client.ready().await?;
    let (response, mut requests) = client.send_request(request(server)?, false)?;
    let (session, first) = Session::start(node);
    // Consul responds only to this.
    send(&mut requests, &first)?;
    let stream = async {
        let response = response.await?;
        // A refused stream has its status in its first headers.
        if let Some(reason) = response.headers().get("grpc-message") {
            return Err(format!("the stream is refused: {reason:?}").into());
        }
        let responses = Messages::new(response.into_body());
        Err::<(), _>(talk(session, (requests, responses), expected, events).await?)
    };
    tokio::select! {
        ended = connection => Ok(ended?),
        ended = stream => ended,
    }
}

/// Answers the server until it ends the stream; returns its reason.
async fn talk(
    mut session: Session,
    (mut requests, mut responses): (SendStream<Bytes>, Messages),
    expected: Size,
    events: &UnboundedSender<Event>,
) -> Result<BoxError, BoxError> {
    while let Some(bytes) = responses.next().await? {
        let at = Instant::now();
        let response = DeltaDiscoveryResponse::decode(bytes.clone())?;
        for request in session.on_response(&response)? {
            send(&mut requests, &request)?;
        }
        let lacks = session.lacks(expected);
        let url = response.type_url;
        let _ = events.send(Event::Response {
            at,
            url,
            bytes,
            lacks,
        });
    }
    Ok(responses.ended().await)
}
