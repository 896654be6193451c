//! The session's decisions: an event comes in, actions come out.
//!
//! Nothing here waits, connects, logs or holds a token. The driver performs the actions, one
//! operation (resolve, dial, login, feature check, logout), one watch and one timer at a time, and
//! returns their outcome as events.
//!
//! The rules:
//!
//! - A server that fails is left for the next known one after a short random delay. Only when
//!   every known server has failed in one *round* does the session back off, each time longer,
//!   and then finds servers anew. A connection that has lasted [`WORKING`] ends the series. Delays
//!   stay short until the proxy has its configuration: it serves nobody until then.
//! - A connected server that is silent is asked for a sign of life; without one it is left.
//! - A token that somebody finds rejected is asked about first. If it is rejected again and again,
//!   it is replaced by a new login where there is one, with its own growing delays.
//! - When certificate files change, the connection that replaces the present one is opened and
//!   checked while the present one stays in use.
//! - Errors that only a person can repair end the session, but only before its first connection.
//!   After that, a proxy is carrying traffic, and the fault is with the servers: the session
//!   keeps trying, and tells why it is not connected.

mod addresses;
mod closing;
mod connection;
mod event;
mod finding;
mod proving;
mod renewal;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use legate_runtime::{Backoff, BackoffPolicy};

use self::addresses::{Addresses, Origin};
pub(crate) use self::event::{
    Action, Credential, Event, Failure, FailureKind, Features, Held, Settings, State, View,
};
use self::event::{Link, Then};
use self::proving::TokenState;
use crate::error::SessionError;

/// A connection that lasts this long ends a series of failures. Servers that shed load end
/// connections sooner.
const WORKING: Duration = Duration::from_secs(5);
/// A token of a login that is older than this is replaced at once when it is rejected, a younger
/// one after a delay that grows: servers write every token to disk. After a rejection that proved wrong, the next within this time is believed.
pub(crate) const CALM: Duration = Duration::from_secs(180);
/// How long the logout may take.
pub(crate) const LOGOUT: Duration = Duration::from_secs(5);
/// Longest delay before the next server of a round is tried.
const FAILOVER: Duration = Duration::from_millis(250);
/// Configured addresses that were resolved longer ago are resolved again before they are relied on.
const NAMES: Duration = Duration::from_secs(60);
/// Between attempts to replace a connection that still works.
const RENEWALS: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_secs(15),
    multiplier: 2.0,
    jitter: 0.5,
    cap: Duration::from_secs(600),
};

/// Draws from 0 to 1.
pub(crate) type Random = Box<dyn FnMut() -> f64 + Send>;

pub(crate) struct Machine {
    settings: Settings,
    random: Random,
    state: State,
    servers: Addresses,
    resolved_at: Option<Duration>,
    /// Servers that failed in this round, and whether in a way that only a person can repair.
    round: BTreeMap<SocketAddr, bool>,
    /// Lost in this round, but tried once more: it may lead to several servers.
    second_chance: Option<SocketAddr>,
    /// Some server could be connected to in this round.
    reached: bool,
    backoff: Backoff,
    /// Dials for the connection in use, or since it was lost.
    attempts: u64,
    token: TokenState,
    /// The connected server sends its list.
    watches: bool,
    /// When the connected server's silence has lasted long enough.
    silent_at: Duration,
    renewal_backoff: Backoff,
    /// When to replace the connection, because its files have changed.
    link_renewal: Option<Duration>,
    /// When the wait ends that is under way.
    resume_at: Duration,
    generation: u64,
    established: bool,
    /// The proxy has its configuration.
    configured: bool,
    now: Duration,
    out: Vec<Action>,
}

impl Machine {
    pub(crate) fn new(settings: Settings, random: Random) -> Self {
        Self {
            random,
            state: State::Idle,
            servers: Addresses::new(),
            resolved_at: None,
            round: BTreeMap::new(),
            second_chance: None,
            reached: false,
            backoff: Backoff::new(BackoffPolicy::UNCONFIGURED),
            attempts: 0,
            token: TokenState::new(&settings),
            watches: false,
            silent_at: Duration::ZERO,
            renewal_backoff: Backoff::new(RENEWALS),
            link_renewal: None,
            resume_at: Duration::ZERO,
            generation: 0,
            established: false,
            configured: false,
            now: Duration::ZERO,
            out: Vec::new(),
            settings,
        }
    }

