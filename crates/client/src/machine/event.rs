//! What the machine is told, what it answers, and what it knows of itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Origin;
use crate::error::SessionError;

/// Where the token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    None,
    Static,
    Login,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Whether servers are asked for the server list.
    pub(crate) watch: bool,
    pub(crate) credential: Credential,
}

/// What a server can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    pub(crate) bootstrap: bool,
    pub(crate) watch: bool,
}

/// What a failure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The server's certificate.
    Untrusted,
    /// The token, or the credentials of a login.
    Rejected,
    /// The request, whoever is asked.
    Invalid,
    /// A call that the server does not have.
    Unsupported,
    /// This server or the way to it.
    Server,
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) error: Arc<SessionError>,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Start,
    Resolved(Result<Vec<SocketAddr>, Arc<SessionError>>),
    Dialed(Result<(), Failure>),
    LoggedIn(Result<(), Failure>),
    Features(Result<Features, Failure>),
    /// The open watch has a new list.
    Servers(Vec<SocketAddr>),
    WatchEnded(Failure),
    /// A call on the connection of this generation failed, or the connection did.
    CallFailed {
        generation: u64,
        failure: Failure,
    },
    Timer,
    LoggedOut,
    Shutdown,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Resolve,
    Dial(SocketAddr),
    Login,
    CheckFeatures,
    /// Forget the operation that is under way.
    CancelOperation,
    OpenWatch,
    CloseWatch,
    /// Replaces the timer that is running.
    StartTimer(Duration),
    PublishConnected {
        generation: u64,
    },
    PublishConnecting(Arc<SessionError>),
    PublishFailed(Arc<SessionError>),
    PublishClosed,
    /// A round has failed; says where its servers came from.
    RoundFailed {
        origin: Origin,
    },
    /// Log out at the current connection, or at the first of these that can be reached.
    Logout(Vec<SocketAddr>),
    /// Nothing follows.
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// The server list is watched.
    Watching,
    /// The timer runs until the next feature check.
    Waiting,
    /// A feature check is under way.
    Polling,
}

/// What follows a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Resolve,
    Dial,
    Login(SocketAddr),
    CheckFeatures(SocketAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Resolving,
    Dialing(SocketAddr),
    LoggingIn(SocketAddr),
    CheckingFeatures(SocketAddr),
    Connected {
        server: SocketAddr,
        since: Duration,
        link: Link,
    },
    BackingOff(Then),
    Failed,
    /// Shut down; a login that was under way may have to be undone first.
    LoggingOut {
        awaiting_login: bool,
    },
    Closed,
}
