//! Decides when to acquire or renew the lease. Pure: times are passed in.
//!
//! The timestamps in the Lease come from other machines' clocks and are never compared. By the
//! local clock, a lease has expired when it has not changed for its whole duration.

use std::time::Duration;

use tokio::time::Instant;

use super::settings::Times;

/// The relevant fields of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The holder; empty if there is none.
    pub(super) holder: String,
    /// How often the holder has changed.
    pub(super) transitions: i32,
    /// Its `resourceVersion`, which changes with each write; `None` if the Lease does not exist
    /// yet.
    pub(super) version: Option<String>,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Write this if the Lease still has this version.
    Write(Record),
    /// Check again later.
    Wait,
}

#[derive(Debug)]
pub(super) struct Machine {
    identity: String,
    duration: Duration,
    seen: Option<ObservedLease>,
}

/// The Lease as last read, and when it was first read in this state.
#[derive(Debug)]
struct ObservedLease {
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

    /// Records that the Lease was read.
    pub(super) fn saw(&mut self, record: Record, now: Instant) {
        if self.seen.as_ref().is_none_or(|seen| seen.record != record) {
            self.seen = Some(ObservedLease { record, since: now });
        }
    }

    /// Records that the Lease was written.
    pub(super) fn wrote(&mut self, record: Record, now: Instant) {
        self.saw(record, now);
    }

    /// Clears the observed state, so that a process that lost the lease waits like the others.
    pub(super) fn lose(&mut self) {
        self.seen = None;
    }

    /// Whether the Lease was last read with another holder.
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

    /// The Lease without a holder, if this process holds it.
    pub(super) fn release(&mut self) -> Option<Record> {
        let record = self.seen.take()?.record;
        (record.holder == self.identity).then(|| Record {
            holder: String::new(),
            ..record
        })
    }
}