    pub(crate) fn view(&self) -> View {
        View {
            state: self.state,
            generation: self.generation,
            attempts: self.attempts,
            servers: self.servers.iter().collect(),
            resume_at: matches!(self.state, State::BackingOff(_)).then_some(self.resume_at),
        }
    }

    /// Advances the session. `now` is the time since its start.
    pub(crate) fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        self.now = now;
        match (self.state, event) {
            (State::Closed, _) => {}
            (State::LoggingOut { awaiting_login }, event) => {
                self.logging_out(awaiting_login, event)
            }
            (_, Event::Shutdown) => self.shut_down(),
            (_, Event::Configured) => self.configured(),
            (state, Event::FilesChanged { tls, bearer }) => self.files_changed(state, tls, bearer),
            (State::Idle, Event::Start) => self.resolve(),
            (State::Resolving, Event::Resolved(result)) => self.resolved(result),
            (State::Dialing(server), Event::Dialed(result)) => self.dialed(server, result),
            (State::LoggingIn(server), Event::LoggedIn(result)) => self.logged_in(server, result),
            (State::CheckingFeatures(server), Event::Features(result)) => {
                self.checked(server, result)
            }
            (State::BackingOff(then), Event::Timer) => self.resume(then),
            (State::Connected { held, link }, event) => self.connected(held, link, event),
            // Whatever comes too late for the state is about something that has been given up.
            _ => {}
        }
        std::mem::take(&mut self.out)
    }

    fn resume(&mut self, then: Then) {
        match then {
            Then::Resolve => self.resolve(),
            Then::Dial => self.dial_next(),
            Then::Login(server) => self.go(State::LoggingIn(server), Action::Login),
            Then::CheckFeatures(server) => {
                self.go(State::CheckingFeatures(server), Action::CheckFeatures)
            }
        }
    }

    /// The proxy serves without servers from now on.
    fn configured(&mut self) {
        if !self.configured {
            self.configured = true;
            self.backoff = Backoff::new(BackoffPolicy::SERVER);
            self.token.backoff = Backoff::new(BackoffPolicy::SERVER);
        }
    }

    /// Something new to try with, whatever was rejected before.
    fn files_changed(&mut self, state: State, tls: bool, bearer: bool) {
        if tls {
            let random = self.draw();
            self.link_renewal = Some(self.now + self.settings.spread.mul_f64(random));
        }
        match state {
            State::Connected {
                held,
                link: link @ (Link::Watching | Link::Waiting),
            } if tls => self.arm(held, link),
            State::BackingOff(then @ (Then::Resolve | Then::Login(_)))
                if tls || (bearer && self.token.needed) =>
            {
                self.backoff.reset();
                self.token.backoff.reset();
                self.token.rejections = 0;
                self.resume(then);
            }
            _ => {}
        }
    }

    fn wait(&mut self, delay: Duration, then: Then) {
        self.resume_at = self.now + delay;
        self.go(State::BackingOff(then), Action::StartTimer(delay));
    }

    /// A short random delay, so that not everybody moves at once.
    fn wait_briefly(&mut self, then: Then) {
        let delay = FAILOVER.mul_f64(self.draw());
        self.wait(delay, then);
    }

    fn fail(&mut self, error: Arc<SessionError>) {
        self.go(State::Failed, Action::PublishFailed(error));
    }

    fn go(&mut self, state: State, action: Action) {
        self.state = state;
        self.out.push(action);
    }

    fn draw(&mut self) -> f64 {
        (self.random)().clamp(0.0, 1.0)
    }

    /// How long ago, or `None` for never.
    fn since(&self, then: Option<Duration>) -> Option<Duration> {
        then.map(|then| self.now.saturating_sub(then))
    }
}
