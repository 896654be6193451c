//! Answers that servers gave, for a moment or for an outage. No IO; the time comes from callers.
//!
//! An answer is *fresh* for as long as its shortest TTL says; an absence, for as long as its SOA
//! record says (RFC 2308). Consul's TTLs are 0 unless its operators say otherwise: such answers
//! are never fresh. Afterwards an answer is *stale*, and may be given for as long as
//! [`CacheLimits::stale`] when no server can be asked (RFC 8767). Whether one can is not decided
//! here.
//!
//! A kept answer is repeated byte by byte, as its server made it, with two exceptions: it takes
//! the id of the query, and the spelling of its name; and TTLs count down while it is fresh, and
//! are [`STALE_TTL`] seconds when it is stale. Since nothing is cut or added, it is repeated only
//! to queries that differ in nothing else: see [`Key`].
//!
//! The last answer counts. SERVFAIL is none; any other answer that cannot be repeated, REFUSED for
//! example, removes what was kept before. What was used least recently goes when there is no room.

mod key;
mod reply;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

pub use self::key::Key;
use self::reply::{Kept, Verdict, examine};
use super::message::Query;

/// TTL of every record of a stale answer, in seconds: what RFC 8767 recommends. Clients ask again
/// soon, and not all the time.
pub const STALE_TTL: u32 = 30;

/// What an entry costs besides its bytes, roughly: two maps, and allocations.
const OVERHEAD: usize = 256;

/// How much is kept, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Answers (default 2,048). With 0 nothing is kept.
    pub entries: usize,
    /// Memory in bytes, roughly (default 1 MiB). With 0 nothing is kept.
    pub bytes: usize,
    /// How long an answer is fresh, whatever its TTLs say (default 1 hour).
    pub fresh: Duration,
    /// How long an answer may be given after it was fresh (default 1 day, the shorter of the
    /// times that RFC 8767 recommends). With 0 there are no stale answers.
    pub stale: Duration,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            entries: 2048,
            bytes: 1 << 20,
            fresh: Duration::from_secs(60 * 60),
            stale: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// Answers by the questions that they answer.
#[derive(Debug)]
pub struct Cache {
    limits: CacheLimits,
    entries: HashMap<Key, Entry>,
    /// The keys in the order of their last use.
    order: BTreeMap<u64, Key>,
    /// Counts uses.
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    kept: Kept,
    received: Instant,
    /// Its place in the order.
    used: u64,
    cost: usize,
}

impl Cache {
    /// An empty cache.
    #[must_use]
    pub fn new(limits: CacheLimits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            order: BTreeMap::new(),
            uses: 0,
            bytes: 0,
        }
    }

    /// The reply to `query`, whose key this is, from an answer that is fresh.
    #[must_use]
    pub fn fresh(&mut self, query: &Query, key: &Key, now: Instant) -> Option<Bytes> {
        let entry = self.entries.get(key)?;
        let age = now.saturating_duration_since(entry.received);
        if age >= entry.kept.fresh {
            return None;
        }
        let reply = entry.kept.aged(query, age);
        self.touch(key);
        Some(reply)
    }

    /// The reply to `query`, whose key this is, from an answer that is stale, or fresh. For when
    /// no server can be asked.
    #[must_use]
    pub fn stale(&mut self, query: &Query, key: &Key, now: Instant) -> Option<Bytes> {
        let entry = self.entries.get(key)?;
        let age = now.saturating_duration_since(entry.received);
        if age < entry.kept.fresh {
            return self.fresh(query, key, now);
        }
        if age - entry.kept.fresh >= self.limits.stale {
            self.remove(key);
            return None;
        }
        let reply = entry.kept.stale(query);
        self.touch(key);
        Some(reply)
    }

    /// Takes note of a server's answer to `query`, whose key this is.
    pub fn store(&mut self, query: &Query, key: &Key, answer: &[u8], now: Instant) {
        let kept = match examine(query, answer, self.limits.fresh) {
            Verdict::Keep(kept) => kept,
            Verdict::Forget => return self.remove(key),
            Verdict::Ignore => return,
        };
        self.remove(key);
        let cost = OVERHEAD + key.len() + kept.size();
        if cost > self.limits.bytes || self.limits.entries == 0 {
            return;
        }
        while self.bytes + cost > self.limits.bytes || self.entries.len() >= self.limits.entries {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            self.remove(&oldest);
        }
        self.bytes += cost;
        let used = self.next_use(key);
        let entry = Entry {
            kept,
            received: now,
            used,
            cost,
        };
        self.entries.insert(key.clone(), entry);
    }

    /// How many answers there are.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// How much memory they take, as [`CacheLimits::bytes`] counts it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn touch(&mut self, key: &Key) {
        let used = self.next_use(key);
        if let Some(entry) = self.entries.get_mut(key) {
            self.order.remove(&entry.used);
            entry.used = used;
        }
    }

    fn next_use(&mut self, key: &Key) -> u64 {
        self.uses += 1;
        self.order.insert(self.uses, key.clone());
        self.uses
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
            self.bytes -= entry.cost;
        }
    }
}
