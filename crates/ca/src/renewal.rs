//! When a leaf certificate is renewed. Pure: time and chance come from the caller.
//!
//! A leaf is renewed at a random point between 60 % and 90 % of its lifetime, so that the leaves of
//! many services that started together drift apart, and within half a minute after another key
//! signs. A failure never takes a certificate away; it is tried again with growing delays.

use std::time::{Duration, SystemTime};

use legate_runtime::{Backoff, BackoffPolicy};

/// Where in its lifetime a leaf is renewed at the earliest, and how much later at the latest.
const EARLIEST: f64 = 0.6;
const SPREAD: f64 = 0.3;

/// After a change of the signing key, leaves are renewed within this time, each at its own moment.
const ROOT_SPREAD: Duration = Duration::from_secs(30);

/// Delays after failures: from a second up to a minute.
const RETRY: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_secs(1),
    multiplier: 2.0,
    jitter: 0.5,
    cap: Duration::from_secs(60),
};

/// When a certificate is renewed: between 60 % (`random` = 0) and 90 % (1) of its lifetime.
#[must_use]
pub fn renewal_time(valid_after: SystemTime, valid_before: SystemTime, random: f64) -> SystemTime {
    let lifetime = valid_before.duration_since(valid_after).unwrap_or_default();
    valid_after + lifetime.mul_f64(EARLIEST + SPREAD * random.clamp(0.0, 1.0))
}

/// What happened. `random` is drawn uniformly from 0 to 1.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// A certificate was issued.
    Issued {
        valid_after: SystemTime,
        valid_before: SystemTime,
        authority_key_id: &'a str,
        random: f64,
    },
    /// No certificate could be issued.
    Failed { now: SystemTime, random: f64 },
    /// This key signs now. Also when it did before.
    Signer {
        key_id: &'a str,
        now: SystemTime,
        random: f64,
    },
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Issue a certificate, and tell what came of it.
    Issue,
    /// Nothing for this long, unless something happens.
    Wait(Duration),
}

/// The state of one service's certificate.
#[derive(Debug)]
pub(crate) enum Renewal {
    /// There is none, and nothing was tried.
    Missing,
    /// There is one, to be renewed at `at`.
    Held {
        valid_after: SystemTime,
        at: SystemTime,
        authority_key_id: String,
        /// The signing key is another one by now and `at` has been moved because of it.
        superseded: bool,
    },
    /// The last attempt failed, with or without a certificate from before.
    Failing {
        since: SystemTime,
        delay: Duration,
        backoff: Backoff,
    },
}

impl Renewal {
    pub(crate) fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Issued {
                valid_after,
                valid_before,
                authority_key_id,
                random,
            } => {
                *self = Renewal::Held {
                    valid_after,
                    at: renewal_time(valid_after, valid_before, random),
                    authority_key_id: authority_key_id.to_owned(),
                    superseded: false,
                };
            }
            Event::Failed { now, random } => {
                let mut backoff = match self {
                    Renewal::Failing { backoff, .. } => backoff.clone(),
                    Renewal::Missing | Renewal::Held { .. } => Backoff::new(RETRY),
                };
                *self = Renewal::Failing {
                    since: now,
                    delay: backoff.next(random),
                    backoff,
                };
            }
            Event::Signer {
                key_id,
                now,
                random,
            } => self.signed_by(key_id, now, random),
        }
    }

    fn signed_by(&mut self, key_id: &str, now: SystemTime, random: f64) {
        if let Renewal::Held {
            at,
            authority_key_id,
            superseded,
            ..
        } = self
            && *authority_key_id != key_id
            && !*superseded
        {
            *superseded = true;
            *at = (*at).min(now + ROOT_SPREAD.mul_f64(random.clamp(0.0, 1.0)));
        }
    }

    /// What to do at this time. A clock that was set back to before the last event makes it due:
    /// waiting for the clock to catch up could take days.
    pub(crate) fn action(&self, now: SystemTime) -> Action {
        let wait = match self {
            Renewal::Missing => None,
            Renewal::Held {
                valid_after, at, ..
            } => (now >= *valid_after).then(|| at.duration_since(now).ok()),
            Renewal::Failing { since, delay, .. } => now
                .duration_since(*since)
                .ok()
                .map(|waited| delay.checked_sub(waited)),
        };
        match wait.flatten() {
            Some(wait) if !wait.is_zero() => Action::Wait(wait),
            _ => Action::Issue,
        }
    }
}

#[cfg(test)]
mod tests;
