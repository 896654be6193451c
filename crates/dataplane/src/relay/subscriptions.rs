//! What Envoys ask for: taken in within the limits, passed on to servers, and forgotten when nobody
//! asks for it any more.
//!
//! A stream's end takes along the names that only it asked for, unless a resource of that name is
//! held: an Envoy that comes back gets it from the cache. Those go when an Envoy is there that has
//! asked for all it wants without asking for them.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use legate_api::discovery::DeltaDiscoveryRequest;

use super::cache::{Name, Role, TypeKey, TypeState, WILDCARD};
use super::core::{Action, Core, SessionId};
use super::limits::{Excess, Usage};
use super::session::{Session, Subscription};
use super::upstream;

impl Core {
    pub(super) fn on_request(&mut self, id: SessionId, request: DeltaDiscoveryRequest) {
        if !self.sessions.contains_key(&id) {
            return;
        }
        let key = match self.admit(id, &request) {
            Ok(key) => key,
            Err(excess) => {
                self.actions.push(Action::CloseEnvoy(id, excess));
                return self.on_envoy_gone(id);
            }
        };
        if !request.node.is_empty() {
            self.introduce(id, &request.node);
        }
        let known = self.subscription(id, key).is_some();
        if !known {
            self.open(id, key, &request);
        } else if !request.response_nonce.is_empty() {
            self.on_answer(id, key, &request.response_nonce, request.error_detail);
        }
        self.subscribe(id, key, request.resource_names_subscribe);
        self.unsubscribe(id, key, &request.resource_names_unsubscribe);
    }

    fn subscription(&self, id: SessionId, key: TypeKey) -> Option<&Subscription> {
        self.sessions.get(&id)?.get(key)
    }

    /// What all streams are subscribed to of a type.
    fn subscriptions(&self, key: TypeKey) -> impl Iterator<Item = &Subscription> {
        let sessions = self.sessions.values();
        sessions.filter_map(move |session| session.get(key))
    }

    /// The request's type, when the stream may ask for all that it asks for with this request.
    fn admit(&mut self, id: SessionId, request: &DeltaDiscoveryRequest) -> Result<TypeKey, Excess> {
        let limit = self.limits.types;
        let key = self.by_url.get(&request.type_url).copied();
        let session = self.sessions.get(&id);
        let subscription = key.and_then(|key| session?.get(key));
        if subscription.is_none() && session.is_some_and(|session| session.types() >= limit) {
            return Err(Excess::Types { limit });
        }
        let mut asked: Usage = session.map(Session::asked).unwrap_or_default();
        for name in &request.resource_names_subscribe {
            if subscription.is_none_or(|known| !known.names.contains(name.as_str())) {
                asked.add(name.len());
            }
        }
        self.limits.check(asked)?;
        if subscription.is_none() {
            let mut held: Usage = session.map(Session::resumed).unwrap_or_default();
            for (name, version) in &request.initial_resource_versions {
                held.add(name.len() + version.len());
            }
            self.limits.check(held)?;
        }
        match key {
            Some(key) => Ok(key),
            None => self
                .new_type(&request.type_url)
                .ok_or(Excess::Types { limit }),
        }
    }

    /// A place for a type that is not known: a new one, or that of a type nobody knows any more.
    fn new_type(&mut self, url: &str) -> Option<TypeKey> {
        let state = TypeState::new(url);
        let key = if self.types.len() < self.limits.all_types() {
            let key = TypeKey(self.types.len());
            self.types.push(state);
            self.in_order.push(key);
            key
        } else {
            let idle = |key: &TypeKey| self.is_idle(*key);
            let key = self.in_order.iter().copied().find(idle)?;
            let old = std::mem::replace(&mut self.types[key.0], state);
            self.by_url.remove(&old.url);
            // What a server was asked for cannot be taken back from it.
            let mut asked = false;
            for lane in &mut self.lanes {
                asked |= lane.unask(key);
            }
            if asked {
                self.actions.push(Action::RenewServer);
            }
            key
        };
        self.by_url.insert(url.to_owned(), key);
        self.in_order
            .sort_by_key(|key| (self.types[key.0].role, *key));
        Some(key)
    }

