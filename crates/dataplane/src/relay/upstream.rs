//! The streams to servers: the subscriptions of each, and the requests for them.
//!
//! There are two streams while a new server takes over, and none while no server is reachable.

use std::collections::BTreeSet;

use bytes::Bytes;
use legate_api::discovery::DeltaDiscoveryRequest;

use super::cache::CachedType;
use super::types::{Action, Name, ResourceType, ServerStreamId};

/// Maximum bytes of names in one request. Consul accepts requests of 50 MiB, which also contain the
/// versions of Envoy's resources.
const REQUEST_NAMES: usize = 16 * 1024 * 1024;

/// All streams to servers, newest last.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    streams: Vec<ServerStream>,
}

/// A stream to a server.
#[derive(Debug)]
pub(super) struct ServerStream {
    pub(super) id: ServerStreamId,
    /// The node in its first request; `None` before that.
    node: Option<Bytes>,
    subscribed: BTreeSet<ResourceType>,
}

impl Upstream {
    pub(super) fn connect(&mut self, id: ServerStreamId) {
        self.streams.push(ServerStream {
            id,
            node: None,
            subscribed: BTreeSet::new(),
        });
    }

    pub(super) fn disconnect(&mut self, id: ServerStreamId) {
        self.streams.retain(|stream| stream.id != id);
    }

    /// The stream that is read.
    pub(super) fn newest(&self) -> Option<&ServerStream> {
        self.streams.last()
    }

    pub(super) fn streams_mut(&mut self) -> impl Iterator<Item = &mut ServerStream> {
        self.streams.iter_mut()
    }

    /// Whether any server stream is subscribed to the type.
    pub(super) fn is_subscribed(&self, kind: ResourceType) -> bool {
        self.subscribers(kind).next().is_some()
    }

    /// Drops a type. Returns whether any server stream is subscribed to it, which cannot be
    /// cancelled.
    pub(super) fn forget(&mut self, kind: ResourceType) -> bool {
        let mut subscribed = false;
        for stream in &mut self.streams {
            subscribed |= stream.subscribed.remove(&kind);
        }
        subscribed
    }

    /// The streams that are subscribed to the type and get each change. The others will subscribe
    /// to the full set.
    pub(super) fn subscribers(&self, kind: ResourceType) -> impl Iterator<Item = ServerStreamId> {
        let subscribed = self
            .streams
            .iter()
            .filter(move |one| one.is_subscribed(kind));
        subscribed.map(|stream| stream.id)
    }

    /// Whether the stream is still open.
    pub(super) fn has(&self, id: ServerStreamId) -> bool {
        self.streams.iter().any(|stream| stream.id == id)
    }
}

impl ServerStream {
    pub(super) fn is_subscribed(&self, kind: ResourceType) -> bool {
        self.subscribed.contains(&kind)
    }

    /// The node that the server received.
    pub(super) fn node(&self) -> Option<&Bytes> {
        self.node.as_ref()
    }

    /// Subscribes to a type with all names that Envoys are subscribed to and all versions in the
    /// cache. Resources that only Envoys hold are listed without a version: the server sends them,
    /// or reports that they were removed.
    pub(super) fn subscribe<'a>(
        &mut self,
        kind: ResourceType,
        cached: &CachedType,
        node: &Bytes,
        held_not_cached: impl Iterator<Item = &'a Name>,
        actions: &mut Vec<Action>,
    ) {
        self.subscribed.insert(kind);
        let mut names = in_parts(cached.names()).into_iter();
        let mut versions = cached.versions();
        versions.extend(held_not_cached.map(|name| (name.to_string(), String::new())));
        let first = DeltaDiscoveryRequest {
            node: match &self.node {
                Some(_) => Bytes::new(),
                None => self.node.insert(node.clone()).clone(),
            },
            type_url: cached.url().to_owned(),
            // An empty list is the form of a wildcard subscription that every server supports.
            resource_names_subscribe: match cached.is_wildcard() {
                true => Vec::new(),
                false => names.next().unwrap_or_default(),
            },
            initial_resource_versions: versions,
            ..DeltaDiscoveryRequest::default()
        };
        actions.push(Action::ToServer(self.id, first));
        for names in names {
            let request = subscription_request(cached.url(), names, Vec::new());
            actions.push(Action::ToServer(self.id, request));
        }
    }
}

/// Splits names into parts that fit into a request. The maximum of one Envoy is one part.
fn in_parts(names: &BTreeSet<Name>) -> Vec<Vec<String>> {
    let mut parts: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    for name in names {
        bytes += name.len();
        match parts.last_mut() {
            Some(part) if bytes <= REQUEST_NAMES => part.push(name.to_string()),
            _ => {
                bytes = name.len();
                parts.push(vec![name.to_string()]);
            }
        }
    }
    parts
}

/// A request that changes a subscription.
pub(super) fn subscription_request(
    url: &str,
    resource_names_subscribe: Vec<String>,
    resource_names_unsubscribe: Vec<String>,
) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: url.to_owned(),
        resource_names_subscribe,
        resource_names_unsubscribe,
        ..DeltaDiscoveryRequest::default()
    }
}
