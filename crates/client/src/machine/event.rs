//! The machine's events, actions and states.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::SessionError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Whether to request the server list.
    pub(crate) watch: bool,
    /// Whether the token comes from a login.
    pub(crate) login: bool,
    /// Idle time, randomised by up to a quarter, after which a server is checked.
    pub(crate) silence: Duration,
    /// Reactions to changed files are spread over this time, so that not all clients react at once.
    pub(crate) spread: Duration,
}

/// Features of a server that can configure proxies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    /// Whether it sends its list of servers.
    pub(crate) watch: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Start,
    Resolved(Result<Vec<SocketAddr>, SessionError>),
    Dialed(Result<(), SessionError>),
    LoggedIn(Result<(), SessionError>),
    Features(Result<Features, SessionError>),
    /// The open watch has delivered a new list.
    Servers(Vec<SocketAddr>),
    WatchEnded(SessionError),
    /// A call on the connection of this generation failed, or the connection was lost.
    CallFailed {
        generation: u64,
        error: SessionError,
    },
    /// Files for connections or logins have changed, and are usable.
    FilesChanged {
        tls: bool,
        bearer: bool,
    },
    /// The proxy has its configuration, and keeps it without servers.
    Configured,
    Timer,
    LoggedOut,
    Shutdown,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Resolve,
    /// Dial in place of the previous connection.
    Dial(SocketAddr),
    /// Dial a replacement. The connection in use remains so, without its watch, until another one
    /// is published.
    DialReplacement(SocketAddr),
    /// Log in for a token that replaces the previous one.
    Login,
    /// Check features on the replacement, or else on the connection.
    CheckFeatures,
    OpenWatch,
    /// Start the timer, in place of a running one.
    StartTimer(Duration),
    /// Publish the replacement, or else the dialled connection, as the connection in use.
    PublishConnected {
        generation: u64,
    },
    /// Publish that no connection is in use. Any replacement and pending operation are cancelled.
    PublishConnecting(SessionError),
    PublishFailed(SessionError),
    /// Publish that the session is closed. Everything except a pending login is cancelled.
    PublishClosed,
    /// Report that a round has failed.
    RoundFailed {
        /// Some server could be connected to, but not those that are only in the servers' list.
        list_misleads: bool,
    },
    /// Keep the connection in use and close the replacement.
    ReplacementFailed(SessionError),
    /// Log out on the current connection, or at the first of these servers that is reachable.
    Logout(Vec<SocketAddr>),
}

/// Activity on the connection in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// The timer runs until the server has been silent for too long, or a replacement is due.
    Waiting,
    /// A feature check is running, because the server has been silent.
    Checking,
    /// A replacement connection to the same server is being opened. There is no watch meanwhile.
    DialingReplacement,
    /// A feature check is running on the replacement.
    CheckingReplacement,
}

/// The step after a delay.
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
        activity: Activity,
    },
    BackingOff(Then),
    Failed,
    /// Shutting down. A pending login must be completed first, to log out its token.
    LoggingOut,
    Closed,
}
