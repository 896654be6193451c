//! The state of a session for people who ask why it is not connected.
//!
//! No decision follows from it, and it holds no secret.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use crate::error::SessionError;
use crate::machine::{Machine, State};

/// What a session is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Looking up the configured addresses.
    #[default]
    Finding,
    /// Connecting to a server.
    Dialing,
    /// Logging in.
    LoggingIn,
    /// Asking a server for its features, which also proves the token.
    Checking,
    /// Connected.
    Connected,
    /// Waiting before the next attempt.
    Waiting,
    /// Over: only a change of the settings can help.
    Failed,
    /// Closed by its owner, perhaps still logging out.
    Closed,
}

impl Stage {
    /// One word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finding => "finding",
            Self::Dialing => "dialing",
            Self::LoggingIn => "logging-in",
            Self::Checking => "checking",
            Self::Connected => "connected",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Closed => "closed",
        }
    }

    /// The stage of a state, and its server.
    fn of(state: State) -> (Self, Option<SocketAddr>) {
        match state {
            State::Idle | State::Resolving => (Self::Finding, None),
            State::Dialing(server) => (Self::Dialing, Some(server)),
            State::LoggingIn(server) => (Self::LoggingIn, Some(server)),
            State::CheckingFeatures(server) => (Self::Checking, Some(server)),
            State::Connected { server, .. } => (Self::Connected, Some(server)),
            State::BackingOff(_) => (Self::Waiting, None),
            State::Failed => (Self::Failed, None),
            State::LoggingOut | State::Closed => (Self::Closed, None),
        }
    }
}

/// The last error. Its cause may have been repaired since.
#[derive(Clone, Debug)]
pub struct LastError {
    /// The error.
    pub error: SessionError,
    /// When it happened.
    pub at: Instant,
}

/// Details of a session at one moment.
#[derive(Clone, Debug, Default)]
pub struct SessionSnapshot {
    /// What the session is doing.
    pub stage: Stage,
    /// Since when; `None` before it has begun.
    pub stage_since: Option<Instant>,
    /// When the next attempt comes, while it is waiting for that.
    pub next_attempt: Option<Instant>,
    /// The server of this stage.
    pub server: Option<SocketAddr>,
    /// How many connections there have been; see [`Connection`](crate::Connection::generation).
    pub generation: u64,
    /// How many servers were dialled for the present connection, or since the last one was lost.
    pub attempts: u64,
    /// When the connected server last sent the session itself anything.
    pub heard: Option<Instant>,
    /// The last error.
    pub last_error: Option<LastError>,
    /// Public name of the token, when it came from a login.
    pub accessor_id: Option<Arc<str>>,
    /// When a login gave the token.
    pub token_since: Option<Instant>,
    /// How many logins have succeeded.
    pub logins: u64,
    /// When the bearer token expires, by its `exp` claim.
    pub bearer_expires: Option<SystemTime>,
    /// When the client certificate expires.
    pub client_certificate_expires: Option<SystemTime>,
    /// All known servers.
    pub servers: Vec<SocketAddr>,
}

impl SessionSnapshot {
    /// Takes over what the machine knows, whose time counts from `start`.
    pub(crate) fn follow(&mut self, machine: &Machine, start: Instant) {
        let stage = Stage::of(machine.state);
        if self.stage_since.is_none() || stage != (self.stage, self.server) {
            self.stage_since = Some(Instant::now());
        }
        (self.stage, self.server) = stage;
        if self.stage != Stage::Connected {
            self.heard = None;
        }
        let waits = self.stage == Stage::Waiting;
        self.next_attempt = waits.then(|| start + machine.resume_at);
        self.generation = machine.generation;
        self.attempts = machine.attempts;
        self.servers = machine.servers.iter().collect();
    }

    pub(crate) fn failed(&mut self, error: &SessionError) {
        let (error, at) = (error.clone(), Instant::now());
        self.last_error = Some(LastError { error, at });
    }
}
