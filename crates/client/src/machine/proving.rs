//! Getting a token, and finding out whether a server accepts it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use legate_runtime::{Backoff, BackoffPolicy};

use super::event::Then;
use super::{
    Action, CALM, Credential, Failure, FailureKind, Features, Held, Machine, Settings, State,
};
use crate::error::SessionError;

/// Between a login and the first use of its token: servers need a moment to replicate it.
pub(super) const SETTLE: Duration = Duration::from_millis(100);
/// How often a token that is not found is tried again at the same server, with delays that double
/// from [`SETTLE`] up to 400 ms: about two seconds.
pub(super) const FRESH_CHECKS: u32 = 6;
/// The same for a token that has been accepted before.
pub(super) const PROVEN_CHECKS: u32 = 2;
/// How long after a login calls may be told that the token is not found without consequences.
const FRESH: Duration = Duration::from_secs(2);
/// So many rejections in a row are believed.
const REJECTIONS: u32 = 3;

/// The token, as far as decisions go.
pub(super) struct TokenState {
    pub(super) backoff: Backoff,
    pub(super) last_login: Option<Duration>,
    /// The driver has a token that must be logged out.
    pub(super) held: bool,
    /// A login is due.
    pub(super) needed: bool,
    /// The token has been accepted.
    pub(super) proven: bool,
    /// When it was rejected and then accepted all the same.
    doubted: Option<Duration>,
    /// Further feature checks before a rejected token is believed to be bad.
    pub(super) checks: u32,
    pub(super) rejections: u32,
}

impl TokenState {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            backoff: Backoff::new(BackoffPolicy::UNCONFIGURED),
            last_login: None,
            held: false,
            needed: settings.credential == Credential::Login,
            proven: false,
            doubted: None,
            checks: 0,
            rejections: 0,
        }
    }

    /// A token that no server has seen yet is the one in use.
    pub(super) fn fresh(&mut self, login: Duration) {
        self.held = true;
        self.needed = false;
        self.proven = false;
        self.doubted = None;
        self.last_login = Some(login);
    }

    pub(super) fn accepted(&mut self) {
        self.proven = true;
        self.rejections = 0;
    }

    /// How long to wait before the next feature check with a token that is not found; `None` when
    /// it has had its chances.
    pub(super) fn patience(&mut self, total: u32) -> Option<Duration> {
        let doublings = total.saturating_sub(self.checks).min(2);
        self.checks = self.checks.checked_sub(1)?;
        Some(SETTLE * 2_u32.pow(doublings))
    }
}

impl Machine {
    /// The first feature check of a connection.
    pub(super) fn check(&mut self, server: SocketAddr) {
        self.token.checks = self.patience();
        self.go(State::CheckingFeatures(server), Action::CheckFeatures);
    }

    fn patience(&self) -> u32 {
        if self.token.proven {
            PROVEN_CHECKS
        } else {
            FRESH_CHECKS
        }
    }

    /// Whether calls may be told that the token is not found without consequences.
    pub(super) fn is_fresh(&self) -> bool {
        self.since(self.token.last_login)
            .is_some_and(|age| age < FRESH)
    }

    pub(super) fn logged_in(&mut self, server: SocketAddr, result: Result<(), Failure>) {
        let failure = match result {
            Ok(()) => {
                self.token.fresh(self.now);
                self.token.checks = FRESH_CHECKS;
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

    pub(super) fn checked(&mut self, server: SocketAddr, result: Result<Features, Failure>) {
        let failure = match result {
            Ok(features) if features.bootstrap => {
                let since = self.now;
                return self.connect(Held { server, since }, features);
            }
            Ok(_) => Failure {
                kind: FailureKind::Server,
                error: Arc::new(SessionError::MissingFeature { server }),
            },
            Err(failure) => failure,
        };
        if failure.kind == FailureKind::Rejected && self.settings.credential == Credential::Login {
            self.token_rejected(server, failure);
        } else {
            self.server_failed(server, failure);
        }
    }

    /// The feature check says that the token of a login is not good.
    fn token_rejected(&mut self, server: SocketAddr, failure: Failure) {
        let total = self.patience();
        if let Some(delay) = self.token.patience(total) {
            self.out.push(Action::PublishConnecting(failure.error));
            return self.wait(delay, Then::CheckFeatures(server));
        }
        self.token.proven = false;
        self.rejected(server, failure);
    }

    /// The credentials, or the token they gave, are rejected.
    fn rejected(&mut self, server: SocketAddr, failure: Failure) {
        self.token.rejections += 1;
        if self.token.rejections < REJECTIONS {
            return self.log_in_again(server, failure.error);
        }
        if !self.established {
            return self.fail(failure.error);
        }
        // Another server may see it differently.
        self.token.rejections = 0;
        self.token.needed = true;
        self.server_failed(server, failure);
    }

    fn log_in_again(&mut self, server: SocketAddr, error: Arc<SessionError>) {
        self.token.needed = true;
        self.out.push(Action::PublishConnecting(error));
        if self
            .since(self.token.last_login)
            .is_some_and(|age| age >= CALM)
        {
            self.token.backoff.reset();
            return self.wait_briefly(Then::Login(server));
        }
        let random = self.draw();
        let delay = self.token.backoff.next(random);
        self.wait(delay, Then::Login(server));
    }

    /// Somebody was told that the token of a login is not good. A server that is a little behind
    /// says so too: it is asked once more before the token is given up, unless it was asked a
    /// moment ago and found it good.
    pub(super) fn doubt(&mut self, server: SocketAddr, error: Arc<SessionError>) {
        if self.since(self.token.doubted).is_some_and(|age| age < CALM) {
            return self.log_in_again(server, error);
        }
        self.token.doubted = Some(self.now);
        self.out.push(Action::PublishConnecting(error));
        self.check(server);
    }
}
