//! The machine's events, actions and states.

use std::net::SocketAddr;
use std::time::Duration;

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
    /// To replace the connection in use, which stays in use until [`Action::Adopt`].
    DialReplacement(SocketAddr),
    /// In place of the token that was used before.
    Login,
    /// On the replacement, where there is one.
    CheckFeatures,
    /// The replacement becomes the connection in use.
    Adopt,
    /// The replacement is closed.
    Abandon,
    /// Forget the operation that is under way.
    CancelOperation,
    OpenWatch,
    CloseWatch,
    /// Replaces the timer that is running.
    StartTimer(Duration),
    PublishConnected {
        generation: u64,
    },
    PublishConnecting(SessionError),
    PublishFailed(SessionError),
    PublishClosed,
    /// A round has failed.
    RoundFailed {
        /// A server could be connected to, but not those that only the servers' list names.
        list_misleads: bool,
    },
    /// The connection in use stays; the attempt to replace it has failed.
    ReplacementFailed(SessionError),
    /// Log out at the current connection, or at the first of these that can be reached.
    Logout(Vec<SocketAddr>),
    /// Nothing follows.
    Finish,
}

/// What the session does with the connection in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// The server list is watched; the timer runs.
    Watching,
    /// The watch has been silent: a feature check is under way as well.
    Probing,
    /// There is no watch; the timer runs until the next feature check.
    Waiting,
    /// A feature check is under way.
    Polling,
    /// A connection to the same server is being opened, to replace the one in use. There is no
    /// watch until that has ended.
    DialingReplacement,
    /// A feature check on the replacement is under way.
    CheckingReplacement,
}

impl Activity {
    pub(super) fn is_replacing(self) -> bool {
        matches!(self, Self::DialingReplacement | Self::CheckingReplacement)
    }
}

/// What follows a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Resolve,
    Dial,
    Login(SocketAddr),
    CheckFeatures(SocketAddr),
}

/// A connection that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) server: SocketAddr,
    pub(crate) since: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Idle,
    Resolving,
    Dialing(SocketAddr),
    LoggingIn(SocketAddr),
    CheckingFeatures(SocketAddr),
    Connected {
        held: Held,
        activity: Activity,
    },
    BackingOff(Then),
    Failed,
    /// Shut down; a login that was under way may have to be undone first.
    LoggingOut {
        awaiting_login: bool,
    },
    Closed,
}

/// What the machine shows of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) state: State,
    pub(crate) generation: u64,
    /// Dials for the connection in use, or since it was lost.
    pub(crate) attempts: u64,
    pub(crate) servers: Vec<SocketAddr>,
    /// When a wait ends.
    pub(crate) resume_at: Option<Duration>,
}
