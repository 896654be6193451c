//! The state machine of one delta stream. Pure: no IO, no clock, and it never decodes a resource.

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
pub use subscription::{Asked, Progress};
use subscription::{Delta, Part, Subscription, Verdict};

/// The order of one pass: additions before resources that refer to them, removals after resources that
/// referred to them.
const PASS: [(ResourceType, Part); 8] = [
    (ResourceType::Secret, Part::Upserts),
    (ResourceType::Cluster, Part::Upserts),
    // Envoy acknowledges a cluster once it has the endpoints, or knows that there are none.
    (ResourceType::Endpoint, Part::Awaited),
    (ResourceType::Listener, Part::Both),
    (ResourceType::Route, Part::Both),
    (ResourceType::Cluster, Part::Removals),
    (ResourceType::Endpoint, Part::Removals),
    (ResourceType::Secret, Part::Removals),
];

/// Maximum number of names that one stream may subscribe to, all types together. A proxy that calls
/// 10,000 services subscribes to about three for each.
pub(crate) const MAX_NAMES: usize = 100_000;

/// Maximum size of those names, and of the versions that a client holds from an earlier stream.
pub(crate) const MAX_NAME_BYTES: usize = 16 * 1024 * 1024;

/// Maximum size of a stored error message of a client, in bytes. Envoy's have a few hundred.
const MAX_REASON: usize = 4_096;

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A subscription or an ACK was recorded.
    Noted,
    /// The client rejected a response.
    Refused(Nack),
    /// The mesh has no resources of this type; the request was ignored.
    UnknownType,
    /// The client exceeds the limits of a stream, which must be closed.
    TooManyNames(Asked),
}

/// A response that the client rejected. It keeps its previous resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nack {
    /// The type of the resources.
    pub kind: ResourceType,
    /// The names in the response. Any of them may be the cause.
    pub resources: Vec<Arc<str>>,
    /// The client's gRPC status code.
    pub code: i32,
    /// The client's error message, possibly truncated.
    pub message: String,
}

/// One delta stream: the client's subscriptions, its resources, and the next responses.
///
/// [`Session::on_request`] and [`Session::on_snapshot`] handle events; [`Session::poll`] returns the
/// resulting responses. The rules:
///
/// - Each type has at most one unanswered response.
/// - Listeners and routes wait until clusters and endpoints are acknowledged, and clusters are removed
///   only after the listeners and routes that used them were sent: no traffic is lost between two
///   snapshots.
/// - Sending a cluster also sends its endpoints, and sending a listener its routes, because Envoy drops
///   them with the old parent.
/// - A rejected resource is not repeated; its next version is sent. If several were rejected together,
///   the invalid one is unknown: they are sent again in halves until it is isolated.
/// - A client that holds versions from an earlier stream is sent the differences. It keeps resources that
///   cannot be generated now.
#[derive(Debug, Default)]
pub struct Session {
    subscriptions: [Subscription; ResourceType::ALL.len()],
    resources: Option<Arc<ResourceSet>>,
    last_nonce: u32,
}

