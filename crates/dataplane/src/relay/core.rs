//! What the relay decides, without IO, time or tasks: events in, actions out.
//!
//! The core owns three parts and is the only one that knows all of them: what Envoys know
//! (`downstream`), what was acknowledged (`cache`), and what servers were asked for
//! (`upstream`). Its own are the responses on their way from a server to an Envoy.
//!
//! Rules that hold after every event:
//!
//! - A resource is in the cache only after an Envoy accepted it, or when no Envoy that is there
//!   wants it. A rejected response leaves the cache as it was.
//! - A server's response is acknowledged to the same stream it came from and only after Envoy
//!   acknowledged it; a new stream never sees an answer that belongs to another one.
//! - Of each type at most one response of a server is with an Envoy, and each Envoy has at most
//!   one unanswered response of each type.
//! - The loss of a server's stream changes nothing for any Envoy.
//! - The loss of the last Envoy changes nothing that is held: it is coming back.
//! - What a stream asks for is within [`Limits`]; one that asks for more is refused, and nobody else
//!   notices. A name that no stream asks for is there only while a resource of it is held: an Envoy
//!   that comes back gets it from the cache.

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
use super::upstream::{Upstream, change};

pub use super::types::{Action, EnvoyStreamId, Event, Rejected, ServerStreamId};

/// A server's response that no Envoy has answered yet.
#[derive(Debug)]
struct Pending {
    from: ServerStreamId,
    kind: ResourceType,
    nonce: String,
    content: Content,
    /// The Envoy that has it; its answer decides.
    sent_to: Option<EnvoyStreamId>,
}

/// The relay's state: see the module's rules.
#[derive(Debug, Default)]
pub struct Core {
    limits: Limits,
    pub(super) cache: Cache,
    pub(super) downstream: Downstream,
    upstream: Upstream,
    /// In the order of their arrival. A server sends nothing new of a type before it has an answer,
    /// so there is one of each type.
    pending: VecDeque<Pending>,
    /// An Envoy has said that it holds resources.
    came_configured: bool,
    actions: Vec<Action>,
}

impl Core {
    /// A relay without streams and resources.
    pub fn new() -> Core {
        Core::default()
    }

    /// The same, with other limits than the usual.
    pub fn with_limits(limits: Limits) -> Core {
        Core {
            limits,
            ..Core::default()
        }
    }

