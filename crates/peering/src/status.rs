//! What operators see of a peering's streams.
//!
//! Records what the caller passes on; reads no clock and keeps no history.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::session::{End, Event};

/// How long a failure lasts until a peering is not healthy any more.
const TOLERATED: Duration = Duration::from_mins(2);

/// A state that streams add to the stored state of a peering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// A stream is open: `ACTIVE`.
    Active,
    /// The last stream has ended with an error: `FAILING`.
    Failing,
}

/// What is known of the streams of a peering. It outlives each of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether a stream is open.
    pub connected: bool,
    /// Whether one was ever open.
    pub was_connected: bool,
    /// When the last stream has ended; `None` while one is open.
    pub disconnected_at: Option<SystemTime>,
    /// Why it has ended; empty while one is open and after a deletion.
    pub disconnect_error: String,
    /// The names of the services that the peer exports to this cluster, sorted.
    pub imported: Vec<String>,
    /// The names of the services that this cluster exports to the peer, sorted.
    pub exported: Arc<[String]>,
    /// The last heartbeat of the peer.
    pub last_heartbeat: Option<SystemTime>,
    /// When a resource was sent last.
    pub last_send: Option<SystemTime>,
    /// When the peer has last applied a resource.
    pub last_ack: Option<SystemTime>,
    /// When the peer has last refused a resource.
    pub last_nack: Option<SystemTime>,
    /// Why it has.
    pub last_nack_message: String,
    /// When a resource of the peer was last applied.
    pub last_receive_success: Option<SystemTime>,
    /// When a resource of the peer was last refused, or a stream was lost.
    pub last_receive_error: Option<SystemTime>,
    /// Why it was.
    pub last_receive_error_message: String,
}

impl Status {
    /// A stream is open.
    pub fn connect(&mut self) {
        self.connected = true;
        self.was_connected = true;
        self.disconnected_at = None;
        self.disconnect_error.clear();
    }

    /// Something has happened on the stream.
    pub fn record(&mut self, event: &Event, now: SystemTime) {
        match event {
            Event::Import(_) => {}
            Event::Received(Ok(())) => self.last_receive_success = Some(now),
            Event::Received(Err(error)) => {
                self.last_receive_error = Some(now);
                self.last_receive_error_message.clone_from(error);
            }
            Event::Imported(names) => self.imported.clone_from(names),
            Event::Sent => self.last_send = Some(now),
            Event::Exported(names) => self.exported = Arc::clone(names),
            Event::Acked => self.last_ack = Some(now),
            Event::Nacked(error) => {
                self.last_nack = Some(now);
                self.last_nack_message.clone_from(error);
            }
            Event::Heartbeat => self.last_heartbeat = Some(now),
            Event::End(end) => {
                self.connected = false;
                self.disconnected_at = Some(now);
                self.disconnect_error = match end {
                    End::Deleted | End::Terminated => String::new(),
                    End::Failed(refusal) => refusal.message.clone(),
                };
            }
        }
    }

    /// When anything that counts has arrived last: a heartbeat, or a resource, refused or not.
    pub fn last_receive(&self) -> Option<SystemTime> {
        let resource = self.last_receive_success.max(self.last_receive_error);
        self.last_heartbeat.max(resource)
    }

    /// What replaces the stored state of an active peering; `None`: the stored state is shown.
    pub fn liveness(&self) -> Option<Liveness> {
        if self.connected {
            return Some(Liveness::Active);
        }
        (!self.disconnect_error.is_empty()).then_some(Liveness::Failing)
    }

    /// Whether streams work: one was open, and for no longer than two minutes there is none, the peer applies nothing,
    /// or nothing of the peer can be applied.
    ///
    /// As in Consul, except that an open stream is healthy there only if it is the first one of its server.
    pub fn is_healthy(&self, now: SystemTime) -> bool {
        let long_ago = |time: Option<SystemTime>| {
            time.is_none_or(|time| now.duration_since(time).unwrap_or_default() > TOLERATED)
        };
        let disconnected = self.disconnected_at.is_some() && long_ago(self.disconnected_at);
        let refused = self.last_nack > self.last_ack && long_ago(self.last_ack);
        let refuses = self.last_receive_error > self.last_receive_success
            && long_ago(self.last_receive_error);
        self.was_connected && !disconnected && !refused && !refuses
    }
}
