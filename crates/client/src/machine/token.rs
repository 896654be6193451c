//! State of the ACL token: whether a login is due, and when a rejection counts.
//!
//! The token itself is held by the driver.

use std::time::Duration;

use legate_runtime::{Backoff, BackoffPolicy};

use super::servers::FAILOVER;

/// Delay between a login and the first use of its token: servers need a moment to replicate it.
pub(super) const SETTLE: Duration = Duration::from_millis(100);
/// Number of retries at the same server for a token that is not found. Delays double from
/// [`SETTLE`] up to 400 ms: about two seconds in total.
pub(super) const FRESH_CHECKS: u32 = 6;
/// The same for a token that has been accepted before.
const PROVEN_CHECKS: u32 = 2;
/// Time after a login during which calls that fail because the token is not found are ignored.
const FRESH: Duration = Duration::from_secs(2);
/// Number of consecutive rejections that count as final.
const REJECTIONS: u32 = 3;
/// A rejected token from a login older than this is replaced at once, a younger one with backoff,
/// because servers write every token to disk. If a rejection turned out to be wrong, another one
/// within this time is not rechecked.
pub(super) const CALM: Duration = Duration::from_secs(180);

/// State of the token that is relevant for decisions.
pub(super) struct TokenState {
    /// Backoff between logins.
    backoff: Backoff,
    last_login: Option<Duration>,
    /// Whether the driver has a token that must be logged out.
    pub(super) held: bool,
    /// Whether a login is due.
    pub(super) needed: bool,
    /// Whether the token has been accepted.
    proven: bool,
    /// When a rejection of the token was last rechecked.
    rechecked_at: Option<Duration>,
    /// Consecutive feature checks that have rejected it.
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
            rechecked_at: None,
            failed_checks: 0,
            rejections: 0,
        }
    }

    /// The proxy has its configuration, so logins may be delayed longer from now on.
    pub(super) fn proxy_configured(&mut self) {
        self.backoff = Backoff::new(BackoffPolicy::SERVER);
    }

    /// The credentials have changed, so earlier rejections do not count any more.
    pub(super) fn forget_rejections(&mut self) {
        self.backoff.reset();
        self.rejections = 0;
    }

    /// A login has returned a new token, which no server has accepted yet.
    pub(super) fn logged_in(&mut self, now: Duration) {
        self.held = true;
        self.needed = false;
        self.proven = false;
        self.rechecked_at = None;
        self.last_login = Some(now);
        self.begin_checks();
    }

    pub(super) fn accepted(&mut self) {
        self.proven = true;
        self.rejections = 0;
    }

    /// A series of feature checks is about to start.
    pub(super) fn begin_checks(&mut self) {
        self.failed_checks = 0;
    }

    /// The server has not found the token. Returns the delay before the next check, or `None` if
    /// the rejection counts.
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

    /// The credentials, or the token obtained with them, were rejected. Returns whether that is
    /// final.
    pub(super) fn rejected(&mut self) -> bool {
        self.needed = true;
        self.rejections = (self.rejections + 1) % REJECTIONS;
        self.rejections == 0
    }

    /// Delay before the next login.
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

    /// A call was rejected because of the token. Returns whether to check the token first, because
    /// a server with stale state rejects valid tokens, too. Not if it was rechecked recently.
    pub(super) fn should_recheck(&mut self, now: Duration) -> bool {
        let last = self.rechecked_at;
        let due = last.is_none_or(|last| now.saturating_sub(last) >= CALM);
        if due {
            self.rechecked_at = Some(now);
        }
        due
    }

    /// Whether to ignore calls that fail because the token is not found.
    pub(super) fn is_fresh(&self, now: Duration) -> bool {
        let login = self.last_login;
        login.is_some_and(|login| now.saturating_sub(login) < FRESH)
    }
}
