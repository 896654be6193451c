//! The state of one delta stream, without IO. It never waits, never reads a clock and never looks
//! into a resource.

mod subscription;

#[cfg(test)]
mod model;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use legate_resources::{EncodedResource, ResourceSet};

use crate::ResourceType;
use subscription::{Delta, Part, Subscription, Verdict};

/// The order of one pass: additions go ahead of what refers to them, removals follow what referred
/// to them.
const PASS: [(ResourceType, Part); 8] = [
    (ResourceType::Secret, Part::Upserts),
    (ResourceType::Cluster, Part::Upserts),
    // Envoy acknowledges a cluster when it knows the endpoints, or that there are none.
    (ResourceType::Endpoint, Part::Awaited),
    (ResourceType::Listener, Part::Both),
    (ResourceType::Route, Part::Both),
    (ResourceType::Cluster, Part::Removals),
    (ResourceType::Endpoint, Part::Removals),
    (ResourceType::Secret, Part::Removals),
];

/// Names that one stream may ask for, all types together. A proxy that calls 10,000 services asks
/// for three or so for each.
pub(crate) const MAX_NAMES: usize = 100_000;

/// Bytes of those names, and of the versions that a client brings from an earlier stream.
pub(crate) const MAX_NAME_BYTES: usize = 16 * 1024 * 1024;

/// What is kept of a client's reason for a refusal, in bytes. Envoy's are a few hundred.
const MAX_REASON: usize = 4_096;

/// What a request was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A subscription, or the acceptance of a response.
    Noted,
    /// The client refused a response.
    Refused(Nack),
    /// The mesh has no resources of this type; the request changed nothing.
    UnknownType,
    /// The client asks for more names than one stream may. The stream has to end.
    TooManyNames(Asked),
}

/// What a client asks for on one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Names, all types together.
    pub names: usize,
    /// Bytes of the names, and of the versions that the client brought.
    pub bytes: usize,
}

/// A response that the client refused. It keeps what it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nack {
    /// The type of the resources.
    pub kind: ResourceType,
    /// The names in the response, any of which may be the reason.
    pub resources: Vec<Arc<str>>,
    /// The gRPC status code the client gave.
    pub code: i32,
    /// What the client said; a long text is cut.
    pub message: String,
}

/// How far a client is with one type of resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The client has asked for the type.
    pub subscribed: bool,
    /// The client has what it should have.
    pub settled: bool,
    /// How many changes of the last response it has not answered yet.
    pub unanswered: usize,
    /// How many resources it has refused and not been given otherwise since.
    pub refused: usize,
    /// The number of the last response; 0 when there was none. Nonces are these numbers in hexadecimal.
    pub sent: u32,
    /// The number of the last one that it accepted.
    pub accepted: u32,
}

impl Progress {
    /// Whether the client has what it should have, or asks for nothing.
    pub fn in_sync(&self) -> bool {
        !self.subscribed || (self.settled && self.unanswered == 0)
    }
}

/// One delta stream: what the client asked for, what it has, and what it is sent next.
///
/// [`Session::on_request`] and [`Session::on_snapshot`] take events, [`Session::poll`] says what to
/// send because of them. The rules:
///
/// - A type has one unanswered response at most.
/// - Listeners and routes wait until clusters and endpoints are acknowledged, and clusters are
///   removed only after the listeners and routes that used them were sent: no traffic is lost on
///   the way from one snapshot to the next.
/// - A cluster that is sent takes its endpoints with it, a listener its routes: Envoy drops them
///   with the old parent.
/// - What a client refused is not repeated; the next version of it is sent. Of several that it refused
///   together it is not known which one is wrong: they are sent again in halves, until that one is alone.
/// - A client that comes with versions from an earlier stream is sent what differs. It keeps what
///   cannot be made now.
#[derive(Debug, Default)]
pub struct Session {
    subscriptions: [Subscription; ResourceType::ALL.len()],
    resources: Option<Arc<ResourceSet>>,
    last_nonce: u32,
}

impl Session {
    /// A stream on which nothing was said yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a request of the client.
    pub fn on_request(&mut self, request: DeltaDiscoveryRequest) -> Received {
        let Some(kind) = ResourceType::from_url(&request.type_url) else {
            return Received::UnknownType;
        };
        let current = self.resources.as_ref().map(|set| set.get(kind.url()));
        let subscription = &mut self.subscriptions[kind as usize];
        let nonce = &request.response_nonce;
        let mut received = Received::Noted;
        match request.error_detail {
            None => subscription.ack(nonce),
            Some(status) => {
                if let Some(resources) = subscription.nack(nonce) {
                    received = Received::Refused(Nack {
                        kind,
                        resources,
                        code: status.code,
                        message: cut(status.message, MAX_REASON),
                    });
                }
            }
        }
        let subscribe = &request.resource_names_subscribe;
        let adds = !subscribe.is_empty() || !request.initial_resource_versions.is_empty();
        if subscription.is_registered() {
            subscription.subscribe(subscribe, current);
        } else {
            subscription.register(subscribe, request.initial_resource_versions, current);
        }
        subscription.unsubscribe(&request.resource_names_unsubscribe);
        if adds {
            let asked = self.asked();
            if asked.names > MAX_NAMES || asked.bytes > MAX_NAME_BYTES {
                return Received::TooManyNames(asked);
            }
        }
        received
    }

