//! The state machine of an open stream between two clusters.
//!
//! Both ends are the same, but for three differences: the dialing end sends `Open` first and its peering's id with each
//! subscription, and only it takes the addresses of servers.
//!
//! Inputs are the messages that arrive, a change of what is exported, the results of imports, the deletion of the
//! peering here, the loss of the stream, and the time. After each input the caller takes all events of
//! [`Session::next_event`]. Messages it takes from [`Session::next_message`] one by one, as the stream has room: what is
//! sent is decided only then, so a slow peer gets the latest state and no history.
//!
//! No IO, no clock: a time is the time since the stream was opened.

mod incoming;
mod outgoing;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use legate_api::internal::peerstream::ReplicationMessage;
use legate_api::internal::peerstream::replication_message::{
    Heartbeat, Open, Payload as Content, Request, Response,
};
use legate_api::internal::status::Status;

use crate::import::{Import, Rules};
use crate::opening::terminated;
use crate::refusal::{Refusal, code, shown};
use crate::resource::{Exports, ResourceType};
use incoming::Incoming;
pub use incoming::{IMPORT_BYTES, IMPORTS, ImportId, PendingImport};
use outgoing::Outgoing;
pub use outgoing::RESPONSES_IN_FLIGHT;

/// The time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The stream ends if no heartbeat arrives for so long. Other messages do not count.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_mins(2);
/// The largest number of answers that wait for room in the stream. Each has about a kilobyte at most.
const REPLIES: usize = 4_096;

/// What has happened on a stream, for the caller to act upon.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Something to apply, after all earlier ones. Its result goes to [`Session::imported`].
    Import(PendingImport),
    /// A resource of the peer was applied or, if it was refused, why.
    Received(Result<(), String>),
    /// The peer's list of services was applied: their names, sorted.
    Imported(Vec<String>),
    /// A resource was sent.
    Sent,
    /// The list of services was sent: their names, sorted.
    Exported(Arc<[String]>),
    /// The peer has applied a resource, or has subscribed to a type.
    Acked,
    /// The peer has refused a resource, with this reason.
    Nacked(String),
    /// A heartbeat has arrived.
    Heartbeat,
    /// The stream ends. The last event.
    End(End),
}

/// How a stream ends.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The peering was deleted here, and the peer was sent so. Close the sending side, then read until the end and
    /// discard what arrives, so that the peer gets the message.
    Deleted,
    /// The peer has deleted the peering. Mark it as terminated, then as for [`End::Deleted`].
    Terminated,
    /// An error. The accepting end answers the call with it; the dialing end dials again.
    Failed(Refusal),
}

/// Which end of the stream this is.
#[derive(Debug)]
enum Role {
    Acceptor,
    Dialer {
        /// Id of the peering in the accepting cluster.
        peer_id: String,
    },
}

/// An open stream. The top of its file says how to use it.
#[derive(Debug)]
pub struct Session {
    role: Role,
    rules: Rules,
    /// Whether the peer has subscribed, by [`ResourceType`].
    subscribed: [bool; ResourceType::ALL.len()],
    outgoing: Outgoing,
    incoming: Incoming,
    /// Messages to send before any resource: `Open`, subscriptions and answers.
    replies: VecDeque<ReplicationMessage>,
    events: VecDeque<Event>,
    heartbeat_due: bool,
    next_heartbeat: Duration,
    last_heartbeat: Duration,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The peering was deleted here, and the peer is to be sent so.
    Deleted,
    Ended,
}

impl Session {
    /// The accepting end, after [`crate::opening::decide`]. `imported` is the number of stored instances of each service
    /// of the peer.
    pub fn acceptor(rules: Rules, imported: BTreeMap<String, usize>) -> Self {
        Self::new(Role::Acceptor, rules, imported)
    }

    /// The dialing end. Its first message is `open`. `imported` is the number of stored instances of each service of the
    /// peer.
    pub fn dialer(open: Open, rules: Rules, imported: BTreeMap<String, usize>) -> Self {
        let role = Role::Dialer {
            peer_id: open.peer_id.clone(),
        };
        let mut session = Self::new(role, rules, imported);
        session.replies.push_front(message(Content::Open(open)));
        session
    }

