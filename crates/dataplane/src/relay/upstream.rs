//! The streams towards servers: what each was asked for, and what is sent to them.
//!
//! There are two while a new server takes over, and none while no server is reachable.

use std::collections::BTreeSet;

use bytes::Bytes;
use legate_api::discovery::DeltaDiscoveryRequest;

use super::cache::CachedType;
use super::types::{Action, Name, ResourceType, ServerStreamId};

/// Bytes of names in one request: Consul takes requests of 50 MiB, in which there are also the
/// versions of what Envoy has.
const REQUEST_NAMES: usize = 16 * 1024 * 1024;

/// All streams towards servers, the newest last.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    streams: Vec<ServerStream>,
}

/// One stream towards a server.
#[derive(Debug)]
pub(super) struct ServerStream {
    pub(super) id: ServerStreamId,
    /// The node that its first request carried.
    node: Option<Bytes>,
    asked: BTreeSet<ResourceType>,
}

impl Upstream {
    pub(super) fn connect(&mut self, id: ServerStreamId) {
        self.streams.push(ServerStream {
            id,
            node: None,
            asked: BTreeSet::new(),
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

    /// Whether any server was asked for the type.
    pub(super) fn has_asked(&self, kind: ResourceType) -> bool {
        self.asked(kind).next().is_some()
    }

    /// Forgets a type. Whether any server was asked for it, which cannot be taken back.
    pub(super) fn forget(&mut self, kind: ResourceType) -> bool {
        let mut asked = false;
        for stream in &mut self.streams {
            asked |= stream.asked.remove(&kind);
        }
        asked
    }

    /// The streams that were asked for the type: they get each change of its subscriptions. The
    /// others will be asked for everything at once.
    pub(super) fn asked(&self, kind: ResourceType) -> impl Iterator<Item = ServerStreamId> {
        let asked = self.streams.iter().filter(move |one| one.has_asked(kind));
        asked.map(|stream| stream.id)
    }

    /// Whether the stream is still there.
    pub(super) fn has(&self, id: ServerStreamId) -> bool {
        self.streams.iter().any(|stream| stream.id == id)
    }
}

impl ServerStream {
    pub(super) fn has_asked(&self, kind: ResourceType) -> bool {
        self.asked.contains(&kind)
    }

    /// The node that the server knows.
    pub(super) fn node(&self) -> Option<&Bytes> {
        self.node.as_ref()
    }

    /// Asks for a type with everything that Envoys are subscribed to and everything that the cache
    /// has. Of what only Envoys hold no version is known: a server sends it, or says that it is
    /// gone.
    pub(super) fn ask<'a>(
        &mut self,
        kind: ResourceType,
        cached: &CachedType,
        node: &Bytes,
        held_elsewhere: impl Iterator<Item = &'a Name>,
        actions: &mut Vec<Action>,
    ) {
        self.asked.insert(kind);
        let mut names = in_parts(cached.names()).into_iter();
        let mut versions = cached.versions();
        versions.extend(held_elsewhere.map(|name| (name.to_string(), String::new())));
        let first = DeltaDiscoveryRequest {
            node: match &self.node {
                Some(_) => Bytes::new(),
                None => self.node.insert(node.clone()).clone(),
            },
            type_url: cached.url().to_owned(),
            // An empty list is the form of "all" that every server knows.
            resource_names_subscribe: match cached.is_wildcard() {
                true => Vec::new(),
                false => names.next().unwrap_or_default(),
            },
            initial_resource_versions: versions,
            ..DeltaDiscoveryRequest::default()
        };
        actions.push(Action::ToServer(self.id, first));
        for names in names {
            let request = change(cached.url(), names, Vec::new());
            actions.push(Action::ToServer(self.id, request));
        }
    }
}

/// Names in parts that fit into a request. What one Envoy may ask for is one part.
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

/// A change of a subscription.
pub(super) fn change(
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
