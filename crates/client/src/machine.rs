//! The session's decisions: an event comes in, actions come out.
//!
//! Nothing here waits, connects, logs or holds a token. The driver performs the actions, one
//! operation (resolve, dial, login, feature check, logout), one watch and one timer at a time, and
//! returns their outcome as events. machine/README.md has the whole algorithm.

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

pub(crate) use self::event::{Action, Credential, Event, Features, Settings, State, View};
use self::event::{Activity, Held, Then};
use self::servers::Servers;
use self::token::{SETTLE, TokenState};
use crate::error::{ErrorKind, SessionError};

/// A connection that lasts this long ends a series of failures. Servers that shed load end
/// connections sooner.
const WORKING: Duration = Duration::from_secs(5);
/// How long the logout may take.
pub(crate) const LOGOUT: Duration = Duration::from_secs(5);
/// How many servers are asked to log out when the session has no connection.
const LOGOUT_SERVERS: usize = 3;
/// Longest delay before the next server of a round is tried.
const FAILOVER: Duration = Duration::from_millis(250);
/// Between attempts to replace a connection that still works.
const REPLACEMENTS: BackoffPolicy = BackoffPolicy {
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
    servers: Servers,
    token: TokenState,
    /// Between rounds.
    backoff: Backoff,
    /// Dials for the connection in use, or since it was lost.
    attempts: u64,
    /// The connected server sends its list.
    watches: bool,
    /// When the connected server's silence has lasted long enough.
    silent_at: Duration,
    /// When to replace the connection, because its files have changed.
    replacement_at: Option<Duration>,
    replacement_backoff: Backoff,
    /// When the wait ends that is under way.
    resume_at: Duration,
    generation: u64,
    /// There has been a connection.
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
            servers: Servers::new(),
            token: TokenState::new(settings.credential),
            backoff: Backoff::new(BackoffPolicy::UNCONFIGURED),
            attempts: 0,
            watches: false,
            silent_at: Duration::ZERO,
            replacement_at: None,
            replacement_backoff: Backoff::new(REPLACEMENTS),
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
            (State::Idle, Event::Start) => self.go(State::Resolving, Action::Resolve),
            (State::Resolving, Event::Resolved(result)) => self.resolved(result),
            (State::Dialing(server), Event::Dialed(result)) => self.dialed(server, result),
            (State::LoggingIn(server), Event::LoggedIn(result)) => self.logged_in(server, result),
            (State::CheckingFeatures(server), Event::Features(result)) => {
                self.checked(server, result)
            }
            (State::BackingOff(then), Event::Timer) => self.resume(then),
            (State::Connected { held, activity }, event) => self.connected(held, activity, event),
            // Whatever comes too late for the state is about something that has been given up.
            _ => {}
        }
        std::mem::take(&mut self.out)
    }

    /// The proxy serves without servers from now on.
    fn configured(&mut self) {
        if !self.configured {
            self.configured = true;
            self.backoff = Backoff::new(BackoffPolicy::SERVER);
            self.token.proxy_configured();
        }
    }

    /// What was rejected with the files of before may be accepted now.
    fn files_changed(&mut self, state: State, tls: bool, bearer: bool) {
        if tls {
            let random = self.draw();
            self.replacement_at = Some(self.now + self.settings.spread.mul_f64(random));
        }
        match state {
            State::Connected {
                held,
                activity: activity @ (Activity::Watching | Activity::Waiting),
            } if tls => self.arm(held, activity),
            State::BackingOff(then @ (Then::Resolve | Then::Login(_)))
                if tls || (bearer && self.token.is_needed()) =>
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
            Then::Resolve => self.go(State::Resolving, Action::Resolve),
            Then::Dial => self.dial_next(),
            Then::Login(server) => self.go(State::LoggingIn(server), Action::Login),
            Then::CheckFeatures(server) => {
                self.go(State::CheckingFeatures(server), Action::CheckFeatures)
            }
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

    fn fail(&mut self, error: SessionError) {
        self.go(State::Failed, Action::PublishFailed(error));
    }

    fn go(&mut self, state: State, action: Action) {
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

    /// Dials the next server of this round, or backs off when there is none left.
    fn dial_next(&mut self) {
        let random = self.draw();
        match self.servers.next(random) {
            Some(server) => {
                self.servers.attempt(server);
                self.attempts += 1;
                // The files are read now.
                self.replacement_at = None;
                self.go(State::Dialing(server), Action::Dial(server));
            }
            None => self.end_round(),
        }
    }

    fn end_round(&mut self) {
        let list_misleads = self.servers.end_round();
        self.out.push(Action::RoundFailed { list_misleads });
        let random = self.draw();
        let delay = self.backoff.next(random);
        self.wait(delay, Then::Resolve);
    }

    fn dialed(&mut self, server: SocketAddr, result: Result<(), SessionError>) {
        self.servers.reached(server, result.is_ok());
        match result {
            Err(error) => self.server_failed(server, error),
            Ok(()) if self.token.is_needed() => self.go(State::LoggingIn(server), Action::Login),
            Ok(()) => self.check(server),
        }
    }

    /// On to the next server of the round; after the last one, back off.
    fn server_failed(&mut self, server: SocketAddr, error: SessionError) {
        let permanent = matches!(error.kind, ErrorKind::Untrusted | ErrorKind::Rejected);
        self.servers.failed(server, permanent);
        let left = self.servers.next(0.0).is_some();
        if !left && !self.established && self.servers.have_all_failed_permanently() {
            return self.fail(error);
        }
        self.out.push(Action::PublishConnecting(error));
        if left {
            self.wait_briefly(Then::Dial);
        } else {
            self.end_round();
        }
    }
}

/// Getting a token, and finding out whether a server accepts it.
impl Machine {
    /// The first feature check of a connection.
    fn check(&mut self, server: SocketAddr) {
        self.token.begin_checks();
        self.go(State::CheckingFeatures(server), Action::CheckFeatures);
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
            ErrorKind::Invalid if !self.established => self.fail(error),
            ErrorKind::Invalid | ErrorKind::Rejected => self.rejected(server, error),
            _ => self.server_failed(server, error),
        }
    }

    fn checked(&mut self, server: SocketAddr, result: Result<Features, SessionError>) {
        let error = match result {
            Ok(features) => {
                let since = self.now;
                return self.connect(Held { server, since }, features);
            }
            Err(error) => error,
        };
        if error.kind != ErrorKind::Rejected || self.settings.credential != Credential::Login {
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

    /// The credentials, or the token they gave, are rejected.
    fn rejected(&mut self, server: SocketAddr, error: SessionError) {
        if !self.token.rejected() {
            self.log_in_again(server, error);
        } else if self.established {
            // Another server may see it differently.
            self.server_failed(server, error);
        } else {
            self.fail(error);
        }
    }

    fn log_in_again(&mut self, server: SocketAddr, error: SessionError) {
        self.out.push(Action::PublishConnecting(error));
        let random = self.draw();
        let delay = self.token.next_login(self.now, random);
        self.wait(delay, Then::Login(server));
    }
}

/// The connection in use: how it is watched over, and when it is left.
impl Machine {
    fn connect(&mut self, held: Held, features: Features) {
        self.established = true;
        self.servers.reached(held.server, true);
        self.token.accepted();
        self.watches = self.settings.watch && features.watch;
        self.generation += 1;
        self.out.push(Action::PublishConnected {
            generation: self.generation,
        });
        self.attend(held);
    }

    /// Watches over the connection from now on.
    fn attend(&mut self, held: Held) {
        self.heard();
        if self.watches {
            self.out.push(Action::OpenWatch);
            self.arm(held, Activity::Watching);
        } else {
            self.arm(held, Activity::Waiting);
        }
    }

    /// The server has said something.
    fn heard(&mut self) {
        let patience = self.settings.silence.mul_f64(0.75 + 0.5 * self.draw());
        self.silent_at = self.now + patience;
    }

    /// Waits for whatever is due first: a feature check, or a replacement.
    fn arm(&mut self, held: Held, activity: Activity) {
        let due = self
            .replacement_at
            .map_or(self.silent_at, |due| due.min(self.silent_at));
        let delay = due.saturating_sub(self.now);
        self.pursue(held, activity, Action::StartTimer(delay));
    }

    fn pursue(&mut self, held: Held, activity: Activity, action: Action) {
        self.go(State::Connected { held, activity }, action);
    }

    fn connected(&mut self, held: Held, activity: Activity, event: Event) {
        match (activity, event) {
            (_, Event::CallFailed { generation, error }) => {
                // Servers may need a moment to find a new token.
                let excused = error.kind == ErrorKind::Rejected && self.token.is_fresh(self.now);
                if generation == self.generation && !excused {
                    self.leave(held, activity, error);
                }
            }
            (Activity::DialingReplacement | Activity::CheckingReplacement, event) => {
                self.replacing(held, event);
            }
            (Activity::Watching | Activity::Probing, Event::Servers(servers)) => {
                if !servers.is_empty() {
                    self.servers.list(&servers, held.server);
                }
                if activity == Activity::Watching {
                    self.heard();
                    self.arm(held, activity);
                }
            }
            (Activity::Watching | Activity::Probing, Event::WatchEnded(error)) => {
                if error.kind != ErrorKind::Unsupported {
                    return self.leave(held, activity, error);
                }
                self.stop(activity);
                self.watches = false;
                self.heard();
                self.arm(held, Activity::Waiting);
            }
            (Activity::Watching | Activity::Waiting, Event::Timer) => {
                self.time_has_come(held, activity);
            }
            (Activity::Probing | Activity::Polling, Event::Features(result)) => {
                // The check is over: there is nothing to cancel.
                let activity = match activity {
                    Activity::Probing => Activity::Watching,
                    _ => Activity::Waiting,
                };
                match result {
                    Ok(_) => {
                        self.token.accepted();
                        self.heard();
                        self.arm(held, activity);
                    }
                    Err(error) => self.leave(held, activity, error),
                }
            }
            _ => {}
        }
    }

    fn time_has_come(&mut self, held: Held, activity: Activity) {
        if self.replacement_at.is_some_and(|due| due <= self.now) {
            self.stop(activity);
            self.replacement_at = None;
            let dial = Action::DialReplacement(held.server);
            return self.pursue(held, Activity::DialingReplacement, dial);
        }
        if self.silent_at > self.now {
            return self.arm(held, activity);
        }
        let checking = match activity {
            Activity::Watching => Activity::Probing,
            _ => Activity::Polling,
        };
        self.pursue(held, checking, Action::CheckFeatures);
    }

    /// The connection is no longer good.
    fn leave(&mut self, held: Held, activity: Activity, error: SessionError) {
        self.stop(activity);
        if activity.is_replacing() {
            // Still due, unless the session dials again, which reads the files.
            self.replacement_at = Some(self.now);
            self.out.push(Action::Abandon);
        }
        self.attempts = 0;
        if self.now.saturating_sub(held.since) >= WORKING {
            self.backoff.reset();
            self.servers.clear_round();
        }
        let server = held.server;
        let rejected = error.kind == ErrorKind::Rejected;
        if rejected && self.settings.credential == Credential::Login {
            if !self.token.doubt(self.now) {
                return self.log_in_again(server, error);
            }
            self.out.push(Action::PublishConnecting(error));
            return self.check(server);
        }
        self.servers.lost(server, error.kind);
        self.out.push(Action::PublishConnecting(error));
        if self.servers.next(0.0).is_none() {
            self.end_round();
        } else if self.servers.are_stale(self.now) {
            self.wait_briefly(Then::Resolve);
        } else {
            self.wait_briefly(Then::Dial);
        }
    }

    /// Ends what watches over the connection.
    fn stop(&mut self, activity: Activity) {
        if !matches!(activity, Activity::Watching | Activity::Waiting) {
            self.out.push(Action::CancelOperation);
        }
        if matches!(activity, Activity::Watching | Activity::Probing) {
            self.out.push(Action::CloseWatch);
        }
    }
}

/// Replacing the connection in use. Until its replacement has been checked, users notice nothing.
impl Machine {
    fn replacing(&mut self, held: Held, event: Event) {
        match event {
            Event::Dialed(Ok(())) => {
                self.pursue(held, Activity::CheckingReplacement, Action::CheckFeatures);
            }
            Event::Features(Ok(features)) => {
                self.out.push(Action::Adopt);
                self.replacement_backoff.reset();
                self.connect(held, features);
            }
            // The connection in use has the same token.
            Event::Features(Err(error)) if error.kind == ErrorKind::Rejected => {
                self.leave(held, Activity::CheckingReplacement, error);
            }
            Event::Dialed(Err(error)) | Event::Features(Err(error)) => {
                self.not_replaced(held, error);
            }
            _ => {}
        }
    }

    fn not_replaced(&mut self, held: Held, error: SessionError) {
        let random = self.draw();
        let delay = self.replacement_backoff.next(random);
        self.replacement_at = Some(self.now + delay);
        self.out.push(Action::Abandon);
        self.out.push(Action::ReplacementFailed(error));
        self.attend(held);
    }
}

/// The end: what was begun is ended, and tokens are logged out, within one deadline.
impl Machine {
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
            State::Connected { activity, .. } => self.stop(activity),
            State::Resolving | State::Dialing(_) | State::CheckingFeatures(_) => {
                self.out.push(Action::CancelOperation);
            }
            _ => {}
        }
        if self.token.is_held() {
            self.out.push(Action::StartTimer(LOGOUT));
        }
        self.log_out();
    }

    fn log_out(&mut self) {
        if !self.token.is_held() {
            return self.go(State::Closed, Action::Finish);
        }
        let servers = self.servers.iter().take(LOGOUT_SERVERS).collect();
        let state = State::LoggingOut {
            awaiting_login: false,
        };
        self.go(state, Action::Logout(servers));
    }

    fn logging_out(&mut self, awaiting_login: bool, event: Event) {
        match event {
            Event::LoggedIn(result) if awaiting_login => {
                if result.is_ok() {
                    self.token.logged_in(self.now);
                }
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
}