    fn new(role: Role, rules: Rules, imported: BTreeMap<String, usize>) -> Self {
        let peer_id = match &role {
            Role::Acceptor => "",
            Role::Dialer { peer_id } => peer_id,
        };
        let wanted = ResourceType::ALL.into_iter();
        let wanted = wanted.filter(|kind| role.takes(*kind));
        let subscriptions = wanted.map(|kind| {
            message(Content::Request(Request {
                peer_id: peer_id.to_owned(),
                resource_url: kind.url().to_owned(),
                ..Request::default()
            }))
        });
        Self {
            replies: subscriptions.collect(),
            role,
            rules,
            subscribed: [false; ResourceType::ALL.len()],
            outgoing: Outgoing::default(),
            incoming: Incoming::new(imported),
            events: VecDeque::new(),
            heartbeat_due: false,
            next_heartbeat: HEARTBEAT,
            last_heartbeat: Duration::ZERO,
            state: State::Open,
        }
    }

    /// Handles a message of the peer.
    pub fn receive(&mut self, message: ReplicationMessage, now: Duration) {
        if self.state != State::Open {
            return;
        }
        match message.payload {
            Some(Content::Request(request)) => self.on_request(&request, now),
            Some(Content::Response(response)) => self.on_response(response),
            Some(Content::Heartbeat(Heartbeat {})) => {
                self.last_heartbeat = now;
                self.events.push_back(Event::Heartbeat);
            }
            Some(Content::Terminated(_)) => self.end(End::Terminated),
            // Another `Open`, and messages of later versions.
            Some(Content::Open(_)) | None => {}
        }
    }

    /// Whether messages are to be read. Otherwise too many wait for [`Session::imported`], or too many answers wait for
    /// room in the stream.
    pub fn wants_messages(&self) -> bool {
        self.incoming.has_room() && self.replies.len() < REPLIES
    }

    /// Sets what the peer should have.
    pub fn set_exports(&mut self, exports: Arc<Exports>) {
        self.outgoing.set(exports);
    }

    /// Sets what the peer's trust domain must not be, for what arrives from now on.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Reports the result of an [`Event::Import`]: an error says why it could not be stored.
    pub fn imported(&mut self, id: ImportId, result: Result<(), String>) {
        let Some(done) = self.incoming.finish(id) else {
            return;
        };
        if self.state != State::Open {
            return;
        }
        let result = result.map_err(|error| {
            let (url, id) = (done.kind.url(), shown(&done.resource_id));
            let error = shown(&error);
            let text = format!("upsert error, ResourceURL: {url:?}, ResourceID: {id:?}: {error}");
            Refusal::new(code::INTERNAL, text)
        });
        if let (Ok(()), Some(names)) = (&result, done.names) {
            self.events.push_back(Event::Imported(names));
        }
        self.answer(done.kind.url(), &done.nonce, result);
    }

    /// The peering was deleted here: sends so, and then ends.
    pub fn delete(&mut self) {
        if self.state == State::Open {
            self.state = State::Deleted;
            self.replies.clear();
            self.replies.push_back(terminated());
        }
    }

    /// The stream has ended without [`End::Deleted`] or [`End::Terminated`]: with an error, or as if it were complete.
    pub fn lost(&mut self, error: Option<&str>) {
        if self.state == State::Ended {
            return;
        }
        let text = match error {
            None => "stream ended unexpectedly".to_owned(),
            Some(error) => format!("unexpected error receiving from the stream: {error}"),
        };
        self.events.push_back(Event::Received(Err(text.clone())));
        self.fail(Refusal::new(code::UNKNOWN, text));
    }

    /// Ends the stream with an error, such as [`Refusal::no_longer_leader`].
    pub fn fail(&mut self, refusal: Refusal) {
        if self.state != State::Ended {
            self.end(End::Failed(refusal));
        }
    }

    /// The time has come to `now`.
    pub fn tick(&mut self, now: Duration) {
        if self.state == State::Ended {
            return;
        }
        if !self.wants_messages() {
            // It is not the peer that is late.
            self.last_heartbeat = now;
        }
        if now.saturating_sub(self.last_heartbeat) >= HEARTBEAT_TIMEOUT {
            self.fail(Refusal::new(code::UNKNOWN, "heartbeat timeout"));
            return;
        }
        if now >= self.next_heartbeat {
            self.heartbeat_due = true;
            self.next_heartbeat = now + HEARTBEAT;
        }
        self.outgoing.retry(now);
    }

    /// When [`Session::tick`] is to be called.
    pub fn next_tick(&self) -> Duration {
        let next = self
            .next_heartbeat
            .min(self.last_heartbeat + HEARTBEAT_TIMEOUT);
        self.outgoing
            .next_retry()
            .map_or(next, |retry| next.min(retry))
    }

