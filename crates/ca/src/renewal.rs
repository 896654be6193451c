//! Schedules the renewal of leaf certificates. Pure: time and randomness are passed in.
//!
//! A leaf is renewed at a random point between 60 % and 90 % of its lifetime, so that renewals of
//! services that started together spread out, and within 30 s after a change of the signing key. A
//! failure never invalidates the current certificate; it is retried with backoff.

use std::time::{Duration, SystemTime};

use legate_runtime::{Backoff, BackoffPolicy};

/// The earliest renewal as a fraction of the lifetime, and the width of the interval after it.
const EARLIEST: f64 = 0.6;
const SPREAD: f64 = 0.3;

/// After a change of the signing key, leaves are renewed within this time, each at a random moment.
const ROOT_SPREAD: Duration = Duration::from_secs(30);

/// Backoff after failures: from 1 s up to 1 min.
const RETRY: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_secs(1),
    multiplier: 2.0,
    jitter: 0.5,
    cap: Duration::from_secs(60),
};

/// The renewal time of a certificate: between 60 % (`random` = 0) and 90 % (1) of its lifetime.
#[must_use]
pub fn renewal_time(valid_after: SystemTime, valid_before: SystemTime, random: f64) -> SystemTime {
    let lifetime = valid_before.duration_since(valid_after).unwrap_or_default();
    valid_after + lifetime.mul_f64(EARLIEST + SPREAD * random.clamp(0.0, 1.0))
}

/// Input of the state machine. `random` is uniform between 0 and 1.
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
    /// The current signing key, whether or not it has changed.
    Signer {
        key_id: &'a str,
        now: SystemTime,
        random: f64,
    },
}

/// Next step for the caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Issue a certificate, and report the result as an event.
    Issue,
    /// Wait this long or until the next event.
    Wait(Duration),
}

/// The state of one service's certificate.
#[derive(Debug)]
pub(crate) enum Renewal {
    /// No certificate, and no attempt yet.
    Missing,
    /// A certificate that is renewed at `at`.
    Held {
        valid_after: SystemTime,
        at: SystemTime,
        authority_key_id: String,
        /// Whether the signing key has changed, so that `at` was moved forward.
        superseded: bool,
    },
    /// The last attempt failed; there may be an older certificate.
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

    /// The next step at this time. If the clock was set back to before the last event, the renewal is
    /// due immediately, since waiting for the clock to catch up could take days.
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
