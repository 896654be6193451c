//! The simulated proxies of `dc1`: each has a connection and reports how many healthy endpoints it has.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use legate_api::discovery::DeltaDiscoveryResponse;
use legate_api::type_url::ENDPOINT;
use legate_runtime::{BoxError, Scope};
use prost::Message;
use prost_types::Any;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep};

use super::mesh;
use crate::catalog;
use crate::protocol::{self, References, Session};
use crate::proxies::{AGAIN, Messages, connect, request, send};

/// The value of Envoy's `HealthStatus` for an endpoint that gets no requests.
const UNHEALTHY: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct Assignment {
    #[prost(message, repeated, tag = "2")]
    localities: Vec<Locality>,
}

#[derive(Clone, PartialEq, Message)]
struct Locality {
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Endpoint {
    #[prost(int32, tag = "2")]
    health: i32,
}

/// An event of a proxy.
#[derive(Debug)]
pub(super) enum Event {
    /// It has all resources that it needs, and this many healthy endpoints.
    Configured {
        caller: usize,
        at: Instant,
        healthy: usize,
    },
    /// Its connection or stream ended, with the reason.
    Ended(String),
}

/// All proxies. Dropping it disconnects them.
pub(super) struct Callers {
    _tasks: Scope,
    pub(super) events: UnboundedReceiver<Event>,
}

impl Callers {
    /// Connects this many proxies at the same moment. `secrets` are those that clusters and listeners refer to.
    pub(super) fn connect(
        count: usize,
        server: SocketAddr,
        secrets: &'static [&'static str],
    ) -> Self {
        let tasks = Scope::new("callers");
        let (sender, events) = mpsc::unbounded_channel();
        for number in 0..count {
            let (id, node) = (catalog::id(number), catalog::node(number));
            let caller = Caller {
                number,
                server,
                references: References {
                    secrets,
                    // No service uses HTTP.
                    routes: &[],
                },
                node: protocol::node(id, mesh::calling(number), node),
                events: sender.clone(),
            };
            tasks.spawn("caller", caller.run());
        }
        Self {
            _tasks: tasks,
            events,
        }
    }
}

struct Caller {
    number: usize,
    server: SocketAddr,
    references: References,
    node: Bytes,
    events: UnboundedSender<Event>,
}

impl Caller {
    async fn run(self) -> Result<(), Infallible> {
        loop {
            if let Err(error) = self.connection().await {
                // The receiver is only dropped at the end.
                let _ = self.events.send(Event::Ended(error.to_string()));
            }
            sleep(AGAIN).await;
        }
    }

    /// Runs a connection until it ends.
    async fn connection(&self) -> Result<(), BoxError> {
        let (client, connection) = connect(self.server).await?;
        let stream = async {
            let mut client = client.ready().await?;
            let (response, mut requests) = client.send_request(request(self.server)?, false)?;
            let (mut session, first) = Session::start(self.references, self.node.clone());
            send(&mut requests, &first)?;
            let mut responses = Messages::new(response.await?.into_body());
            let mut healthy = 0;
            while let Some(response) = responses.next().await? {
                let at = Instant::now();
                let response = DeltaDiscoveryResponse::decode(response)?;
                for request in session.on_response(&response) {
                    send(&mut requests, &request)?;
                }
                healthy = endpoints(&response)?.unwrap_or(healthy);
                if session.is_configured() {
                    let _ = self.events.send(Event::Configured {
                        caller: self.number,
                        at,
                        healthy,
                    });
                }
            }
            Err::<(), BoxError>(responses.ended().await)
        };
        tokio::select! {
            ended = connection => ended?,
            ended = stream => ended?,
        }
        Err("the server closed the connection".into())
    }
}

/// The number of healthy endpoints in a response about them. A proxy has one upstream.
fn endpoints(response: &DeltaDiscoveryResponse) -> Result<Option<usize>, prost::DecodeError> {
    let mut found = None;
    for resource in &response.resources {
        if response.type_url != ENDPOINT {
            break;
        }
        let assignment = Assignment::decode(&*Any::decode(&*resource.resource)?.value)?;
        let endpoints = assignment.localities.iter().flat_map(|one| &one.endpoints);
        let healthy = endpoints.filter(|one| one.health != UNHEALTHY).count();
        *found.get_or_insert(0) += healthy;
    }
    Ok(found)
}
