//! The session's state machine. Pure: events in, actions out.
//!
//! It does not wait, connect, log or hold a token. The driver performs the actions, one operation
//! (resolve, dial, login, feature check, logout), one watch and one timer at a time, and feeds back
//! their results as events. machine/README.md describes the whole algorithm.

mod event;
#[cfg(test)]
mod scenarios;
mod servers;
#[cfg(test)]
mod tests;
mod token;

use std::net::SocketAddr;
use std::time::Duration;

use legate_runtime::{Backoff, BackoffPolicy};

pub(crate) use self::event::{Action, Event, Features, Settings, State};
use self::event::{Activity, Then};
use self::servers::{FAILOVER, Servers};
use self::token::{SETTLE, TokenState};
use crate::error::{ErrorKind, SessionError};

/// A connection that lasts this long ends a series of failures. Servers that shed load close
/// connections sooner.
const WORKING: Duration = Duration::from_secs(5);
/// How long servers that are all unreachable are probably restarting.
const RESTART: Duration = Duration::from_secs(60);
/// Longest delay between rounds during [`RESTART`].
const RESTART_RETRY: Duration = Duration::from_secs(1);
/// Time limit of the logout.
pub(crate) const LOGOUT: Duration = Duration::from_secs(5);
/// Number of servers to try for the logout if the session has no connection.
const LOGOUT_SERVERS: usize = 3;
/// Backoff between attempts to replace a working connection.
const REPLACEMENTS: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_secs(15),
    multiplier: 2.0,
    jitter: 0.5,
    cap: Duration::from_secs(600),
};

/// Returns random numbers from 0 to 1.
pub(crate) type Random = Box<dyn FnMut() -> f64 + Send>;

pub(crate) struct Machine {
    settings: Settings,
    random: Random,
    pub(crate) state: State,
    pub(crate) servers: Servers,
    token: TokenState,
    /// Backoff between rounds.
    backoff: Backoff,
    /// When the first of the last rounds ended in which all servers were unreachable.
    unreachable_since: Option<Duration>,
    /// Number of dials for the connection in use, or since it was lost.
    pub(crate) attempts: u64,
    /// Generation of the connection in use, or of the last one; 0 before the first.
    pub(crate) generation: u64,
    connected_at: Duration,
    /// Whether the connected server sends its server list.
    watches: bool,
    /// When to check the connected server because of its silence.
    silent_at: Duration,
    /// When to replace the connection because its files have changed.
    replacement_at: Option<Duration>,
    replacement_backoff: Backoff,
    /// When the current wait ends.
    pub(crate) resume_at: Duration,
    now: Duration,
    out: Vec<Action>,
}

impl Machine {
    pub(crate) fn new(settings: Settings, random: Random) -> Self {
        Self {
            random,
            state: State::Idle,
            servers: Servers::default(),
            token: TokenState::new(settings.login),
            backoff: Backoff::new(BackoffPolicy::UNCONFIGURED),
            unreachable_since: None,
            attempts: 0,
            generation: 0,
            connected_at: Duration::ZERO,
            watches: false,
            silent_at: Duration::ZERO,
            replacement_at: None,
            replacement_backoff: Backoff::new(REPLACEMENTS),
            resume_at: Duration::ZERO,
            now: Duration::ZERO,
            out: Vec::new(),
            settings,
        }
    }