impl Session {
    /// A stream without any messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles a request of the client.
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
                let (code, message) = (status.code, cut(status.message, MAX_REASON));
                if let Some(resources) = subscription.nack(nonce, &message) {
                    received = Received::Refused(Nack {
                        kind,
                        resources,
                        code,
                        message,
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

    /// The client's progress, in the order of [`ResourceType::ALL`].
    pub fn progress(&self) -> [Progress; ResourceType::ALL.len()] {
        ResourceType::ALL.map(|kind| self.subscriptions[kind as usize].progress())
    }

    /// Names of this type that the client rejected and that were not replaced since.
    pub fn refused(&self, kind: ResourceType) -> impl Iterator<Item = &Arc<str>> {
        self.subscriptions[kind as usize].refused()
    }

    /// Whether a response is unanswered. If none is after a [`Session::poll`], nothing happens until the
    /// next snapshot or request.
    pub fn is_waiting(&self) -> bool {
        self.subscriptions.iter().any(Subscription::is_unanswered)
    }

    /// Resources that the client rejected and that were not replaced since, with its reasons.
    pub fn rejections(&self) -> impl Iterator<Item = (ResourceType, &Arc<str>, &Arc<str>)> {
        let kinds = self.resources.iter().flat_map(|resources| {
            let current = move |kind: ResourceType| (kind, resources.get(kind.url()));
            ResourceType::ALL.into_iter().map(current)
        });
        kinds.flat_map(|(kind, current)| {
            let all = self.subscriptions[kind as usize].rejections(current);
            all.map(move |(name, reason)| (kind, name, reason))
        })
    }

    /// Whether the client has all clusters and listeners, everything that they refer to, and all
    /// secrets for which `is_needed` is true. A client asks for what they refer to after it has
    /// accepted them, so that it may be in sync before.
    pub fn has_all(&self, is_needed: impl Fn(&str) -> bool) -> bool {
        let Some(resources) = &self.resources else {
            return false;
        };
        let has = |kind: ResourceType, name: &str| {
            let one = resources.get(kind.url()).get(name);
            one.is_none_or(|one| self.subscriptions[kind as usize].has(one))
        };
        let mut parents = [ResourceType::Cluster, ResourceType::Listener].into_iter();
        let mut secrets = resources.get(ResourceType::Secret.url()).keys();
        self.progress().iter().all(Progress::in_sync)
            && parents.all(|kind| {
                let subscription = &self.subscriptions[kind as usize];
                let mut all = resources.get(kind.url()).values();
                subscription.is_registered()
                    && all.all(|one| {
                        let mut children = one.children.iter();
                        let child = kind.child();
                        subscription.has(one)
                            && child
                                .is_none_or(|kind| children.all(|name| has(kind, name.as_ref())))
                    })
            })
            && secrets.all(|name| !is_needed(name) || has(ResourceType::Secret, name))
    }

    fn asked(&self) -> Asked {
        let all = self.subscriptions.iter().map(Subscription::asked);
        all.fold(Asked::default(), |sum, one| Asked {
            names: sum.names + one.names,
            bytes: sum.bytes + one.bytes,
        })
    }

    /// Sets the resources that the client should have.
    pub fn on_snapshot(&mut self, resources: impl Into<Arc<ResourceSet>>) {
        let resources = resources.into();
        let last = self.resources.replace(Arc::clone(&resources));
        for kind in ResourceType::ALL {
            let unchanged = |last: &Arc<ResourceSet>| resources.is_unchanged(last, kind.url());
            let changed = !last.as_ref().is_some_and(unchanged);
            let subscription = &mut self.subscriptions[kind as usize];
            if last.is_none() {
                subscription.share_texts(resources.get(kind.url()));
            }
            subscription.on_snapshot(changed);
        }
    }

    /// The responses to send now, in order. Empty if nothing has happened since the last call.
    pub fn poll(&mut self) -> Vec<DeltaDiscoveryResponse> {
        let Some(resources) = self.resources.clone() else {
            return Vec::new();
        };
        let mut responses = Vec::new();
        // An unanswered response may still contain a reference to a resource that is removed now.
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
                    responses.push(self.send(kind, part, &delta, &resources));
                }
            }
        }
        responses
    }

    /// Whether an addition of clusters or endpoints is unacknowledged.
    fn awaits_clusters(&mut self) -> bool {
        self.subscription(ResourceType::Cluster).is_unanswered()
            || self.subscription(ResourceType::Endpoint).is_unanswered()
    }

    fn subscription(&mut self, kind: ResourceType) -> &mut Subscription {
        &mut self.subscriptions[kind as usize]
    }

    fn send(
        &mut self,
        kind: ResourceType,
        part: Part,
        delta: &Delta,
        resources: &ResourceSet,
    ) -> DeltaDiscoveryResponse {
        // When the counter wraps after four billion responses, nonces from the beginning have long been
        // answered.
        self.last_nonce = self.last_nonce.wrapping_add(1);
        let nonce = format!("{:08x}", self.last_nonce);
        let number = self.last_nonce;
        self.subscription(kind)
            .sent(number, nonce.clone(), part, delta);
        if let Some(child) = kind.child() {
            let children = delta.upserts.iter().flat_map(|one| one.children.iter());
            let current = resources.get(child.url());
            self.subscription(child).mark_dropped(children, current);
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

/// Truncates a text to at most `most` bytes, at a character boundary.
fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text.shrink_to_fit();
    text
}

/// Wraps the shared encoding without copying the body.
fn envelope(resource: &EncodedResource) -> Resource {
    Resource {
        name: resource.name.to_string(),
        version: resource.version.to_string(),
        resource: resource.body.clone(),
        aliases: Vec::new(),
    }
}
