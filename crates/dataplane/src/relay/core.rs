//! What the relay decides, without IO, time or tasks: events in, actions out.
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

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::rpc;

use super::cache::{Candidate, Name, Role, TypeKey, TypeState, WILDCARD};
use super::session::{Origin, Session};
use super::upstream::{self, Lane};

/// How many types an Envoy may ask for. Envoy knows about a dozen.
const MAX_TYPES: usize = 64;

/// One stream of an Envoy towards the relay. A larger number is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// One stream of the relay towards a server. A larger number is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Something that happened to one of the relay's streams.
#[derive(Debug)]
pub enum Event {
    /// An Envoy opened a stream.
    EnvoyConnected(SessionId),
    /// Envoy sent a request.
    EnvoyRequest(SessionId, Box<DeltaDiscoveryRequest>),
    /// Envoy's stream ended.
    EnvoyGone(SessionId),
    /// A stream towards a server was opened; the server may still refuse it.
    ServerConnected(Epoch),
    /// A server sent a response.
    ServerResponse(Epoch, Box<DeltaDiscoveryResponse>),
    /// A stream towards a server ended.
    ServerGone(Epoch),
    /// The Envoys that are there have had the time to ask for all they want: what only earlier
    /// ones asked for is not needed any more.
    Forget,
}

/// Something the owner of the streams has to do, in this order.
#[derive(Debug)]
pub enum Action {
    /// Send to an Envoy.
    ToEnvoy(SessionId, DeltaDiscoveryResponse),
    /// End an Envoy's stream: it asked for more types than there can be.
    CloseEnvoy(SessionId),
    /// Send to a server.
    ToServer(Epoch, DeltaDiscoveryRequest),
    /// End a stream towards a server: a newer one has taken over.
    CloseServer(Epoch),
    /// Open a new stream towards the server: an Envoy that is new here should see what an earlier
    /// one rejected, and only a new stream makes a server send it again.
    RenewServer,
    /// Envoy accepted a server's response: for the log.
    Accepted(Accepted),
    /// Envoy rejected a response: for the log.
    Rejected(Rejected),
    /// A server sent a type that nobody asked it for: for the log.
    Unexpected(String),
}

/// A server's response that is now part of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Its type.
    pub type_url: String,
    /// How many resources it had.
    pub resources: usize,
    /// How many resources it removed.
    pub removed: usize,
}

/// A response that Envoy rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Its type.
    pub type_url: String,
    /// The resources in it; Envoy's message says which of them it means.
    pub names: Vec<String>,
    /// Envoy's error code, as in `google.rpc.Status`.
    pub code: i32,
    /// Envoy's words.
    pub message: String,
    /// Whether a server sent it just now; else it came from the cache.
    pub from_server: bool,
    /// How many responses of the type, this one included, Envoy has rejected without accepting one
    /// in between.
    pub in_a_row: u32,
}

/// The relay's state: see the module's rules.
#[derive(Debug, Default)]
pub struct Core {
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// Streams towards servers, the newest last.
    pub(super) lanes: Vec<Lane>,
    pub(super) types: Vec<TypeState>,
    by_url: HashMap<String, TypeKey>,
    /// All types in the order in which Envoy has to be told about them.
    pub(super) in_order: Vec<TypeKey>,
    /// Responses that are not with an Envoy, in the order of their arrival.
    pub(super) queue: VecDeque<Candidate>,
    /// Who the Envoys say they are, encoded.
    pub(super) node: Bytes,
    next_seq: u64,
    pub(super) next_nonce: u64,
    pub(super) actions: Vec<Action>,
}

impl Core {
    /// A relay without streams and resources.
    pub fn new() -> Core {
        Core::default()
    }