    /// Whether a type that not every Envoy has is asked for by nobody, and nothing is held of it.
    fn is_idle(&self, key: TypeKey) -> bool {
        let state = &self.types[key.0];
        state.role == Role::Other
            && state.entries.is_empty()
            && state.in_flight.is_none()
            && self.queue.iter().all(|candidate| candidate.key != key)
            && self.subscriptions(key).next().is_none()
    }

    /// Notes the node of a stream. Requests to servers carry that of the first Envoy.
    fn introduce(&mut self, id: SessionId, node: &Bytes) {
        // By the protocol the first request of a stream carries it. Envoy repeats it in each request,
        // 55 KiB of extension names, with its maps in another order.
        let session = self.sessions.get_mut(&id);
        if let Some(session) = session.filter(|session| session.node.is_empty()) {
            session.node = node.clone();
        }
        self.choose_node();
    }

    fn choose_node(&mut self) {
        let mut nodes = self.sessions.values().map(|session| &session.node);
        if let Some(node) = nodes.find(|node| !node.is_empty()) {
            self.node = node.clone();
        }
    }

    /// The first request of a type says whether it is about all resources and what Envoy has.
    fn open(&mut self, id: SessionId, key: TypeKey, request: &DeltaDiscoveryRequest) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        self.came_configured |= !request.initial_resource_versions.is_empty();
        let state = &self.types[key.0];
        let subscription = session.open(key);
        // Envoy may still wait for endpoints and routes of a version that it names here, when the
        // stream broke after what refers to them: those are sent again in any case.
        if !state.role.is_waited_for() {
            let held = request.initial_resource_versions.iter();
            let held = held.map(|(name, version)| (state.intern(name), version.clone()));
            subscription.resume(held);
        }
        let names_nothing = request.resource_names_subscribe.is_empty()
            && !request
                .resource_names_unsubscribe
                .iter()
                .any(|name| name == WILDCARD);
        if names_nothing {
            self.subscribe_all(id, key);
        }
    }

    fn subscribe_all(&mut self, id: SessionId, key: TypeKey) {
        let state = &mut self.types[key.0];
        let Some(subscription) = self.sessions.get_mut(&id).and_then(|s| s.get_mut(key)) else {
            return;
        };
        if subscription.wildcard {
            return;
        }
        subscription.subscribe_all(&state.entries);
        let mut renew = state.rejected.take().is_some();
        let asked = self.lanes.iter().any(|lane| lane.has_asked(key));
        // A server that these were not requested from does not say whether they are gone.
        renew |= asked && subscription.holds_other_than(&state.entries);
        if !std::mem::replace(&mut state.wildcard, true) {
            // Servers like Consul's take only the first request of a stream for a wildcard.
            renew |= asked;
            self.tell_servers(key, vec![WILDCARD.to_owned()], Vec::new());
        }
        if renew {
            self.actions.push(Action::RenewServer);
        }
    }

    fn subscribe(&mut self, id: SessionId, key: TypeKey, names: Vec<String>) {
        let mut ask = Vec::new();
        for name in names {
            if name == WILDCARD {
                self.subscribe_all(id, key);
                continue;
            }
            let state = &mut self.types[key.0];
            let shared = state.intern(&name);
            let Some(session) = self.sessions.get_mut(&id) else {
                return;
            };
            session.open(key).subscribe(&shared);
            let known = state.entries.contains_key(&shared);
            // A name that is wanted already and still unknown may have been rejected: asking
            // again makes the server send it again.
            if state.names.insert(shared) || !known {
                ask.push(name);
            }
        }
        if !ask.is_empty() {
            self.tell_servers(key, ask, Vec::new());
        }
    }

    fn unsubscribe(&mut self, id: SessionId, key: TypeKey, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let state = &mut self.types[key.0];
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let subscription = session.open(key);
        if names.iter().any(|name| name == WILDCARD) {
            subscription.unsubscribe_all();
        }
        let gone: HashSet<Name> = names.iter().map(|name| state.intern(name)).collect();
        subscription.unsubscribe(&gone);
        self.forget(key, gone);
    }

    /// Forgets those of these names that no stream is subscribed to.
    pub(super) fn forget(&mut self, key: TypeKey, mut names: HashSet<Name>) {
        for subscription in self.subscriptions(key) {
            names.retain(|name| !subscription.names.contains(name));
        }
        let gone = self.types[key.0].forget(names);
        if !gone.is_empty() {
            self.tell_servers(key, Vec::new(), gone);
        }
    }

    /// Passes a change of subscriptions on to the streams that know the type. The others will ask
    /// for everything at once.
    fn tell_servers(&mut self, key: TypeKey, subscribe: Vec<String>, unsubscribe: Vec<String>) {
        let url = &self.types[key.0].url;
        for lane in self.lanes.iter().filter(|lane| lane.has_asked(key)) {
            let request = upstream::change(url, subscribe.clone(), unsubscribe.clone());
            self.actions.push(Action::ToServer(lane.epoch, request));
        }
    }

    pub(super) fn on_envoy_gone(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        for state in &mut self.types {
            let Some(mut candidate) = state.in_flight.take_if(|c| c.judge == Some(id)) else {
                continue;
            };
            candidate.judge = None;
            let place = self
                .queue
                .partition_point(|other| other.seq < candidate.seq);
            self.queue.insert(place, candidate);
        }
        for key in self.in_order.clone() {
            if let Some(subscription) = session.get(key) {
                let state = &self.types[key.0];
                let names = subscription.names.iter();
                let unknown = names.filter(|name| !state.holds(name));
                let unknown = unknown.map(Arc::clone).collect();
                self.forget(key, unknown);
            }
        }
        self.choose_node();
        self.renew_without(id);
    }

    /// The Envoys that are left should see what one that is gone rejected, and be the ones that the
    /// server knows.
    fn renew_without(&mut self, id: SessionId) {
        if self.sessions.is_empty() {
            return;
        }
        let mut renew = self
            .lanes
            .last()
            .and_then(|lane| lane.introduced.as_ref())
            .is_some_and(|node| *node != self.node);
        for state in &mut self.types {
            renew |= state.rejected.take_if(|by| *by == id).is_some();
        }
        if renew {
            self.actions.push(Action::RenewServer);
        }
    }

    /// An Envoy is there that has asked for all it wants: what nobody asks for is not needed.
    pub(super) fn on_forget(&mut self) {
        if !self.sessions.values().any(|session| self.is_envoy(session)) {
            return;
        }
        for key in self.in_order.clone() {
            let names = self.types[key.0].names.iter().cloned().collect();
            self.forget(key, names);
            let wanted = self.subscriptions(key).any(|one| one.wildcard);
            if self.types[key.0].wildcard && !wanted {
                self.types[key.0].forget_wildcard();
                // Servers like Consul's take no wildcard back.
                if self.lanes.iter().any(|lane| lane.has_asked(key)) {
                    self.actions.push(Action::RenewServer);
                }
            }
        }
    }

    /// Whether a stream asks for what makes an Envoy: any process of the pod can open one and ask
    /// for little, and what the Envoy that is coming back needs must not go because of that.
    fn is_envoy(&self, session: &Session) -> bool {
        let roles = [Role::Cluster, Role::Listener].into_iter();
        let mut keys = roles.filter_map(|role| self.key_of(role));
        keys.all(|key| {
            let asks = session.get(key).is_some_and(|one| one.wildcard);
            asks || !self.types[key.0].wildcard
        })
    }

    /// What Envoys hold of a type that they want all of and the cache does not have. It is named to
    /// a server, so that the server says what is gone: its silence does not mean that, for it may
    /// send its state in several responses.
    pub(super) fn held_elsewhere(&self, key: TypeKey) -> Vec<Name> {
        let mut room = self.limits.bytes;
        let wildcards = self.subscriptions(key).filter(|one| one.wildcard);
        let held = wildcards.flat_map(|one| one.other_than(&self.types[key.0].entries));
        let fits = held.take_while(|name| {
            let left = room.checked_sub(name.len());
            room = left.unwrap_or_default();
            left.is_some()
        });
        fits.map(Arc::clone).collect()
    }
}
