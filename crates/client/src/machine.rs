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
//!   and then finds servers anew. A connection that has lasted [`CALM`] ends the series.
//! - A rejected token is replaced by a new login where there is one, with its own growing delays.
//! - Errors that only a person can repair end the session, but only before its first connection.
//!   After that, a proxy is carrying traffic, and the fault is with the servers: the session
//!   keeps trying, and tells why it is not connected.

mod addresses;
mod event;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use legate_runtime::{Backoff, BackoffPolicy};

use self::addresses::Addresses;
pub(crate) use self::addresses::Origin;
pub(crate) use self::event::{Action, Credential, Event, Failure, FailureKind, Features, Settings};
use self::event::{Link, State, Then};
use crate::error::SessionError;

/// A connection that lasts this long ends a series of failures.
pub(crate) const CALM: Duration = Duration::from_secs(180);
/// Between two feature checks of a server that sends no server list.
pub(crate) const POLL: Duration = Duration::from_secs(60);
/// Between a login and the first use of its token: servers need a moment to replicate it.
pub(crate) const SETTLE: Duration = Duration::from_millis(100);
/// How long the logout may take.
pub(crate) const LOGOUT: Duration = Duration::from_secs(5);
/// Longest delay before the next server of a round is tried.
const FAILOVER: Duration = Duration::from_millis(250);
/// How often a token that is not found is tried again at the same server, with delays that double
/// from [`SETTLE`] up to 400 ms: about two seconds.
const FRESH_CHECKS: u32 = 6;
/// The same for a token that other servers have accepted.
const PROVEN_CHECKS: u32 = 2;
/// How long after a login calls may be told that the token is not found without consequences.
const FRESH: Duration = Duration::from_secs(2);
/// So many rejections in a row are believed.
const REJECTIONS: u32 = 3;
/// How many servers are asked to log out when the session has no connection.
const LOGOUT_SERVERS: usize = 3;

/// Draws from 0 to 1.
pub(crate) type Random = Box<dyn FnMut() -> f64 + Send>;

pub(crate) struct Machine {
    settings: Settings,
    random: Random,
    state: State,
    servers: Addresses,
    /// Servers that failed in this round, and whether for their certificate.
    round: BTreeMap<SocketAddr, bool>,
    backoff: Backoff,
    login_backoff: Backoff,
    last_login: Option<Duration>,
    /// The driver has a token that must be logged out.
    holds_token: bool,
    needs_login: bool,
    /// The token has been accepted.
    proven: bool,
    /// Further feature checks before a rejected token is believed to be bad.
    checks: u32,
    rejections: u32,
    generation: u64,
    established: bool,
    now: Duration,
    out: Vec<Action>,
}