    /// The next event, if there is one. Call it after each call of another method until it returns `None`.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next message to send, if there is one. Call it when the stream has room for a message.
    pub fn next_message(&mut self) -> Option<ReplicationMessage> {
        if self.state == State::Ended {
            return None;
        }
        if let Some(reply) = self.replies.pop_front() {
            if self.state == State::Deleted {
                self.end(End::Deleted);
            }
            return Some(reply);
        }
        if std::mem::take(&mut self.heartbeat_due) {
            return Some(message(Content::Heartbeat(Heartbeat {})));
        }
        let (response, names) = self.outgoing.next(&self.subscribed)?;
        self.events.push_back(Event::Sent);
        self.events.extend(names.map(Event::Exported));
        Some(message(Content::Response(response)))
    }

    fn on_request(&mut self, request: &Request, now: Duration) {
        let Some(kind) = ResourceType::from_url(&request.resource_url) else {
            let url = shown(&request.resource_url);
            let text = format!("subscription request to unknown resource URL: {url}");
            return self.fail(Refusal::invalid(text));
        };
        if !self.subscribed[kind as usize] {
            return match self.refused_subscription(request) {
                Some(text) => self.fail(Refusal::invalid(text)),
                None => {
                    self.subscribed[kind as usize] = true;
                    self.events.push_back(Event::Acked);
                }
            };
        }
        let accepted = request.error.is_none();
        self.outgoing
            .answered(kind, &request.response_nonce, accepted, now);
        self.events.push_back(match &request.error {
            None => Event::Acked,
            Some(error) => {
                let reason = shown(&error.message);
                Event::Nacked(format!(
                    "client peer was unable to apply resource: {reason}"
                ))
            }
        });
    }

    /// Why the first request of a type cannot be a subscription.
    fn refused_subscription(&self, request: &Request) -> Option<String> {
        if let Role::Dialer { peer_id } = &self.role
            && !request.peer_id.is_empty()
            && request.peer_id != *peer_id
        {
            let got = shown(&request.peer_id);
            return Some(format!(
                "initial subscription requests for a resource type must have consistent PeerID values: got={got:?} expected={peer_id:?}"
            ));
        }
        let text = if !request.response_nonce.is_empty() {
            "initial subscription requests for a resource type must not contain a nonce"
        } else if request.error.is_some() {
            "initial subscription request for a resource type must not contain an error"
        } else {
            return None;
        };
        Some(text.to_owned())
    }

    fn on_response(&mut self, response: Response) {
        match self.accept(&response) {
            Ok(pending) => self.events.push_back(Event::Import(pending)),
            Err(refusal) => self.answer(&response.resource_url, &response.nonce, Err(refusal)),
        }
    }

    /// Checks a resource of the peer.
    fn accept(&mut self, response: &Response) -> Result<PendingImport, Refusal> {
        let url = shown(&response.resource_url);
        let kind = ResourceType::from_url(&response.resource_url);
        let Some(kind) = kind.filter(|kind| self.role.takes(*kind)) else {
            let text = format!("received response for unknown resource type {url:?}");
            return Err(Refusal::invalid(text));
        };
        if response.nonce.is_empty() {
            let id = shown(&response.resource_id);
            let text = format!("received response without a nonce for: {url}:{id}");
            return Err(Refusal::invalid(text));
        }
        match response.operation {
            0 => {
                let text = "unsupported operation: \"OPERATION_UNSPECIFIED\"";
                return Err(Refusal::invalid(text));
            }
            1 => {}
            other => return Err(Refusal::invalid(format!("unsupported operation: {other}"))),
        }
        let Some(any) = &response.resource else {
            let text = "received upsert response with no content";
            return Err(Refusal::invalid(text));
        };
        let import = crate::import::read(kind, &response.resource_id, any, &self.rules)?;
        self.incoming.add(import, kind, response, any.len())
    }

    /// Sends an ACK or a NACK.
    fn answer(&mut self, url: &str, nonce: &str, result: Result<(), Refusal>) {
        let error = result.err();
        let outcome = match &error {
            None => Ok(()),
            Some(refusal) => Err(refusal.message.clone()),
        };
        self.events.push_back(Event::Received(outcome));
        self.replies.push_back(message(Content::Request(Request {
            peer_id: String::new(),
            response_nonce: shown(nonce).to_owned(),
            resource_url: shown(url).to_owned(),
            error: error.map(|refusal| Status {
                code: refusal.code,
                message: refusal.message,
                details: Vec::new(),
            }),
        })));
    }

    fn end(&mut self, end: End) {
        self.state = State::Ended;
        self.replies.clear();
        self.events.push_back(Event::End(end));
    }
}

impl Role {
    /// Whether this end takes resources of the type.
    fn takes(&self, kind: ResourceType) -> bool {
        match self {
            Self::Acceptor => kind != ResourceType::ServerAddresses,
            Self::Dialer { .. } => true,
        }
    }
}

fn message(content: Content) -> ReplicationMessage {
    ReplicationMessage {
        payload: Some(content),
    }
}
