//! Types that all parts of the relay's state machine share: streams, resource types, events and
//! actions. Data only, no logic.

use std::sync::Arc;

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::type_url;
use tonic::Status;

/// A stream from an Envoy to the relay. A larger number is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvoyStreamId(pub u64);

/// A stream from the relay to a server. A larger number is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerStreamId(pub u64);

/// An event on one of the relay's streams.
#[derive(Debug)]
pub enum Event {
    /// An Envoy opened a stream.
    EnvoyConnected(EnvoyStreamId),
    /// Envoy sent a request.
    EnvoyRequest(EnvoyStreamId, Box<DeltaDiscoveryRequest>),
    /// Envoy's stream ended.
    EnvoyGone(EnvoyStreamId),
    /// The proxy in this process has another role from now on.
    Role(EnvoyStreamId, Role),
    /// A stream to a server was opened. The server may still refuse it. An earlier stream may still
    /// be open, and is used again if this one is lost.
    ServerConnected(ServerStreamId),
    /// A server sent a response. Only the newest stream is read, and only once earlier ones have
    /// ended.
    ServerResponse(ServerStreamId, Box<DeltaDiscoveryResponse>),
    /// A stream to a server ended.
    ServerGone(ServerStreamId),
    /// The connected Envoys have had enough time to complete their subscriptions. Everything that
    /// only earlier ones subscribed to can be dropped.
    Forget,
}

/// The part that the proxy in this process has in the answers to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Servers' responses are offered to it first, whichever stream is newer.
    Decides,
    /// It gets what others have accepted, and no server learns its answers.
    Observes,
}

/// An action for the owner of the streams. Actions are performed in order.
#[derive(Debug)]
pub enum Action {
    /// Send a response to an Envoy.
    ToEnvoy(EnvoyStreamId, DeltaDiscoveryResponse),
    /// Close an Envoy's stream, because it exceeded its limits.
    CloseEnvoy(EnvoyStreamId, Status),
    /// Send a request to a server.
    ToServer(ServerStreamId, DeltaDiscoveryRequest),
    /// Open a new stream to the server. Only this makes a server resend resources that an earlier
    /// Envoy rejected, and report for everything that an Envoy holds whether it still exists.
    RenewServer,
    /// A server's response was merged into the cache; logged.
    Accepted {
        /// Its type URL.
        type_url: String,
        /// Number of resources in it.
        resources: usize,
        /// Number of removed resources in it.
        removed: usize,
        /// Number of cached resources of the type, and their total size in bytes.
        held: (usize, usize),
    },
    /// Envoy rejected a response; logged.
    Rejected(Rejected),
    /// A server sent a type that was not requested; logged.
    Unexpected(String),
}

/// A response that Envoy rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Its type URL.
    pub type_url: String,
    /// The resources in it; Envoy's message says which of them are invalid.
    pub names: Vec<String>,
    /// Envoy's error message.
    pub message: String,
    /// Whether it came directly from a server; otherwise it came from the cache.
    pub from_server: bool,
    /// Number of consecutive rejections of the type, including this one.
    pub in_a_row: u32,
}

impl Rejected {
    /// A rejection that no server and no statistic learns of.
    pub(super) fn of_observer(type_url: &str, message: String) -> Rejected {
        Rejected {
            type_url: type_url.to_owned(),
            names: Vec::new(),
            message,
            from_server: false,
            in_a_row: 0,
        }
    }
}

/// Name of a resource, shared by all its uses.
pub(super) type Name = Arc<str>;

/// Version of a resource, verbatim from the server.
pub(super) type Version = Arc<str>;

/// The name for all resources of a type.
pub(super) const WILDCARD: &str = "*";

/// A resource type, in the order in which Envoy has to receive them: referenced types come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ResourceType {
    Secret,
    Cluster,
    Endpoint,
    Listener,
    Route,
    /// Any other type. The number identifies its URL as long as the type is in the cache.
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

    /// Whether other types refer to it, so that resources may be removed only after those have
    /// changed.
    pub(super) fn is_referred_to(self) -> bool {
        use ResourceType::{Cluster, Endpoint, Secret};
        matches!(self, Secret | Cluster | Endpoint)
    }

    /// Whether it refers to clusters, so that it has to wait for them.
    pub(super) fn refers_to_clusters(self) -> bool {
        matches!(self, ResourceType::Listener | ResourceType::Route)
    }

    /// The type that Envoy waits for again after an update of this type: the endpoints of a
    /// cluster, the routes of a listener.
    pub(super) fn child(self) -> Option<ResourceType> {
        match self {
            ResourceType::Cluster => Some(ResourceType::Endpoint),
            ResourceType::Listener => Some(ResourceType::Route),
            _ => None,
        }
    }
}
