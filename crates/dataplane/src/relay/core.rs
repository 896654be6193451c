//! The relay's state machine. Pure: events in, actions out; no IO, clock or tasks.
//!
//! The core owns three parts and is the only module that uses all of them: the streams of Envoys
//! (`downstream`), the acknowledged resources (`cache`), and the subscriptions at servers
//! (`upstream`). The core itself holds the responses in flight from a server to an Envoy.
//!
//! Invariants after every event:
//!
//! - A resource is in the cache only after an Envoy accepted it, or if no connected Envoy needs it.
//!   A rejected response leaves the cache unchanged.
//! - A server's response is acknowledged on the stream that it came from, and only after Envoy
//!   acknowledged it. A new stream never receives an ACK or NACK for another one.
//! - For each type at most one response of a server is waiting for an Envoy's answer, and each Envoy
//!   has at most one unanswered response of each type.
//! - The loss of a server's stream has no effect on any Envoy.
//! - The loss of the last Envoy has no effect on the cache, because that Envoy will reconnect.
//! - The requests of a stream are within [`Limits`]. A stream that exceeds them is closed, without
//!   effect on others. A name without any subscriber is retained only while its resource is cached,
//!   so that a reconnecting Envoy gets it from the cache.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::rpc;
use tonic::Status;

use super::cache::{Cache, CachedType, Content};
use super::downstream::{Decision, Downstream, EnvoyStream};
use super::limits::Limits;
use super::status::{RelayStatus, UpstreamStatus};
use super::types::{Name, ResourceType, WILDCARD};
use super::upstream::{Upstream, subscription_request};

pub use super::types::{Action, EnvoyStreamId, Event, Rejected, Role, ServerStreamId};

/// A server's response that no Envoy has answered yet.
#[derive(Debug)]
struct Pending {
    from: ServerStreamId,
    kind: ResourceType,
    nonce: String,
    content: Content,
    /// The Envoy that it was sent to, whose answer decides; `None` before that.
    sent_to: Option<EnvoyStreamId>,
}

/// The relay's state. See the invariants of the module.
#[derive(Debug, Default)]
pub struct Core {
    limits: Limits,
    pub(super) cache: Cache,
    pub(super) downstream: Downstream,
    upstream: Upstream,
    /// In the order of arrival. A server sends no further response of a type before the last one is
    /// answered, so there is at most one of each type.
    pending: VecDeque<Pending>,
    /// Whether an Envoy connected with resources from an earlier stream.
    envoy_was_configured: bool,
    actions: Vec<Action>,
}

impl Core {
    /// A relay without streams and resources.
    pub fn new() -> Core {
        Core::default()
    }

    /// A relay with other limits than the default.
    pub fn with_limits(limits: Limits) -> Core {
        Core {
            limits,
            ..Core::default()
        }
    }

