//! What is known of the ACL token: whether a login is due, and when a rejection is believed.
//!
//! It never holds the token itself, which the driver keeps.

use std::time::Duration;

use legate_runtime::{Backoff, BackoffPolicy};

use super::servers::FAILOVER;

/// Between a login and the first use of its token: servers need a moment to replicate it.
pub(super) const SETTLE: Duration = Duration::from_millis(100);
/// How often a token that is not found is tried again at the same server, with delays that double
/// from [`SETTLE`] up to 400 ms: about two seconds.
pub(super) const FRESH_CHECKS: u32 = 6;
/// The same for a token that has been accepted before.
const PROVEN_CHECKS: u32 = 2;
/// For so long after a login, calls that fail because the token is not found are ignored.
const FRESH: Duration = Duration::from_secs(2);
/// So many rejections in a row are believed.
const REJECTIONS: u32 = 3;
/// A token of a login that is older than this is replaced at once when it is rejected, a younger
/// one after a delay that grows: servers write every token to disk. After a rejection that proved
/// wrong, the next one within this time is believed.
pub(super) const CALM: Duration = Duration::from_secs(180);

/// The token, as far as decisions go.
pub(super) struct TokenState {
    /// Between logins.
    backoff: Backoff,
    last_login: Option<Duration>,
    /// The driver has a token that must be logged out.
    pub(super) held: bool,
    /// A login is due.
    pub(super) needed: bool,
    /// The token has been accepted.
    proven: bool,
    /// When it was rejected and then accepted all the same.
    doubted: Option<Duration>,
    /// Feature checks in a row that have rejected it.
    failed_checks: u32,
    rejections: u32,
}

impl TokenState {
    pub(super) fn new(login: bool) -> Self {
        Self {
            backoff: Backoff::new(BackoffPolicy::UNCONFIGURED),
            last_login: None,
            held: false,
            needed: login,
            proven: false,
            doubted: None,
            failed_checks: 0,
            rejections: 0,
        }
    }

    /// The proxy has its configuration: logins may wait longer from now on.
    pub(super) fn proxy_configured(&mut self) {
        self.backoff = Backoff::new(BackoffPolicy::SERVER);
    }

    /// The credentials are new ones: what was rejected before says nothing about them.
    pub(super) fn forget_rejections(&mut self) {
        self.backoff.reset();
        self.rejections = 0;
    }

    /// A login has given another token, which no server has seen yet.
    pub(super) fn logged_in(&mut self, now: Duration) {
        self.held = true;
        self.needed = false;
        self.proven = false;
        self.doubted = None;
        self.last_login = Some(now);
        self.begin_checks();
    }

    pub(super) fn accepted(&mut self) {
        self.proven = true;
        self.rejections = 0;
    }

    /// A server is about to be asked whether it accepts the token.
    pub(super) fn begin_checks(&mut self) {
        self.failed_checks = 0;
    }

    /// The server has not found the token: how long to wait before it is asked again, or `None`
    /// when it is believed.
    pub(super) fn next_check(&mut self) -> Option<Duration> {
        let allowed = match self.proven {
            true => PROVEN_CHECKS,
            false => FRESH_CHECKS,
        };
        if self.failed_checks == allowed {
            self.proven = false;
            return None;
        }
        let delay = SETTLE * 2_u32.pow(self.failed_checks.min(2));
        self.failed_checks += 1;
        Some(delay)
    }

    /// The credentials, or the token they gave, are rejected. Whether that is believed.
    pub(super) fn rejected(&mut self) -> bool {
        self.needed = true;
        self.rejections = (self.rejections + 1) % REJECTIONS;
        self.rejections == 0
    }

    /// How long to wait before the next login.
    pub(super) fn next_login(&mut self, now: Duration, random: f64) -> Duration {
        self.needed = true;
        match self.last_login {
            Some(login) if now.saturating_sub(login) >= CALM => {
                self.backoff.reset();
                FAILOVER.mul_f64(random)
            }
            _ => self.backoff.next(random),
        }
    }

    /// A call was rejected because of the token. Whether to ask the server once more: one that is
    /// a little behind rejects good tokens, too. Not when it was asked a moment ago.
    pub(super) fn doubt(&mut self, now: Duration) -> bool {
        let asked = self.doubted;
        let doubts = asked.is_none_or(|asked| now.saturating_sub(asked) >= CALM);
        if doubts {
            self.doubted = Some(now);
        }
        doubts
    }

    /// Whether calls that fail because the token is not found are to be ignored.
    pub(super) fn is_fresh(&self, now: Duration) -> bool {
        let login = self.last_login;
        login.is_some_and(|login| now.saturating_sub(login) < FRESH)
    }
}
