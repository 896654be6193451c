//! Renewals of sessions that wait until the leader confirms them.
//!
//! They are sent in batches, one at a time, and again to every new leader: a leader that expires
//! sessions does not know what an earlier one confirmed, and starts all their times anew.

use std::collections::VecDeque;
use std::mem;

use tokio::time::Instant;

use super::WRITE;
use super::message::Message;
use crate::outcome::Unavailable;
use crate::renewals::{Renewal, SessionKey};

/// The maximum number of waiting renewals; more wait in the queue before them.
const WAITING: usize = 512;

#[derive(Default)]
pub(super) struct Renewing {
    waiting: VecDeque<Waiting>,
    /// How many of them, from the first one on, the leader was asked for.
    asked: usize,
}

struct Waiting {
    session: SessionKey,
    /// `None` if it has waited too long.
    renewal: Option<Renewal>,
    since: Instant,
}

impl Renewing {
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING
    }

    pub(super) fn add(&mut self, renewals: Vec<Renewal>, since: Instant) {
        self.waiting
            .extend(renewals.into_iter().map(|renewal| Waiting {
                session: renewal.session.clone(),
                renewal: Some(renewal),
                since,
            }));
    }

    /// Another server leads, or the connection to it is another one.
    pub(super) fn leader_changed(&mut self) {
        self.asked = 0;
    }

    /// The next message to the leader.
    pub(super) fn ask(&mut self) -> Option<Message> {
        if self.asked > 0 || self.waiting.is_empty() {
            return None;
        }
        self.asked = self.waiting.len();
        let sessions = self.waiting.iter().map(|one| one.session.clone());
        Some(Message::Renew {
            sessions: sessions.collect(),
        })
    }

    /// The leader's answer: for each session that it was asked for, whether it exists.
    pub(super) fn confirmed(&mut self, exist: Vec<bool>) {
        if exist.len() != self.asked {
            return;
        }
        self.asked = 0;
        for (waiting, exists) in self.waiting.drain(..exist.len()).zip(exist) {
            if let Some(renewal) = waiting.renewal {
                renewal.done(Ok(exists));
            }
        }
    }

    /// Takes all that wait: this server leads, or stops.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Renewal> + use<> {
        self.asked = 0;
        let waiting = mem::take(&mut self.waiting);
        waiting.into_iter().filter_map(|one| one.renewal)
    }

    /// Answers those that have waited too long, or all.
    pub(super) fn expire(&mut self, now: Instant, all: bool, reason: &Unavailable) {
        for waiting in &mut self.waiting {
            if (all || waiting.since + WRITE <= now)
                && let Some(renewal) = waiting.renewal.take()
            {
                renewal.done(Err(reason.clone()));
            }
        }
        // The answer for those that the leader was asked for may still come.
        let mut number = 0;
        self.waiting.retain(|waiting| {
            number += 1;
            number <= self.asked || waiting.renewal.is_some()
        });
    }
}