    /// Handles an event and returns actions. `now` is the time since the start of the session.
    pub(crate) fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        self.now = now;
        match (self.state, event) {
            (State::Closed, _) => {}
            (State::LoggingOut, event) => self.logging_out(event),
            (_, Event::Shutdown) => self.shut_down(),
            (_, Event::Configured) => self.configured(),
            (state, Event::FilesChanged { tls, bearer }) => self.files_changed(state, tls, bearer),
            (State::Idle, Event::Start) => self.transition(State::Resolving, Action::Resolve),
            (State::Resolving, Event::Resolved(result)) => self.resolved(result),
            (State::Dialing(server), Event::Dialed(result)) => self.dialed(server, result),
            (State::LoggingIn(server), Event::LoggedIn(result)) => self.logged_in(server, result),
            (State::CheckingFeatures(server), Event::Features(result)) => {
                self.checked(server, result)
            }
            (State::BackingOff(then), Event::Timer) => self.resume(then),
            (State::Connected { server, activity }, event) => {
                self.connected(server, activity, event)
            }
            // Late results of cancelled operations are ignored.
            _ => {}
        }
        std::mem::take(&mut self.out)
    }

    /// From now on the proxy can serve without servers.
    fn configured(&mut self) {
        self.backoff = Backoff::new(BackoffPolicy::SERVER);
        self.token.proxy_configured();
    }

    /// Credentials and certificates that were rejected with the previous files may be accepted now.
    fn files_changed(&mut self, state: State, tls: bool, bearer: bool) {
        if tls {
            let random = self.draw();
            self.replacement_at = Some(self.now + self.settings.spread.mul_f64(random));
        }
        match state {
            State::Connected {
                server,
                activity: Activity::Waiting,
            } if tls => self.arm(server),
            State::BackingOff(then @ (Then::Resolve | Then::Login(_)))
                if tls || (bearer && self.token.needed) =>
            {
                self.backoff.reset();
                self.token.forget_rejections();
                self.resume(then);
            }
            _ => {}
        }
    }

    fn resume(&mut self, then: Then) {
        match then {
            Then::Resolve => self.transition(State::Resolving, Action::Resolve),
            Then::Dial => self.dial_next(),
            Then::Login(server) => self.transition(State::LoggingIn(server), Action::Login),
            Then::CheckFeatures(server) => {
                self.transition(State::CheckingFeatures(server), Action::CheckFeatures)
            }
        }
    }

    fn wait(&mut self, delay: Duration, then: Then) {
        self.resume_at = self.now + delay;
        self.transition(State::BackingOff(then), Action::StartTimer(delay));
    }

    /// A short random delay, so that not all clients move at the same time.
    fn wait_briefly(&mut self, then: Then) {
        let delay = FAILOVER.mul_f64(self.draw());
        self.wait(delay, then);
    }

    fn fail(&mut self, error: SessionError) {
        self.transition(State::Failed, Action::PublishFailed(error));
    }

    fn transition(&mut self, state: State, action: Action) {
        self.state = state;
        self.out.push(action);
    }

    fn draw(&mut self) -> f64 {
        (self.random)().clamp(0.0, 1.0)
    }
}

/// Finding a server: rounds, and the delays between them.
impl Machine {
    fn resolved(&mut self, result: Result<Vec<SocketAddr>, SessionError>) {
        match result {
            Ok(servers) => self.servers.configure(&servers, self.now),
            // Servers that were known before may still be there.
            Err(error) => self.out.push(Action::PublishConnecting(error)),
        }
        self.dial_next();
    }

    /// Dials the next server of this round, or backs off if there is none left.
    fn dial_next(&mut self) {
        let random = self.draw();
        match self.servers.next(random) {
            Some(server) => {
                self.servers.attempt(server);
                self.attempts += 1;
                // Dialling reads the files.
                self.replacement_at = None;
                self.transition(State::Dialing(server), Action::Dial(server));
            }
            None => self.end_round(),
        }
    }

    fn end_round(&mut self) {
        let delay = self.delay_after_round();
        let list_misleads = self.servers.end_round();
        self.out.push(Action::RoundFailed { list_misleads });
        self.wait(delay, Then::Resolve);
    }

    /// Servers that restart refuse connections for a few seconds. An attempt costs them nothing, so
    /// the session tries often and is back soon; other failures, and longer ones, back off.
    fn delay_after_round(&mut self) -> Duration {
        let random = self.draw();
        if !self.servers.are_all_unreachable() {
            self.unreachable_since = None;
            return self.backoff.next(random);
        }
        let since = *self.unreachable_since.get_or_insert(self.now);
        match self.now.saturating_sub(since) < RESTART {
            true => RESTART_RETRY.mul_f64(random),
            false => self.backoff.next(random),
        }
    }

    fn dialed(&mut self, server: SocketAddr, result: Result<(), SessionError>) {
        self.servers.reached(server, result.is_ok());
        match result {
            Err(error) => self.server_failed(server, error),
            Ok(()) if self.token.needed => self.transition(State::LoggingIn(server), Action::Login),
            Ok(()) => self.check(server),
        }
    }

