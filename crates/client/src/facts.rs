//! The state of a session for people who ask why it is not connected.
//!
//! No decision follows from it, and it holds no secret.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::error::SessionError;
use crate::machine::{State, View};

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Looking up the configured addresses.
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
    pub(crate) fn of(state: State) -> (Self, Option<SocketAddr>) {
        match state {
            State::Idle | State::Resolving => (Self::Finding, None),
            State::Dialing(server) => (Self::Dialing, Some(server)),
            State::LoggingIn(server) => (Self::LoggingIn, Some(server)),
            State::CheckingFeatures(server) => (Self::Checking, Some(server)),
            State::Connected { held, .. } => (Self::Connected, Some(held.server)),
            State::BackingOff(_) => (Self::Waiting, None),
            State::Failed => (Self::Failed, None),
            State::LoggingOut { .. } | State::Closed => (Self::Closed, None),
        }
    }
}

/// The last error. Its cause may have been repaired since.
#[derive(Clone, Debug)]
pub struct LastError {
    /// The error.
    pub error: SessionError,
    /// How long ago.
    pub age: Duration,
}

/// Details of a session at one moment.
#[derive(Clone, Debug)]
pub struct SessionSnapshot {
    /// What the session is doing.
    pub stage: Stage,
    /// Since when.
    pub stage_age: Duration,
    /// Time until the next attempt, while it is waiting.
    pub next_attempt: Option<Duration>,
    /// The server of this stage.
    pub server: Option<SocketAddr>,
    /// How many connections there have been; see [`Connection`](crate::Connection::generation).
    pub generation: u64,
    /// How many servers were dialled for the present connection, or since the last one was lost.
    pub attempts: u64,
    /// Time since the connected server last sent the session itself anything.
    pub heard: Option<Duration>,
    /// The last error.
    pub last_error: Option<LastError>,
    /// Public name of the token, when it came from a login.
    pub accessor_id: Option<Arc<str>>,
    /// Age of the token, when it came from a login.
    pub token_age: Option<Duration>,
    /// How many logins have succeeded.
    pub logins: u64,
    /// When the bearer token expires, by its `exp` claim.
    pub bearer_expires: Option<SystemTime>,
    /// When the client certificate expires.
    pub client_certificate_expires: Option<SystemTime>,
    /// All known servers.
    pub servers: Vec<SocketAddr>,
}

/// What snapshots are made from; the driver updates it.
pub(crate) struct Facts {
    started: Instant,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    view: View,
    /// `None`: since the start.
    stage_since: Option<Instant>,
    heard: Option<Instant>,
    last_error: Option<(SessionError, Instant)>,
    token: Option<(Option<Arc<str>>, Instant)>,
    logins: u64,
    bearer_expires: Option<SystemTime>,
    client_certificate_expires: Option<SystemTime>,
}

impl Facts {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            known: Mutex::default(),
        }
    }

    /// When the session started; the machine's time counts from here.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn update(&self, view: View) {
        let mut known = self.known();
        if Stage::of(known.view.state) != Stage::of(view.state) {
            known.stage_since = Some(Instant::now());
        }
        known.view = view;
    }

    pub(crate) fn heard(&self) {
        self.known().heard = Some(Instant::now());
    }

    pub(crate) fn failed(&self, error: &SessionError) {
        self.known().last_error = Some((error.clone(), Instant::now()));
    }

    pub(crate) fn logged_in(&self, bearer_expires: Option<SystemTime>) {
        let mut known = self.known();
        known.logins += 1;
        known.bearer_expires = bearer_expires;
    }

    /// The accessor of the token in use and the time of its login; `None` without a token.
    pub(crate) fn token(&self, token: Option<(Option<Arc<str>>, Instant)>) {
        self.known().token = token;
    }

    pub(crate) fn bearer_expires(&self, expires: Option<SystemTime>) {
        self.known().bearer_expires = expires;
    }

    pub(crate) fn client_certificate_expires(&self, expires: Option<SystemTime>) {
        self.known().client_certificate_expires = expires;
    }

    pub(crate) fn snapshot(&self) -> SessionSnapshot {
        let known = self.known();
        let (stage, server) = Stage::of(known.view.state);
        let last_error = known.last_error.as_ref().map(|(error, at)| LastError {
            error: error.clone(),
            age: at.elapsed(),
        });
        let (accessor_id, token_age) = match &known.token {
            Some((accessor, login)) => (accessor.clone(), Some(login.elapsed())),
            None => (None, None),
        };
        let now = self.started.elapsed();
        SessionSnapshot {
            stage,
            stage_age: known.stage_since.unwrap_or(self.started).elapsed(),
            next_attempt: known.view.resume_at.map(|at| at.saturating_sub(now)),
            server,
            generation: known.view.generation,
            attempts: known.view.attempts,
            heard: known
                .heard
                .filter(|_| stage == Stage::Connected)
                .map(|at| at.elapsed()),
            last_error,
            accessor_id,
            token_age,
            logins: known.logins,
            bearer_expires: known.bearer_expires,
            client_certificate_expires: known.client_certificate_expires,
            servers: known.view.servers.clone(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