    /// How far the client is, in the order of [`ResourceType::ALL`].
    pub fn progress(&self) -> [Progress; ResourceType::ALL.len()] {
        ResourceType::ALL.map(|kind| self.subscriptions[kind as usize].progress())
    }

    /// The names of this type that the client has refused and not been given otherwise since.
    pub fn refused(&self, kind: ResourceType) -> impl Iterator<Item = &Arc<str>> {
        self.subscriptions[kind as usize].refused()
    }

    fn asked(&self) -> Asked {
        let all = self.subscriptions.iter().map(Subscription::asked);
        all.fold(Asked::default(), |sum, one| Asked {
            names: sum.names + one.names,
            bytes: sum.bytes + one.bytes,
        })
    }

    /// Takes the resources that the client should have from now on.
    pub fn on_snapshot(&mut self, resources: impl Into<Arc<ResourceSet>>) {
        let resources = resources.into();
        let last = self.resources.replace(Arc::clone(&resources));
        for kind in ResourceType::ALL {
            let unchanged = |last: &Arc<ResourceSet>| resources.is_unchanged(last, kind.url());
            let changed = !last.as_ref().is_some_and(unchanged);
            self.subscriptions[kind as usize].on_snapshot(changed);
        }
    }

    /// What to send now, in this order. Empty until something happens when it was called just
    /// before.
    pub fn poll(&mut self) -> Vec<DeltaDiscoveryResponse> {
        let Some(resources) = self.resources.clone() else {
            return Vec::new();
        };
        let mut responses = Vec::new();
        // What was sent before may still bring in a user of what is removed now.
        let mut users_behind = self.subscription(ResourceType::Listener).is_unanswered()
            || self.subscription(ResourceType::Route).is_unanswered();
        for (kind, part) in PASS {
            let refers = matches!(kind, ResourceType::Listener | ResourceType::Route);
            if refers && self.awaits_clusters() {
                break;
            }
            if part == Part::Removals && users_behind {
                break;
            }
            let current = resources.get(kind.url());
            let keeps = |name: &str| resources.cannot_make(kind.url(), name);
            match self.subscription(kind).verdict(current, part, &keeps) {
                Verdict::Settled => {}
                Verdict::Held => users_behind |= refers,
                Verdict::Send(delta) => {
                    users_behind |= refers && delta.incomplete;
                    responses.push(self.send(kind, &delta));
                }
            }
        }
        responses
    }

    /// Whether an addition of clusters or endpoints is not acknowledged yet.
    fn awaits_clusters(&mut self) -> bool {
        self.subscription(ResourceType::Cluster).is_unanswered()
            || self.subscription(ResourceType::Endpoint).is_unanswered()
    }

    fn subscription(&mut self, kind: ResourceType) -> &mut Subscription {
        &mut self.subscriptions[kind as usize]
    }

    fn send(&mut self, kind: ResourceType, delta: &Delta) -> DeltaDiscoveryResponse {
        // A stream that reaches the end of the counter has seen more than four thousand million
        // responses; a nonce from the beginning is long answered.
        self.last_nonce = self.last_nonce.wrapping_add(1);
        let nonce = format!("{:08x}", self.last_nonce);
        let number = self.last_nonce;
        self.subscription(kind).sent(number, nonce.clone(), delta);
        if let Some(child) = kind.child() {
            let children = delta.upserts.iter().flat_map(|one| one.children.iter());
            self.subscription(child).lost(children);
        }
        DeltaDiscoveryResponse {
            system_version_info: String::new(),
            resources: delta.upserts.iter().map(|one| envelope(one)).collect(),
            type_url: kind.url().to_owned(),
            removed_resources: delta.removals.iter().map(ToString::to_string).collect(),
            nonce,
        }
    }
}

/// The beginning of a text, `most` bytes of it or a little less.
fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text.shrink_to_fit();
    text
}

/// The shared encoding goes out as it is: the body is not copied.
fn envelope(resource: &EncodedResource) -> Resource {
    Resource {
        name: resource.name.to_string(),
        version: resource.version.to_string(),
        resource: resource.body.clone(),
        aliases: Vec::new(),
    }
}