    /// Handles an event and returns the resulting actions.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::EnvoyConnected(id) => self.downstream.connect(id),
            Event::EnvoyRequest(id, request) => self.on_request(id, *request),
            Event::EnvoyGone(id) => self.on_envoy_gone(id),
            Event::Role(id, role) => self.on_role(id, role),
            Event::ServerConnected(id) => self.upstream.connect(id),
            Event::ServerResponse(id, response) => self.on_response(id, *response),
            Event::ServerGone(id) => self.upstream.disconnect(id),
            Event::Forget => self.on_forget(),
        }
        // Derived from the state after any event.
        loop {
            self.downstream.serve(&self.cache, &mut self.actions);
            if !self.offer_responses() {
                break;
            }
        }
        self.subscribe_upstream();
        std::mem::take(&mut self.actions)
    }

    /// Whether the next response of a server can be processed. While this is false the caller must
    /// not read from servers, which bounds the memory for their responses.
    pub fn wants_upstream(&self) -> bool {
        let held = |kind| !self.downstream.is_decided(kind);
        let mut pending = self.pending.iter();
        self.pending.len() <= self.cache.len()
            && pending.all(|one| one.sent_to.is_some() || held(one.kind))
    }

    /// Whether an Envoy has subscribed to anything, so that a server is needed.
    pub fn needs_upstream(&self) -> bool {
        self.cache.iter().any(|(_, cached)| cached.is_wanted())
    }

    /// Whether an Envoy has a configuration: it accepted a server's response, or it connected with
    /// resources that another dataplane gave it.
    pub fn was_configured(&self) -> bool {
        self.envoy_was_configured || self.cache.iter().any(|(_, cached)| cached.is_answered())
    }

    /// The oldest stream without a subscription.
    pub fn silent(&self) -> Option<EnvoyStreamId> {
        let mut streams = self.downstream.streams();
        let silent = streams.find(|stream| !stream.is_subscribed());
        silent.map(EnvoyStream::id)
    }

    /// What Envoy has subscribed to but not acknowledged, and why; `None` if its configuration is
    /// complete. While a new Envoy takes over, a complete old one suffices, because it serves until
    /// then.
    pub fn missing(&self) -> Option<String> {
        let mut envoys = self.envoys();
        let Some(newest) = envoys.next() else {
            return Some("Envoy has not asked for its configuration".to_owned());
        };
        let why = newest.missing(&self.cache)?;
        let others = envoys.all(|older| older.missing(&self.cache).is_some());
        others.then_some(why)
    }

    /// Whether the newest Envoy has acknowledged every type that it subscribed to.
    pub fn newest_is_configured(&self) -> bool {
        let newest = self.envoys().next();
        newest.is_some_and(|newest| newest.missing(&self.cache).is_none())
    }

    /// The Envoys with subscriptions, newest first.
    fn envoys(&self) -> impl Iterator<Item = &EnvoyStream> {
        let newest_first = self.downstream.streams().rev();
        newest_first.filter(|stream| stream.is_subscribed())
    }

    /// The relay's status. The owner of the server streams passes their part.
    pub fn status(&self, upstream: UpstreamStatus) -> RelayStatus {
        let types = self.cache.iter().map(|(kind, cached)| {
            let mut pending = self.pending.iter();
            cached.status(pending.any(|one| one.kind == kind && one.sent_to.is_some()))
        });
        RelayStatus {
            missing: self.missing(),
            upstream,
            envoy_streams: self.downstream.streams().count(),
            types: types.collect(),
        }
    }

    fn on_request(&mut self, id: EnvoyStreamId, request: DeltaDiscoveryRequest) {
        let Some(stream) = self.downstream.get(id) else {
            return;
        };
        let known = self.cache.find(&request.type_url);
        let within = stream.check(known, &request, &self.limits);
        let is_first = known.is_none_or(|kind| stream.get(kind).is_none());
        let kind = match within.and_then(|()| known.map_or_else(|| self.add_type(&request), Ok)) {
            Ok(kind) => kind,
            Err(refusal) => {
                self.actions.push(Action::CloseEnvoy(id, refusal));
                return self.on_envoy_gone(id);
            }
        };
        self.downstream.set_node(id, &request.node);
        if is_first {
            self.on_first_request(id, kind, &request);
        } else if !request.response_nonce.is_empty() {
            self.on_answer(id, kind, &request.response_nonce, request.error_detail);
        }
        self.subscribe(id, kind, request.resource_names_subscribe);
        self.unsubscribe(id, kind, &request.resource_names_unsubscribe);
    }

    /// Adds a new type. At the limit, an unused type is removed first.
    fn add_type(&mut self, request: &DeltaDiscoveryRequest) -> Result<ResourceType, Status> {
        if self.cache.len() >= self.limits.all_types() {
            let idle = self.cache.iter().find(|(kind, cached)| {
                matches!(kind, ResourceType::Other(_))
                    && cached.entries().is_empty()
                    && self.pending.iter().all(|one| one.kind != *kind)
                    && self.downstream.subscriptions(*kind).next().is_none()
            });
            let (idle, _) = idle.ok_or_else(|| self.limits.too_many_types())?;
            self.cache.remove(idle);
            // A subscription to a whole type cannot be cancelled at a server.
            if self.upstream.forget(idle) {
                self.actions.push(Action::RenewServer);
            }
        }
        Ok(self.cache.add(&request.type_url))
    }

    /// The first request of a type defines whether it is a wildcard subscription, and which
    /// resources Envoy holds.
    fn on_first_request(
        &mut self,
        id: EnvoyStreamId,
        kind: ResourceType,
        request: &DeltaDiscoveryRequest,
    ) {
        self.envoy_was_configured |= !request.initial_resource_versions.is_empty();
        let Some(subscription) = self.downstream.open(id, kind) else {
            return;
        };
        // Envoy may still be waiting for endpoints and routes of a version that it lists here, if
        // the stream broke after the resources that refer to them. These types are always sent
        // again.
        if !matches!(kind, ResourceType::Endpoint | ResourceType::Route) {
            for (name, version) in &request.initial_resource_versions {
                subscription.resume(self.cache[kind].intern(name), version.clone());
            }
        }
        let mut unsubscribed = request.resource_names_unsubscribe.iter();
        if request.resource_names_subscribe.is_empty() && unsubscribed.all(|name| name != WILDCARD)
        {
            self.subscribe_all(id, kind);
        }
    }

    fn subscribe_all(&mut self, id: EnvoyStreamId, kind: ResourceType) {
        let cached = &mut self.cache[kind];
        let subscription = self.downstream.subscription_mut(id, kind);
        let Some(subscription) = subscription.filter(|one| !one.is_wildcard()) else {
            return;
        };
        subscription.subscribe_all(cached);
        let subscribed = self.upstream.is_subscribed(kind);
        let mut renew = cached.take_rejected(|_| true);
        // A server that has no subscription to these resources does not report whether they were
        // removed.
        renew |= subscribed && subscription.held_not_cached(cached).next().is_some();
        if cached.subscribe_all() {
            // Some servers, such as Consul, accept a wildcard only in the first request of a stream.
            renew |= subscribed;
            self.change_subscriptions(kind, vec![WILDCARD.to_owned()], Vec::new());
        }
        if renew {
            self.actions.push(Action::RenewServer);
        }
    }

    fn subscribe(&mut self, id: EnvoyStreamId, kind: ResourceType, names: Vec<String>) {
        let mut added = Vec::new();
        for name in names {
            if name == WILDCARD {
                self.subscribe_all(id, kind);
                continue;
            }
            let Some(subscription) = self.downstream.subscription_mut(id, kind) else {
                return;
            };
            let cached = &mut self.cache[kind];
            let shared = cached.intern(&name);
            if cached.subscribe(&shared) {
                added.push(name);
            }
            subscription.subscribe(shared);
        }
        if !added.is_empty() {
            self.change_subscriptions(kind, added, Vec::new());
        }
    }

    fn unsubscribe(&mut self, id: EnvoyStreamId, kind: ResourceType, names: &[String]) {
        let Some(subscription) = self.downstream.subscription_mut(id, kind) else {
            return;
        };
        if names.iter().any(|name| name == WILDCARD) {
            subscription.unsubscribe_all();
        }
        let cached = &self.cache[kind];
        let names: HashSet<Name> = names.iter().map(|name| cached.intern(name)).collect();
        subscription.unsubscribe(&names);
        self.forget(kind, names);
    }

    /// Drops names that no stream is subscribed to.
    fn forget(&mut self, kind: ResourceType, mut names: HashSet<Name>) {
        if names.is_empty() {
            return;
        }
        for subscription in self.downstream.subscriptions(kind) {
            names.retain(|name| !subscription.names().contains(name));
        }
        let gone = self.cache[kind].unsubscribe(names);
        if !gone.is_empty() {
            self.change_subscriptions(kind, Vec::new(), gone);
        }
    }

    /// Sends a change of subscriptions to servers.
    fn change_subscriptions(
        &mut self,
        kind: ResourceType,
        subscribe: Vec<String>,
        unsubscribe: Vec<String>,
    ) {
        let request = subscription_request(self.cache[kind].url(), subscribe, unsubscribe);
        let subscribed = self.upstream.subscribers(kind);
        let requests = subscribed.map(|id| Action::ToServer(id, request.clone()));
        self.actions.extend(requests);
    }

    /// An ACK or NACK from Envoy.
    fn on_answer(
        &mut self,
        id: EnvoyStreamId,
        kind: ResourceType,
        nonce: &str,
        error: Option<rpc::Status>,
    ) {
        let observes = self.downstream.observes(id);
        let Some(subscription) = self.downstream.subscription_mut(id, kind) else {
            return;
        };
        // The answer may be late.
        let Some(items) = subscription.take_unanswered(nonce) else {
            return;
        };
        let mut pending = self.pending.iter();
        let place = pending.position(|one| one.kind == kind && one.sent_to == Some(id));
        let response = place.and_then(|place| self.pending.remove(place));
        let Some(error) = error else {
            subscription.ack(items);
            if let Some(response) = response {
                self.accept(response);
            }
            return;
        };
        let names = items.iter().map(|(name, _)| name.to_string()).collect();
        let by = response.is_some().then_some(id);
        if observes {
            // What others serve is in order, whatever it thinks of it.
            return subscription.nack(
                items,
                Rejected::of_observer(self.cache[kind].url(), error.message),
            );
        }
        let rejected = self.cache[kind].reject(by, names, error.message.clone());
        subscription.nack(items, rejected.clone());
        self.actions.push(Action::Rejected(rejected));
        if let Some(response) = response {
            self.answer_server(response.from, kind, response.nonce, Some(error));
        }
    }

    /// Merges a response into the cache.
    fn accept(&mut self, response: Pending) {
        let Pending { kind, content, .. } = response;
        let cached = &mut self.cache[kind];
        let (resources, removed) = (content.resources.len(), content.removed.len());
        let gone: HashSet<Name> = content.removed.iter().cloned().collect();
        let touched = cached.merge(content);
        self.actions.push(Action::Accepted {
            type_url: cached.url().to_owned(),
            resources,
            removed,
            held: cached.held(),
        });
        self.downstream.mark_changed(kind, &touched);
        self.forget(kind, gone);
        self.answer_server(response.from, kind, response.nonce, None);
    }

    /// Forwards Envoy's answer to the stream that the response came from, if it still exists.
    fn answer_server(
        &mut self,
        id: ServerStreamId,
        kind: ResourceType,
        response_nonce: String,
        error_detail: Option<rpc::Status>,
    ) {
        if self.upstream.has(id) {
            let request = DeltaDiscoveryRequest {
                type_url: self.cache[kind].url().to_owned(),
                response_nonce,
                error_detail,
                ..DeltaDiscoveryRequest::default()
            };
            self.actions.push(Action::ToServer(id, request));
        }
    }

    fn on_role(&mut self, id: EnvoyStreamId, role: Role) {
        self.downstream.set_role(id, role);
        if role == Role::Decides {
            return;
        }
        self.take_back(id);
        // The others should get what it rejected.
        let mut renew = false;
        for cached in self.cache.types_mut() {
            renew |= cached.take_rejected(|by| by == id);
        }
        if renew {
            self.actions.push(Action::RenewServer);
        }
    }

    /// Offers to others what a stream has not answered.
    fn take_back(&mut self, id: EnvoyStreamId) {
        for response in &mut self.pending {
            response.sent_to.take_if(|to| *to == id);
        }
    }

    fn on_envoy_gone(&mut self, id: EnvoyStreamId) {
        let Some(stream) = self.downstream.disconnect(id) else {
            return;
        };
        self.take_back(id);
        for kind in self.cache.kinds() {
            if let Some(subscription) = stream.get(kind) {
                let cached = &self.cache[kind];
                let names = subscription.names().iter();
                let not_held = names.filter(|name| cached.resource(name).is_none());
                let not_held = not_held.map(Arc::clone).collect();
                self.forget(kind, not_held);
            }
        }
        if self.downstream.streams().next().is_none() {
            return;
        }
        // The server should have the node of a remaining Envoy, and send to the remaining Envoys
        // what the disconnected one rejected.
        let node = self.upstream.newest().and_then(|stream| stream.node());
        let mut renew = node.is_some_and(|node| node != self.downstream.node());
        for cached in self.cache.types_mut() {
            renew |= cached.take_rejected(|by| by == id);
        }
        if renew {
            self.actions.push(Action::RenewServer);
        }
    }

    /// The connected Envoys have completed their subscriptions: drop everything that has no
    /// subscriber.
    fn on_forget(&mut self) {
        if !self.downstream.streams().any(|one| self.is_envoy(one)) {
            return;
        }
        for kind in self.cache.kinds() {
            let names = self.cache[kind].names().iter().cloned().collect();
            self.forget(kind, names);
            let mut subscriptions = self.downstream.subscriptions(kind);
            let wanted = subscriptions.any(|one| one.is_wildcard());
            let cached = &mut self.cache[kind];
            if cached.is_wildcard() && !wanted {
                cached.unsubscribe_all();
                // Some servers, such as Consul, cannot cancel a wildcard subscription.
                if self.upstream.is_subscribed(kind) {
                    self.actions.push(Action::RenewServer);
                }
            }
        }
    }

    /// Whether a stream subscribes to as much as an Envoy does. Any process of the pod can open a
    /// stream with few subscriptions; that must not drop resources that a reconnecting Envoy needs.
    fn is_envoy(&self, stream: &EnvoyStream) -> bool {
        let mut kinds = [ResourceType::Cluster, ResourceType::Listener].into_iter();
        kinds.all(|kind| {
            let wildcard = self.cache.get(kind).is_some_and(CachedType::is_wildcard);
            !wildcard || stream.get(kind).is_some_and(|one| one.is_wildcard())
        })
    }

    fn on_response(&mut self, from: ServerStreamId, response: DeltaDiscoveryResponse) {
        let newest = self.upstream.newest();
        let Some(stream) = newest.filter(|stream| stream.id == from) else {
            return;
        };
        let known = self.cache.find(&response.type_url);
        let Some(kind) = known.filter(|kind| stream.is_subscribed(*kind)) else {
            self.actions.push(Action::Unexpected(response.type_url));
            return;
        };
        self.pending.push_back(Pending {
            from,
            kind,
            nonce: response.nonce.clone(),
            content: self.cache[kind].read(response),
            sent_to: None,
        });
    }

    /// Offers responses to the Envoys that decide on them, in the order of arrival. Returns whether
    /// anything changed.
    fn offer_responses(&mut self) -> bool {
        let mut changed = false;
        let mut place = 0;
        while let Some(response) = self.pending.get(place) {
            let kind = response.kind;
            if response.sent_to.is_some() {
                place += 1;
                continue;
            }
            let mut others = self.pending.iter();
            if others.any(|one| one.kind == kind && one.sent_to.is_some()) {
                break;
            }
            match self.downstream.decide(kind, &response.content, &self.cache) {
                Decision::Hold => place += 1,
                Decision::Wait => break,
                Decision::Accept => {
                    if let Some(response) = self.pending.remove(place) {
                        self.accept(response);
                    }
                    changed = true;
                }
                Decision::Offer(id, update) => {
                    let (cache, actions) = (&self.cache, &mut self.actions);
                    self.downstream.send(id, kind, update, cache, actions);
                    self.pending[place].sent_to = Some(id);
                    changed = true;
                }
            }
        }
        changed
    }

    /// Subscribes each server stream to the types that it has not requested yet. A type with a
    /// pending response of another stream waits, because it is not yet decided which version Envoy
    /// has.
    fn subscribe_upstream(&mut self) {
        for (kind, cached) in self.cache.iter().filter(|(_, one)| one.is_wanted()) {
            for stream in self.upstream.streams_mut() {
                let mut pending = self.pending.iter();
                let undecided = pending.any(|one| one.kind == kind && one.from != stream.id);
                if stream.is_subscribed(kind) || undecided {
                    continue;
                }
                let limit = self.limits.bytes;
                let held = self.downstream.held_not_cached(kind, cached, limit);
                let node = self.downstream.node();
                stream.subscribe(kind, cached, node, held, &mut self.actions);
            }
        }
    }
}