impl Machine {
    pub(crate) fn new(settings: Settings, random: Random) -> Self {
        Self {
            settings,
            random,
            state: State::Idle,
            servers: Addresses::new(),
            round: BTreeMap::new(),
            backoff: Backoff::new(BackoffPolicy::SERVER),
            login_backoff: Backoff::new(BackoffPolicy::SERVER),
            last_login: None,
            holds_token: false,
            needs_login: settings.credential == Credential::Login,
            proven: false,
            checks: 0,
            rejections: 0,
            generation: 0,
            established: false,
            now: Duration::ZERO,
            out: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> State {
        self.state
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
            (State::Idle, Event::Start) => self.resolve(),
            (State::Resolving, Event::Resolved(result)) => self.resolved(result),
            (State::Dialing(server), Event::Dialed(result)) => self.dialed(server, result),
            (State::LoggingIn(server), Event::LoggedIn(result)) => self.logged_in(server, result),
            (State::CheckingFeatures(server), Event::Features(result)) => {
                self.checked(server, result)
            }
            (State::BackingOff(then), Event::Timer) => self.resume(then),
            (
                State::Connected {
                    server,
                    since,
                    link,
                },
                event,
            ) => self.connected(server, since, link, event),
            // Whatever comes too late for the state is about something that has been given up.
            _ => {}
        }
        std::mem::take(&mut self.out)
    }

    fn resolve(&mut self) {
        self.go(State::Resolving, Action::Resolve);
    }

    fn resolved(&mut self, result: Result<Vec<SocketAddr>, Arc<SessionError>>) {
        match result {
            Ok(servers) => self.servers.replace(&servers, Origin::Configured),
            // Servers that were known before may still be there.
            Err(error) => self.out.push(Action::PublishConnecting(error)),
        }
        self.dial_next();
    }

    /// Dials the next server of this round, or backs off when there is none left.
    fn dial_next(&mut self) {
        let random = (self.random)();
        match self
            .servers
            .pick(random, |server| !self.round.contains_key(server))
        {
            Some(server) => {
                self.servers.attempt(server);
                self.go(State::Dialing(server), Action::Dial(server));
            }
            None => self.end_round(),
        }
    }

    fn end_round(&mut self) {
        self.round.clear();
        let origin = self.servers.origin();
        self.out.push(Action::RoundFailed { origin });
        let random = (self.random)();
        let delay = self.backoff.next(random);
        self.wait(delay, Then::Resolve);
    }

    fn dialed(&mut self, server: SocketAddr, result: Result<(), Failure>) {
        match result {
            Err(failure) => self.server_failed(server, failure),
            Ok(()) if self.needs_login => self.go(State::LoggingIn(server), Action::Login),
            Ok(()) => {
                self.checks = if self.proven {
                    PROVEN_CHECKS
                } else {
                    FRESH_CHECKS
                };
                self.go(State::CheckingFeatures(server), Action::CheckFeatures);
            }
        }
    }

    fn logged_in(&mut self, server: SocketAddr, result: Result<(), Failure>) {
        let failure = match result {
            Ok(()) => {
                self.holds_token = true;
                self.needs_login = false;
                self.proven = false;
                self.checks = FRESH_CHECKS;
                self.last_login = Some(self.now);
                return self.wait(SETTLE, Then::CheckFeatures(server));
            }
            Err(failure) => failure,
        };
        match failure.kind {
            FailureKind::Invalid if !self.established => self.fail(failure.error),
            FailureKind::Invalid | FailureKind::Rejected => self.rejected(server, failure),
            _ => self.server_failed(server, failure),
        }
    }

    fn checked(&mut self, server: SocketAddr, result: Result<Features, Failure>) {
        match result {
            Ok(features) if features.bootstrap => self.connect(server, features),
            Ok(_) => {
                let error = Arc::new(SessionError::MissingFeature { server });
                self.server_failed(
                    server,
                    Failure {
                        kind: FailureKind::Server,
                        error,
                    },
                );
            }
            Err(failure) if failure.kind == FailureKind::Rejected => {
                self.token_rejected(server, failure)
            }
            Err(failure) => self.server_failed(server, failure),
        }
    }

    fn connect(&mut self, server: SocketAddr, features: Features) {
        self.established = true;
        self.proven = true;
        self.rejections = 0;
        self.generation += 1;
        self.out.push(Action::PublishConnected {
            generation: self.generation,
        });
        let link = if self.settings.watch && features.watch {
            self.out.push(Action::OpenWatch);
            Link::Watching
        } else {
            self.out.push(Action::StartTimer(POLL));
            Link::Waiting
        };
        self.state = State::Connected {
            server,
            since: self.now,
            link,
        };
    }

    /// The feature check says that the token is not good.
    fn token_rejected(&mut self, server: SocketAddr, failure: Failure) {
        if self.settings.credential != Credential::Login {
            return if self.established {
                self.server_failed(server, failure)
            } else {
                self.fail(failure.error)
            };
        }
        if self.checks == 0 {
            return self.rejected(server, failure);
        }
        let total = if self.proven {
            PROVEN_CHECKS
        } else {
            FRESH_CHECKS
        };
        let doublings = (total - self.checks).min(2);
        self.checks -= 1;
        self.out.push(Action::PublishConnecting(failure.error));
        self.wait(SETTLE * 2_u32.pow(doublings), Then::CheckFeatures(server));
    }

    /// The credentials, or the token they gave, are rejected.
    fn rejected(&mut self, server: SocketAddr, failure: Failure) {
        self.rejections += 1;
        if self.rejections < REJECTIONS {
            return self.log_in_again(server, failure.error);
        }
        if !self.established {
            return self.fail(failure.error);
        }
        // Another server may see it differently.
        self.rejections = 0;
        self.needs_login = true;
        self.server_failed(server, failure);
    }

    fn log_in_again(&mut self, server: SocketAddr, error: Arc<SessionError>) {
        self.needs_login = true;
        let random = (self.random)();
        let old = self
            .last_login
            .is_some_and(|login| self.now.saturating_sub(login) >= CALM);
        let delay = if old {
            self.login_backoff.reset();
            FAILOVER.mul_f64(random.clamp(0.0, 1.0))
        } else {
            self.login_backoff.next(random)
        };
        self.out.push(Action::PublishConnecting(error));
        self.wait(delay, Then::Login(server));
    }

    fn connected(&mut self, server: SocketAddr, since: Duration, link: Link, event: Event) {
        match (link, event) {
            (Link::Watching, Event::Servers(servers)) if !servers.is_empty() => {
                self.servers.replace(&servers, Origin::Watch);
            }
            (Link::Watching, Event::WatchEnded(failure))
                if failure.kind == FailureKind::Unsupported =>
            {
                self.out.push(Action::CloseWatch);
                self.poll_later(server, since);
            }
            (Link::Watching, Event::WatchEnded(failure)) => {
                self.leave(server, since, link, failure)
            }
            (Link::Waiting, Event::Timer) => {
                let link = Link::Polling;
                self.go(
                    State::Connected {
                        server,
                        since,
                        link,
                    },
                    Action::CheckFeatures,
                );
            }
            (Link::Polling, Event::Features(Ok(_))) => self.poll_later(server, since),
            (Link::Polling, Event::Features(Err(failure))) => {
                // The check is over: there is nothing to cancel.
                self.leave(server, since, Link::Waiting, failure);
            }
            (
                _,
                Event::CallFailed {
                    generation,
                    failure,
                },
            ) if generation == self.generation => {
                let fresh = self
                    .last_login
                    .is_some_and(|login| self.now.saturating_sub(login) < FRESH);
                if failure.kind != FailureKind::Rejected || !fresh {
                    self.leave(server, since, link, failure);
                }
            }
            _ => {}
        }
    }

    fn poll_later(&mut self, server: SocketAddr, since: Duration) {
        self.go(
            State::Connected {
                server,
                since,
                link: Link::Waiting,
            },
            Action::StartTimer(POLL),
        );
    }

    /// The connection is no longer good.
    fn leave(&mut self, server: SocketAddr, since: Duration, link: Link, failure: Failure) {
        self.stop(link);
        if self.now.saturating_sub(since) >= CALM {
            self.backoff.reset();
            self.round.clear();
        }
        if failure.kind == FailureKind::Rejected && self.settings.credential == Credential::Login {
            self.log_in_again(server, failure.error);
        } else {
            self.server_failed(server, failure);
        }
    }

    fn stop(&mut self, link: Link) {
        match link {
            Link::Watching => self.out.push(Action::CloseWatch),
            Link::Polling => self.out.push(Action::CancelOperation),
            Link::Waiting => {}
        }
    }

    /// On to the next server of the round; after the last one, back off.
    fn server_failed(&mut self, server: SocketAddr, failure: Failure) {
        self.round
            .insert(server, failure.kind == FailureKind::Untrusted);
        let left = self
            .servers
            .pick(0.0, |server| !self.round.contains_key(server))
            .is_some();
        if !left && !self.established && self.round.values().all(|untrusted| *untrusted) {
            return self.fail(failure.error);
        }
        self.out.push(Action::PublishConnecting(failure.error));
        if left {
            let delay = FAILOVER.mul_f64((self.random)().clamp(0.0, 1.0));
            self.wait(delay, Then::Dial);
        } else {
            self.end_round();
        }
    }

    fn wait(&mut self, delay: Duration, then: Then) {
        self.go(State::BackingOff(then), Action::StartTimer(delay));
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

    fn fail(&mut self, error: Arc<SessionError>) {
        self.go(State::Failed, Action::PublishFailed(error));
    }

    fn shut_down(&mut self) {
        self.out.push(Action::PublishClosed);
        match self.state {
            State::LoggingIn(_) => {
                // The server may have made a token already: only its answer can tell which.
                let state = State::LoggingOut {
                    awaiting_login: true,
                };
                return self.go(state, Action::StartTimer(LOGOUT));
            }
            State::Connected { link, .. } => self.stop(link),
            State::Resolving | State::Dialing(_) | State::CheckingFeatures(_) => {
                self.out.push(Action::CancelOperation);
            }
            _ => {}
        }
        if self.holds_token {
            self.out.push(Action::StartTimer(LOGOUT));
        }
        self.log_out();
    }

    fn log_out(&mut self) {
        if !self.holds_token {
            return self.go(State::Closed, Action::Finish);
        }
        let servers = self.servers.iter().take(LOGOUT_SERVERS).collect();
        self.go(
            State::LoggingOut {
                awaiting_login: false,
            },
            Action::Logout(servers),
        );
    }

    fn logging_out(&mut self, awaiting_login: bool, event: Event) {
        match event {
            Event::LoggedIn(result) if awaiting_login => {
                self.holds_token |= result.is_ok();
                self.log_out();
            }
            Event::LoggedOut if !awaiting_login => self.go(State::Closed, Action::Finish),
            Event::Timer => {
                self.out.push(Action::CancelOperation);
                self.go(State::Closed, Action::Finish);
            }
            _ => {}
        }
    }

    fn go(&mut self, state: State, action: Action) {
        self.state = state;
        self.out.push(action);
    }
}
