//! The state of a session for humans who diagnose why it is not connected.
//!
//! No decision depends on it, and it contains no secret.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use crate::error::SessionError;
use crate::machine::{Machine, State};

/// Current activity of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Looking up the configured addresses.
    #[default]
    Finding,
    /// Connecting to a server.
    Dialing,
    /// Logging in.
    LoggingIn,
    /// Requesting a server's features, which also verifies the token.
    Checking,
    /// Connected.
    Connected,
    /// Waiting before the next attempt.
    Waiting,
    /// Failed: only a change of the settings can help.
    Failed,
    /// Closed by its owner, possibly still logging out.
    Closed,
}

impl Stage {
    /// The stage as one word.
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

    /// The stage and server for a state of the machine.
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

/// The last error. It may be resolved by now.
#[derive(Clone, Debug)]
pub struct LastError {
    /// The error.
    pub error: SessionError,
    /// When it happened.
    pub at: Instant,
}

/// Details of a session at a point in time.
#[derive(Clone, Debug, Default)]
pub struct SessionSnapshot {
    /// Current activity of the session.
    pub stage: Stage,
    /// Start of the stage; `None` before the session has started.
    pub stage_since: Option<Instant>,
    /// Time of the next attempt, while waiting for it.
    pub next_attempt: Option<Instant>,
    /// The server of this stage.
    pub server: Option<SocketAddr>,
    /// Number of connections so far; see [`Connection`](crate::Connection::generation).
    pub generation: u64,
    /// Number of servers dialled for the current connection, or since the last one was lost.
    pub attempts: u64,
    /// When the connected server last sent a message for the session itself.
    pub heard: Option<Instant>,
    /// The last error.
    pub last_error: Option<LastError>,
    /// Accessor id of the token, if it came from a login.
    pub accessor_id: Option<Arc<str>>,
    /// Time of the login that returned the token.
    pub token_since: Option<Instant>,
    /// Number of successful logins.
    pub logins: u64,
    /// When the bearer token expires, by its `exp` claim.
    pub bearer_expires: Option<SystemTime>,
    /// When the client certificate expires.
    pub client_certificate_expires: Option<SystemTime>,
    /// All known servers.
    pub servers: Vec<SocketAddr>,
}

impl SessionSnapshot {
    /// Updates it from the machine, whose time starts at `start`.
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