    fn server_failed(&mut self, server: SocketAddr, error: SessionError) {
        self.servers.failed(server, error.kind);
        let hopeless =
            self.servers.next(0.0).is_none() && self.servers.have_all_failed_permanently();
        if hopeless && self.generation == 0 {
            self.fail(error);
        } else {
            self.try_next_server(error, Then::Dial);
        }
    }

    /// Continues with the next server of the round; after the last one, backs off.
    fn try_next_server(&mut self, error: SessionError, then: Then) {
        self.out.push(Action::PublishConnecting(error));
        match self.servers.next(0.0) {
            Some(_) => self.wait_briefly(then),
            None => self.end_round(),
        }
    }
}

/// Obtaining a token, and verifying that a server accepts it.
impl Machine {
    /// Starts the first feature check of a connection.
    fn check(&mut self, server: SocketAddr) {
        self.token.begin_checks();
        self.transition(State::CheckingFeatures(server), Action::CheckFeatures);
    }

    fn logged_in(&mut self, server: SocketAddr, result: Result<(), SessionError>) {
        let error = match result {
            Ok(()) => {
                self.token.logged_in(self.now);
                return self.wait(SETTLE, Then::CheckFeatures(server));
            }
            Err(error) => error,
        };
        match error.kind {
            ErrorKind::Invalid if self.generation == 0 => self.fail(error),
            ErrorKind::Invalid | ErrorKind::Rejected => self.rejected(server, error),
            _ => self.server_failed(server, error),
        }
    }

    fn checked(&mut self, server: SocketAddr, result: Result<Features, SessionError>) {
        let error = match result {
            Ok(features) => {
                self.connected_at = self.now;
                return self.connect(server, features);
            }
            Err(error) => error,
        };
        if error.kind != ErrorKind::Rejected || !self.settings.login {
            return self.server_failed(server, error);
        }
        match self.token.next_check() {
            Some(delay) => {
                self.out.push(Action::PublishConnecting(error));
                self.wait(delay, Then::CheckFeatures(server));
            }
            None => self.rejected(server, error),
        }
    }

    /// The credentials, or the token obtained with them, were rejected.
    fn rejected(&mut self, server: SocketAddr, error: SessionError) {
        if !self.token.rejected() {
            self.log_in_again(server, error);
        } else if self.generation == 0 {
            self.fail(error);
        } else {
            // Another server may accept them.
            self.server_failed(server, error);
        }
    }

    fn log_in_again(&mut self, server: SocketAddr, error: SessionError) {
        self.out.push(Action::PublishConnecting(error));
        let random = self.draw();
        let delay = self.token.next_login(self.now, random);
        self.wait(delay, Then::Login(server));
    }
}

/// The connection in use: how it is monitored, and when it is left.
impl Machine {
    fn connect(&mut self, server: SocketAddr, features: Features) {
        self.servers.reached(server, true);
        self.unreachable_since = None;
        self.token.accepted();
        self.watches = self.settings.watch && features.watch;
        self.generation += 1;
        self.out.push(Action::PublishConnected {
            generation: self.generation,
        });
        self.monitor(server);
    }

    /// Monitors the connection from now on.
    fn monitor(&mut self, server: SocketAddr) {
        if self.watches {
            self.out.push(Action::OpenWatch);
        }
        self.reset_silence(server);
    }

    /// The server has sent something.
    fn reset_silence(&mut self, server: SocketAddr) {
        let patience = self.settings.silence.mul_f64(0.75 + 0.5 * self.draw());
        self.silent_at = self.now + patience;
        self.arm(server);
    }

    /// Arms the timer for the next feature check or replacement, whichever is due first.
    fn arm(&mut self, server: SocketAddr) {
        let due = self
            .replacement_at
            .map_or(self.silent_at, |due| due.min(self.silent_at));
        let delay = due.saturating_sub(self.now);
        self.set_activity(server, Activity::Waiting, Action::StartTimer(delay));
    }

    fn set_activity(&mut self, server: SocketAddr, activity: Activity, action: Action) {
        self.transition(State::Connected { server, activity }, action);
    }

