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
//! - What a stream asks for is within [`Limits`]; one that asks for more is refused, and nobody else
//!   notices. A name that no stream asks for is there only while a resource of it is held.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::rpc;

use super::cache::{Candidate, Name, Role, TypeKey, TypeState};
use super::limits::{Excess, Limits};
use super::session::{Origin, Session};
use super::upstream::{self, Lane};

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
    /// End an Envoy's stream: it asked for more than it may.
    CloseEnvoy(SessionId, Excess),
    /// Send to a server.
    ToServer(Epoch, DeltaDiscoveryRequest),
    /// End a stream towards a server: a newer one has taken over.
    CloseServer(Epoch),
    /// Open a new stream towards the server: only that makes a server send again what an earlier
    /// Envoy rejected, and say of everything that an Envoy holds whether it is still there.
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
    pub(super) by_url: HashMap<String, TypeKey>,
    /// All types in the order in which Envoy has to be told about them.
    pub(super) in_order: Vec<TypeKey>,
    /// Responses that are not with an Envoy, in the order of their arrival.
    pub(super) queue: VecDeque<Candidate>,
    /// Who the first of the Envoys that are there says it is, encoded.
    pub(super) node: Bytes,
    pub(super) limits: Limits,
    next_seq: u64,
    pub(super) next_nonce: u64,
    /// An Envoy has said that it holds resources.
    pub(super) came_configured: bool,
    pub(super) actions: Vec<Action>,
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

    /// Whether an Envoy has a configuration: a server has sent something that Envoy accepted, or
    /// Envoy came with what another dataplane gave it.
    pub fn was_configured(&self) -> bool {
        self.types.iter().any(|state| state.answered) || self.came_configured
    }

    /// The oldest of the streams that have not asked for anything.
    pub fn silent(&self) -> Option<SessionId> {
        let mut sessions = self.sessions.iter();
        sessions
            .find(|(_, session)| !session.is_subscribed())
            .map(|(id, _)| *id)
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

    pub(super) fn on_answer(
        &mut self,
        id: SessionId,
        key: TypeKey,
        nonce: &str,
        error: Option<rpc::Status>,
    ) {
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
                state.rejected = Some(id);
                self.answer_server(key, candidate.epoch, candidate.nonces, Some(&error));
            }
            // Another Envoy accepted it.
            None => subscription.refused(outstanding.items),
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
        let removed: HashSet<Name> = candidate.removed.iter().cloned().collect();
        let touched = state.merge(candidate);
        for session in self.sessions.values_mut() {
            if let Some(subscription) = session.get_mut(key) {
                subscription.touch(&touched);
            }
        }
        self.forget(key, removed);
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
}
