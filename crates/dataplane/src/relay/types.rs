//! The words that all parts of the relay's machine share: streams, resource types, and what goes
//! into the machine and comes out of it. Data only; nothing is decided here.

use std::sync::Arc;

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::type_url;
use tonic::Status;

/// One stream of an Envoy towards the relay. A larger number is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvoyStreamId(pub u64);

/// One stream of the relay towards a server. A larger number is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerStreamId(pub u64);

/// Something that happened to one of the relay's streams.
#[derive(Debug)]
pub enum Event {
    /// An Envoy opened a stream.
    EnvoyConnected(EnvoyStreamId),
    /// Envoy sent a request.
    EnvoyRequest(EnvoyStreamId, Box<DeltaDiscoveryRequest>),
    /// Envoy's stream ended.
    EnvoyGone(EnvoyStreamId),
    /// A stream towards a server was opened; the server may still refuse it. An earlier one may
    /// still be there, and takes over again when this one is lost.
    ServerConnected(ServerStreamId),
    /// A server sent a response. Only the newest stream is read, and only after the earlier ones
    /// have ended.
    ServerResponse(ServerStreamId, Box<DeltaDiscoveryResponse>),
    /// A stream towards a server ended.
    ServerGone(ServerStreamId),
    /// The Envoys that are there have had the time to ask for all they want: what only earlier
    /// ones asked for is not needed any more.
    Forget,
}

/// Something the owner of the streams has to do, in this order.
#[derive(Debug)]
pub enum Action {
    /// Send to an Envoy.
    ToEnvoy(EnvoyStreamId, DeltaDiscoveryResponse),
    /// End an Envoy's stream: it asked for more than it may.
    CloseEnvoy(EnvoyStreamId, Status),
    /// Send to a server.
    ToServer(ServerStreamId, DeltaDiscoveryRequest),
    /// Open a new stream towards the server: only that makes a server send again what an earlier
    /// Envoy rejected, and say of everything that an Envoy holds whether it is still there.
    RenewServer,
    /// A server's response is in the cache now: for the log.
    Accepted {
        /// Its type.
        type_url: String,
        /// How many resources it had.
        resources: usize,
        /// How many resources it removed.
        removed: usize,
        /// How many resources of the type Envoy has acknowledged now, and their bytes.
        held: (usize, usize),
    },
    /// Envoy rejected a response: for the log.
    Rejected(Rejected),
    /// A server sent a type that nobody asked it for: for the log.
    Unexpected(String),
}

/// A response that Envoy rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Its type.
    pub type_url: String,
    /// The resources in it; Envoy's message says which of them it means.
    pub names: Vec<String>,
    /// Envoy's words.
    pub message: String,
    /// Whether a server sent it just now; else it came from the cache.
    pub from_server: bool,
    /// How many responses of the type, this one included, Envoy has rejected without accepting one
    /// in between.
    pub in_a_row: u32,
}

/// Name of a resource, shared by everything that mentions it.
pub(super) type Name = Arc<str>;

/// Version of a resource, as the server wrote it.
pub(super) type Version = Arc<str>;

/// The name that stands for all resources of a type.
pub(super) const WILDCARD: &str = "*";

/// A resource type, in the order in which Envoy has to get them: what is referred to comes before
/// what refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ResourceType {
    Secret,
    Cluster,
    Endpoint,
    Listener,
    Route,
    /// Any other type; the number belongs to its URL for as long as the cache knows it.
    Other(u64),
}

impl ResourceType {
    pub(super) fn well_known(url: &str) -> Option<ResourceType> {
        match url {
            type_url::SECRET => Some(ResourceType::Secret),
            type_url::CLUSTER => Some(ResourceType::Cluster),
            type_url::ENDPOINT => Some(ResourceType::Endpoint),
            type_url::LISTENER => Some(ResourceType::Listener),
            type_url::ROUTE => Some(ResourceType::Route),
            _ => None,
        }
    }

    /// Whether other types refer to it, so that resources may go only after those have changed.
    pub(super) fn is_referred_to(self) -> bool {
        use ResourceType::{Cluster, Endpoint, Secret};
        matches!(self, Secret | Cluster | Endpoint)
    }

    /// Whether it refers to clusters, so that it has to wait for them.
    pub(super) fn refers_to_clusters(self) -> bool {
        matches!(self, ResourceType::Listener | ResourceType::Route)
    }

    /// The type of which Envoy waits for resources anew after it was given one of this type: the
    /// endpoints of a cluster, the routes of a listener.
    pub(super) fn child(self) -> Option<ResourceType> {
        match self {
            ResourceType::Cluster => Some(ResourceType::Endpoint),
            ResourceType::Listener => Some(ResourceType::Route),
            _ => None,
        }
    }
}