    /// Takes in one event and answers what has to be done about it.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::EnvoyConnected(id) => self.downstream.connect(id),
            Event::EnvoyRequest(id, request) => self.on_request(id, *request),
            Event::EnvoyGone(id) => self.on_envoy_gone(id),
            Event::ServerConnected(id) => self.upstream.connect(id),
            Event::ServerResponse(id, response) => self.on_response(id, *response),
            Event::ServerGone(id) => self.upstream.disconnect(id),
            Event::Forget => self.on_forget(),
        }
        // What follows from the state, whatever the event was.
        loop {
            self.downstream.serve(&self.cache, &mut self.actions);
            if !self.offer_responses() {
                break;
            }
        }
        self.ask_servers();
        std::mem::take(&mut self.actions)
    }

    /// Whether a server's next response can be used. While it is false nothing is to be read from
    /// servers, so that what they send stays bounded.
    pub fn wants_upstream(&self) -> bool {
        let held = |kind| self.downstream.subscriptions(kind).next().is_none();
        let mut pending = self.pending.iter();
        self.pending.len() <= self.cache.len()
            && pending.all(|one| one.sent_to.is_some() || held(one.kind))
    }

    /// Whether an Envoy has ever asked for something, so that a server is needed.
    pub fn needs_upstream(&self) -> bool {
        self.cache.iter().any(|(_, cached)| cached.is_wanted())
    }

    /// Whether an Envoy has a configuration: a server has sent something that Envoy accepted, or
    /// Envoy came with what another dataplane gave it.
    pub fn was_configured(&self) -> bool {
        self.came_configured || self.cache.iter().any(|(_, cached)| cached.is_answered())
    }

    /// The oldest of the streams that have not asked for anything.
    pub fn silent(&self) -> Option<EnvoyStreamId> {
        let mut streams = self.downstream.streams();
        let silent = streams.find(|stream| !stream.is_subscribed());
        silent.map(EnvoyStream::id)
    }

    /// What Envoy has not acknowledged of what it asked for, and why; `None` when it has its whole
    /// configuration. While a new Envoy takes over that is the old one, which serves until then.
    pub fn missing(&self) -> Option<String> {
        let mut envoys = self.envoys();
        let Some(newest) = envoys.next() else {
            return Some("Envoy has not asked for its configuration".to_owned());
        };
        let why = newest.missing(&self.cache)?;
        let others = envoys.all(|older| older.missing(&self.cache).is_some());
        others.then_some(why)
    }

    /// Whether the newest Envoy has acknowledged every type that it asked for.
    pub fn newest_is_configured(&self) -> bool {
        let newest = self.envoys().next();
        newest.is_some_and(|newest| newest.missing(&self.cache).is_none())
    }

    /// The Envoys that have asked for something, the newest first.
    fn envoys(&self) -> impl Iterator<Item = &EnvoyStream> {
        let newest_first = self.downstream.streams().rev();
        newest_first.filter(|stream| stream.is_subscribed())
    }

    /// The core's part of the status; who owns the streams adds what it knows of the server.
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
        self.downstream.introduce(id, &request.node);
        if is_first {
            self.on_first_request(id, kind, &request);
        } else if !request.response_nonce.is_empty() {
            self.on_answer(id, kind, &request.response_nonce, request.error_detail);
        }
        self.subscribe(id, kind, request.resource_names_subscribe);
        self.unsubscribe(id, kind, &request.resource_names_unsubscribe);
    }

    /// Adds a type that is not known, if there is room. One that nobody knows any more makes room.
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
            // What a server was asked for cannot be taken back from it.
            if self.upstream.forget(idle) {
                self.actions.push(Action::RenewServer);
            }
        }
        Ok(self.cache.add(&request.type_url))
    }

    /// The first request of a type says whether it is about all resources and what Envoy has.
    fn on_first_request(
        &mut self,
        id: EnvoyStreamId,
        kind: ResourceType,
        request: &DeltaDiscoveryRequest,
    ) {
        self.came_configured |= !request.initial_resource_versions.is_empty();
        let Some(subscription) = self.downstream.open(id, kind) else {
            return;
        };
        // Envoy may still wait for endpoints and routes of a version that it names here, when the
        // stream broke after what refers to them: those are sent again in any case.
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
        let asked = self.upstream.has_asked(kind);
        let mut renew = cached.take_rejected(|_| true);
        // A server that these were not requested from does not say whether they are gone.
        renew |= asked && subscription.held_elsewhere(cached).next().is_some();
        if cached.subscribe_all() {
            // Servers like Consul's take only the first request of a stream for a wildcard.
            renew |= asked;
            self.change(kind, vec![WILDCARD.to_owned()], Vec::new());
        }
        if renew {
            self.actions.push(Action::RenewServer);
        }
    }

    fn subscribe(&mut self, id: EnvoyStreamId, kind: ResourceType, names: Vec<String>) {
        let mut ask = Vec::new();
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
                ask.push(name);
            }
            subscription.subscribe(shared);
        }
        if !ask.is_empty() {
            self.change(kind, ask, Vec::new());
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

    /// Forgets those of these names that no stream is subscribed to.
    fn forget(&mut self, kind: ResourceType, mut names: HashSet<Name>) {
        if names.is_empty() {
            return;
        }
        for subscription in self.downstream.subscriptions(kind) {
            names.retain(|name| !subscription.names().contains(name));
        }
        let gone = self.cache[kind].unsubscribe(names);
        if !gone.is_empty() {
            self.change(kind, Vec::new(), gone);
        }
    }

    /// Tells servers of a change of subscriptions.
    fn change(&mut self, kind: ResourceType, subscribe: Vec<String>, unsubscribe: Vec<String>) {
        let request = change(self.cache[kind].url(), subscribe, unsubscribe);
        let asked = self.upstream.asked(kind);
        let requests = asked.map(|id| Action::ToServer(id, request.clone()));
        self.actions.extend(requests);
    }

    /// Envoy accepts or rejects a response.
    fn on_answer(
        &mut self,
        id: EnvoyStreamId,
        kind: ResourceType,
        nonce: &str,
        error: Option<rpc::Status>,
    ) {
        let Some(subscription) = self.downstream.subscription_mut(id, kind) else {
            return;
        };
        // An answer may come too late.
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
        let rejected = self.cache[kind].reject(by, names, error.message.clone());
        subscription.nack(items, rejected.clone());
        self.actions.push(Action::Rejected(rejected));
        if let Some(response) = response {
            self.answer_server(response.from, kind, response.nonce, Some(error));
        }
    }

    /// Makes a response part of the cache.
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
        self.downstream.touch(kind, &touched);
        self.forget(kind, gone);
        self.answer_server(response.from, kind, response.nonce, None);
    }

    /// Passes Envoy's answer on to the stream that the response came from, if there still is one.
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

    fn on_envoy_gone(&mut self, id: EnvoyStreamId) {
        let Some(stream) = self.downstream.disconnect(id) else {
            return;
        };
        for response in &mut self.pending {
            response.sent_to.take_if(|to| *to == id);
        }
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
        // The Envoys that are left should be the ones that the server knows, and see what the one
        // that is gone rejected.
        let node = self.upstream.newest().and_then(|stream| stream.node());
        let mut renew = node.is_some_and(|node| node != self.downstream.node());
        for cached in self.cache.types_mut() {
            renew |= cached.take_rejected(|by| by == id);
        }
        if renew {
            self.actions.push(Action::RenewServer);
        }
    }

    /// An Envoy is there that has asked for all it wants: what nobody asks for is not needed.
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
                // Servers like Consul's take no wildcard back.
                if self.upstream.has_asked(kind) {
                    self.actions.push(Action::RenewServer);
                }
            }
        }
    }

    /// Whether a stream asks for what makes an Envoy: any process of the pod can open one and ask
    /// for little, and what the Envoy that is coming back needs must not go because of that.
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
        let Some(kind) = known.filter(|kind| stream.has_asked(*kind)) else {
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

    /// Gives responses to the Envoys that decide, in the order in which they arrived. Answers
    /// whether something changed.
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

    /// Asks every server for the types that it has not been asked for. A type with a response of
    /// another stream waits: what Envoy has of it is not decided.
    fn ask_servers(&mut self) {
        for (kind, cached) in self.cache.iter().filter(|(_, one)| one.is_wanted()) {
            for stream in self.upstream.streams_mut() {
                let mut pending = self.pending.iter();
                let undecided = pending.any(|one| one.kind == kind && one.from != stream.id);
                if stream.has_asked(kind) || undecided {
                    continue;
                }
                let limit = self.limits.bytes;
                let held = self.downstream.held_elsewhere(kind, cached, limit);
                let node = self.downstream.node();
                stream.ask(kind, cached, node, held, &mut self.actions);
            }
        }
    }
}
