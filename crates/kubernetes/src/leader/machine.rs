//! Who may take or renew the lease, and when. Pure: times are handed in.
//!
//! The times that stand in the Lease are those of other machines' clocks and are never compared: a
//! lease has run out when it has looked the same for its whole duration, by the own clock.

use std::time::Duration;

use tokio::time::Instant;

use super::settings::Times;

/// The content of a Lease that matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Who holds it; empty: nobody.
    pub(super) holder: String,
    /// How often it has had another holder.
    pub(super) transitions: i32,
    /// Its `resourceVersion`: another one after each write; `None`: there is no such Lease yet.
    pub(super) version: Option<String>,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Write this, if the Lease still has this version.
    Write(Record),
    /// Look again later.
    Wait,
}

#[derive(Debug)]
pub(super) struct Machine {
    identity: String,
    duration: Duration,
    seen: Option<Seen>,
}

/// The Lease as it was last seen, and when it was first seen like that.
#[derive(Debug)]
struct Seen {
    record: Record,
    since: Instant,
}

impl Machine {
    pub(super) fn new(identity: String, times: Times) -> Machine {
        Machine {
            identity,
            duration: times.duration,
            seen: None,
        }
    }

    /// The Lease was read.
    pub(super) fn saw(&mut self, record: Record, now: Instant) {
        if self.seen.as_ref().is_none_or(|seen| seen.record != record) {
            self.seen = Some(Seen { record, since: now });
        }
    }

    /// The Lease was written, and is this now.
    pub(super) fn wrote(&mut self, record: Record, now: Instant) {
        self.saw(record, now);
    }

    /// Forgets what was seen: whoever lost the lease waits like everybody else.
    pub(super) fn lose(&mut self) {
        self.seen = None;
    }

    /// Whether the Lease was last seen with another holder.
    pub(super) fn is_others(&self) -> bool {
        let holder = self.seen.as_ref().map(|seen| seen.record.holder.as_str());
        holder.is_some_and(|holder| !holder.is_empty() && holder != self.identity)
    }

    pub(super) fn next(&self, now: Instant) -> Step {
        let Some(seen) = &self.seen else {
            return Step::Wait;
        };
        let record = &seen.record;
        let own = record.holder == self.identity;
        let free = record.holder.is_empty() || now >= seen.since + self.duration;
        if !own && !free {
            return Step::Wait;
        }
        Step::Write(Record {
            holder: self.identity.clone(),
            transitions: record.transitions.saturating_add(i32::from(!own)),
            version: record.version.clone(),
        })
    }

    /// The Lease without a holder, where this one holds it.
    pub(super) fn release(&mut self) -> Option<Record> {
        let record = self.seen.take()?.record;
        (record.holder == self.identity).then(|| Record {
            holder: String::new(),
            ..record
        })
    }
}