    fn connected(&mut self, server: SocketAddr, activity: Activity, event: Event) {
        let waiting = activity == Activity::Waiting;
        match (activity, event) {
            (_, Event::CallFailed { generation, error }) => {
                // Servers may need a moment to find a new token.
                let excused = error.kind == ErrorKind::Rejected && self.token.is_fresh(self.now);
                if generation == self.generation && !excused {
                    self.leave(server, error);
                }
            }
            (Activity::DialingReplacement | Activity::CheckingReplacement, event) => {
                self.replacing(server, event);
            }
            (_, Event::Servers(servers)) => {
                if !servers.is_empty() {
                    self.servers.list(&servers, server);
                }
                if waiting {
                    self.reset_silence(server);
                }
            }
            (_, Event::WatchEnded(error)) if error.kind == ErrorKind::Unsupported => {
                self.watches = false;
                if waiting {
                    self.reset_silence(server);
                }
            }
            (Activity::Waiting, Event::Timer) => self.timer_elapsed(server),
            (Activity::Checking, Event::Features(Ok(_))) => {
                self.token.accepted();
                self.reset_silence(server);
            }
            (Activity::Checking, Event::Features(Err(error))) | (_, Event::WatchEnded(error)) => {
                self.leave(server, error);
            }
            _ => {}
        }
    }

    fn timer_elapsed(&mut self, server: SocketAddr) {
        if self.replacement_at.is_some_and(|due| due <= self.now) {
            self.replacement_at = None;
            let dial = Action::DialReplacement(server);
            self.set_activity(server, Activity::DialingReplacement, dial);
        } else if self.silent_at > self.now {
            self.arm(server);
        } else {
            self.set_activity(server, Activity::Checking, Action::CheckFeatures);
        }
    }

    /// Leaves the connection, which is no longer usable.
    fn leave(&mut self, server: SocketAddr, error: SessionError) {
        if let State::Connected {
            activity: Activity::DialingReplacement | Activity::CheckingReplacement,
            ..
        } = self.state
        {
            // Still due, unless the session dials again, which reads the files.
            self.replacement_at = Some(self.now);
        }
        self.attempts = 0;
        if self.now.saturating_sub(self.connected_at) >= WORKING {
            self.backoff.reset();
            self.servers.clear_round();
        }
        if error.kind == ErrorKind::Rejected && self.settings.login {
            if !self.token.should_recheck(self.now) {
                return self.log_in_again(server, error);
            }
            self.out.push(Action::PublishConnecting(error));
            return self.check(server);
        }
        self.servers.lost(server, error.kind);
        let then = match self.servers.are_stale(self.now) {
            true => Then::Resolve,
            false => Then::Dial,
        };
        self.try_next_server(error, then);
    }
}

/// Replacing the connection in use. Users are not affected until the replacement has been checked.
impl Machine {
    fn replacing(&mut self, server: SocketAddr, event: Event) {
        match event {
            Event::Dialed(Ok(())) => {
                self.set_activity(server, Activity::CheckingReplacement, Action::CheckFeatures);
            }
            Event::Features(Ok(features)) => {
                self.replacement_backoff.reset();
                self.connect(server, features);
            }
            // The connection in use has the same token.
            Event::Features(Err(error)) if error.kind == ErrorKind::Rejected => {
                self.leave(server, error);
            }
            Event::Dialed(Err(error)) | Event::Features(Err(error)) => {
                let random = self.draw();
                let delay = self.replacement_backoff.next(random);
                self.replacement_at = Some(self.now + delay);
                self.out.push(Action::ReplacementFailed(error));
                self.monitor(server);
            }
            _ => {}
        }
    }
}

/// Shutdown: a pending login is completed, and tokens are logged out, within one deadline.
impl Machine {
    fn shut_down(&mut self) {
        self.out.push(Action::PublishClosed);
        self.out.push(Action::StartTimer(LOGOUT));
        match self.state {
            // The server may have created a token already; only its response contains it.
            State::LoggingIn(_) => self.state = State::LoggingOut,
            _ => self.log_out(),
        }
    }

    fn log_out(&mut self) {
        if !self.token.held {
            self.state = State::Closed;
            return;
        }
        let servers = self.servers.iter().take(LOGOUT_SERVERS).collect();
        self.transition(State::LoggingOut, Action::Logout(servers));
    }

    fn logging_out(&mut self, event: Event) {
        match event {
            Event::LoggedIn(result) => {
                self.token.held |= result.is_ok();
                self.log_out();
            }
            Event::LoggedOut | Event::Timer => self.state = State::Closed,
            _ => {}
        }
    }
}
