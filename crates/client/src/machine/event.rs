//! The machine's events, actions and states.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::SessionError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Whether servers are asked for the server list.
    pub(crate) watch: bool,
    /// Whether the token comes from a login.
    pub(crate) login: bool,
    /// After so much silence, give or take a quarter, a server is asked for a sign of life.
    pub(crate) silence: Duration,
    /// Changed files are acted upon within this time, not by everybody at once.
    pub(crate) spread: Duration,
}

/// What a server can do that can configure proxies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    /// It sends its list of servers.
    pub(crate) watch: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Start,
    Resolved(Result<Vec<SocketAddr>, SessionError>),
    Dialed(Result<(), SessionError>),
    LoggedIn(Result<(), SessionError>),
    Features(Result<Features, SessionError>),
    /// The open watch has a new list.
    Servers(Vec<SocketAddr>),
    WatchEnded(SessionError),
    /// A call on the connection of this generation failed, or the connection did.
    CallFailed {
        generation: u64,
        error: SessionError,
    },
    /// Files that connections or logins are made with have changed, and can be used.
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
    /// In place of the connection that was used before.
    Dial(SocketAddr),
    /// To replace the connection in use, which stays in use, without its watch, until another one
    /// is published.
    DialReplacement(SocketAddr),
    /// In place of the token that was used before.
    Login,
    /// On the replacement, where there is one.
    CheckFeatures,
    OpenWatch,
    /// Replaces the timer that is running.
    StartTimer(Duration),
    /// The replacement, where there is one, becomes the connection in use.
    PublishConnected {
        generation: u64,
    },
    /// No connection is in use, nor being replaced; whatever was under way on it has been given up.
    PublishConnecting(SessionError),
    PublishFailed(SessionError),
    /// A login that is under way goes on; all else has been given up.
    PublishClosed,
    /// A round has failed.
    RoundFailed {
        /// A server could be connected to, but not those that only the servers' list names.
        list_misleads: bool,
    },
    /// The connection in use stays. The replacement is closed.
    ReplacementFailed(SessionError),
    /// Log out at the current connection, or at the first of these that can be reached.
    Logout(Vec<SocketAddr>),
}

/// What the session does with the connection in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// The timer runs until the server has been silent for too long, or a replacement is due.
    Waiting,
    /// A feature check is under way, because the server has been silent.
    Checking,
    /// A connection to the same server is being opened, to replace the one in use. There is no
    /// watch until that has ended.
    DialingReplacement,
    /// A feature check on the replacement is under way.
    CheckingReplacement,
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
        activity: Activity,
    },
    BackingOff(Then),
    Failed,
    /// Shut down; a login that was under way may have to be undone first.
    LoggingOut,
    Closed,
}