    /// Takes in one event and answers what has to be done about it.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::EnvoyConnected(id) => {
                self.sessions.insert(id, Session::default());
            }
            Event::EnvoyRequest(id, request) => self.on_request(id, *request),
            Event::EnvoyGone(id) => self.on_envoy_gone(id),
            Event::ServerConnected(epoch) => self.lanes.push(Lane::new(epoch)),
            Event::ServerResponse(epoch, response) => self.on_response(epoch, *response),
            Event::ServerGone(epoch) => self.lanes.retain(|lane| lane.epoch != epoch),
            Event::Forget => self.on_forget(),
        }
        self.settle();
        std::mem::take(&mut self.actions)
    }

    /// Whether a server's next response can be used. While it is false nothing is to be read from
    /// servers, so that what they send stays bounded.
    pub fn wants_upstream(&self) -> bool {
        self.queue.iter().all(|candidate| self.is_held(candidate))
    }

    /// Whether an Envoy has ever asked for something, so that a server is needed.
    pub fn needs_upstream(&self) -> bool {
        self.types.iter().any(TypeState::is_wanted)
    }

    /// Whether a server has ever sent something that Envoy accepted.
    pub fn was_configured(&self) -> bool {
        self.types.iter().any(|state| state.answered)
    }

    /// Whether it waits for an Envoy that asks for its type.
    pub(super) fn is_held(&self, candidate: &Candidate) -> bool {
        self.sessions
            .values()
            .all(|session| session.get(candidate.key).is_none())
    }

    pub(super) fn key_of(&self, role: Role) -> Option<TypeKey> {
        self.in_order
            .iter()
            .copied()
            .find(|key| self.types[key.0].role == role)
    }

    /// The key of a type, which is new when no Envoy has asked for it before.
    fn type_key(&mut self, url: &str) -> Option<TypeKey> {
        if let Some(key) = self.by_url.get(url) {
            return Some(*key);
        }
        if self.types.len() >= MAX_TYPES {
            return None;
        }
        let key = TypeKey(self.types.len());
        self.types.push(TypeState::new(url));
        self.by_url.insert(url.to_owned(), key);
        self.in_order.push(key);
        self.in_order
            .sort_by_key(|key| (self.types[key.0].role, *key));
        Some(key)
    }

    fn on_request(&mut self, id: SessionId, request: DeltaDiscoveryRequest) {
        if !self.sessions.contains_key(&id) {
            return;
        }
        let Some(key) = self.type_key(&request.type_url) else {
            self.actions.push(Action::CloseEnvoy(id));
            self.on_envoy_gone(id);
            return;
        };
        if !request.node.is_empty() {
            self.node = request.node.clone();
        }
        let known = self
            .sessions
            .get(&id)
            .is_some_and(|session| session.get(key).is_some());
        if !known {
            self.open(id, key, &request);
        } else if !request.response_nonce.is_empty() {
            self.on_answer(id, key, &request.response_nonce, request.error_detail);
        }
        self.subscribe(id, key, request.resource_names_subscribe);
        self.unsubscribe(id, key, &request.resource_names_unsubscribe);
    }

    /// The first request of a type says whether it is about all resources and what Envoy has.
    fn open(&mut self, id: SessionId, key: TypeKey, request: &DeltaDiscoveryRequest) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
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
        if state.answered {
            subscription.subscribe_all(&state.entries);
        } else {
            subscription.wildcard = true;
        }
        if std::mem::take(&mut state.rejected) {
            self.actions.push(Action::RenewServer);
        }
        if !std::mem::replace(&mut state.wildcard, true) {
            self.tell_servers(key, vec![WILDCARD.to_owned()], Vec::new());
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
        let mut gone: HashSet<Name> = names.iter().map(|name| state.intern(name)).collect();
        subscription.unsubscribe(&gone);
        for other in self
            .sessions
            .values()
            .filter_map(|session| session.get(key))
        {
            gone.retain(|name| !other.names.contains(name));
        }
        let gone = state.forget(gone);
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

    fn on_answer(&mut self, id: SessionId, key: TypeKey, nonce: &str, error: Option<rpc::Status>) {
        let state = &mut self.types[key.0];
        let subscription = self
            .sessions
            .get_mut(&id)
            .and_then(|session| session.get_mut(key));
        let Some(subscription) = subscription else {
            return;
        };
        let Some(outstanding) = subscription.answered(nonce) else {
            return;
        };
        let from_server = outstanding.origin == Origin::Candidate;
        let candidate = if from_server {
            state.in_flight.take()
        } else {
            None
        };
        let Some(error) = error else {
            subscription.acked(outstanding.items);
            if let Some(candidate) = candidate {
                self.accept(candidate);
            }
            return;
        };
        state.rejected_total += 1;
        state.rejected_in_a_row += 1;
        let rejected = Rejected {
            type_url: state.url.clone(),
            names: outstanding
                .items
                .iter()
                .map(|(name, _)| name.to_string())
                .collect(),
            code: error.code,
            message: error.message.clone(),
            from_server,
            in_a_row: state.rejected_in_a_row,
        };
        subscription.rejection = Some(rejected.clone());
        state.last_rejection = Some(rejected.clone());
        self.actions.push(Action::Rejected(rejected));
        match candidate {
            Some(candidate) => {
                state.rejected = true;
                self.answer_server(key, candidate.epoch, candidate.nonces, Some(&error));
            }
            // What another Envoy accepted is not offered to this one again until it changes.
            None => subscription.hold(outstanding.items),
        }
    }

    /// Makes a candidate part of the cache.
    pub(super) fn accept(&mut self, mut candidate: Candidate) {
        let (key, epoch) = (candidate.key, candidate.epoch);
        let nonces = std::mem::take(&mut candidate.nonces);
        let state = &mut self.types[key.0];
        self.actions.push(Action::Accepted(Accepted {
            type_url: state.url.clone(),
            resources: candidate.resources.len(),
            removed: candidate.removed.len(),
        }));
        let first = !state.answered;
        let touched = state.merge(candidate);
        for session in self.sessions.values_mut() {
            if let Some(subscription) = session.get_mut(key) {
                subscription.touch(&touched);
                if first && subscription.wildcard {
                    subscription.compare_held();
                }
            }
        }
        self.answer_server(key, epoch, nonces, None);
    }

    /// Tells the stream that a response came from how Envoy liked it, if the stream still exists.
    fn answer_server(
        &mut self,
        key: TypeKey,
        epoch: Epoch,
        nonces: Vec<String>,
        error: Option<&rpc::Status>,
    ) {
        if !self.lanes.iter().any(|lane| lane.epoch == epoch) {
            return;
        }
        for nonce in nonces {
            let request = upstream::answer(&self.types[key.0].url, nonce, error.cloned());
            self.actions.push(Action::ToServer(epoch, request));
        }
    }

    fn on_envoy_gone(&mut self, id: SessionId) {
        self.sessions.remove(&id);
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
    }

    fn on_response(&mut self, epoch: Epoch, response: DeltaDiscoveryResponse) {
        let Some(lane) = self.lanes.iter().find(|lane| lane.epoch == epoch) else {
            return;
        };
        let key = self.by_url.get(&response.type_url).copied();
        let Some(key) = key.filter(|key| lane.has_asked(*key)) else {
            self.actions.push(Action::Unexpected(response.type_url));
            return;
        };
        // A newer stream has already been told what Envoy has of this type; anything taken from
        // an older one now would be unknown to it.
        if self
            .lanes
            .iter()
            .any(|lane| lane.epoch > epoch && lane.has_asked(key))
        {
            self.lanes.retain(|lane| lane.epoch != epoch);
            self.actions.push(Action::CloseServer(epoch));
            return;
        }
        self.end_older_lanes(epoch);
        self.next_seq += 1;
        let candidate = self.types[key.0].candidate(self.next_seq, epoch, key, response);
        let waiting = self
            .queue
            .iter()
            .position(|c| c.key == key && c.epoch == epoch);
        match waiting {
            Some(place) if self.is_held(&self.queue[place]) => self.queue[place].append(candidate),
            _ => self.queue.push_back(candidate),
        }
    }

    /// A server that answers has taken over: what Envoy gets from now on only it knows of.
    fn end_older_lanes(&mut self, epoch: Epoch) {
        let older = self.lanes.extract_if(.., |lane| lane.epoch < epoch);
        self.actions
            .extend(older.map(|lane| Action::CloseServer(lane.epoch)));
    }

    fn on_forget(&mut self) {
        if self.sessions.is_empty() {
            return;
        }
        for key in self.in_order.clone() {
            let mut orphans = self.types[key.0].names.clone();
            for subscription in self
                .sessions
                .values()
                .filter_map(|session| session.get(key))
            {
                orphans.retain(|name| !subscription.names.contains(name));
            }
            let gone = self.types[key.0].forget(orphans);
            if !gone.is_empty() {
                self.tell_servers(key, Vec::new(), gone);
            }
        }
    }
}
