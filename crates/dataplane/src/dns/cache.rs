//! Cache of servers' answers, for use within their TTL and during outages. No IO; callers pass the
//! time.
//!
//! An answer is *fresh* for its shortest TTL; a negative answer, for the time in its SOA record (RFC
//! 2308). Consul's TTLs are 0 unless operators configure them: such answers are never fresh.
//! Afterwards an answer is *stale*, and may be returned for a limited time if no server can be
//! queried (RFC 8767). Callers decide whether one can.
//!
//! A cached answer is returned byte by byte as the server sent it, except that it gets the id of the
//! query and its spelling of the name; and that TTLs count down while it is fresh, and are
//! [`STALE_TTL`] seconds when it is stale. It is not encoded again, because it might then exceed the
//! size that the client accepts. Servers truncate answers to that size, so an answer is used only
//! for queries that are the same in everything else: see `Key`.
//!
//! A new answer replaces the old one. SERVFAIL does not count as an answer; any other answer that
//! cannot be cached, such as REFUSED, removes the entry. The least recently used entries are
//! evicted.

#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hickory_proto::op::{Header, MessageType, OpCode, ResponseCode};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use lru::LruCache;
use tokio::time::Instant;

use super::message::{COOKIE, HEADER, Key, OPT, Query, Record, Section};
use super::message::{options, records};

/// TTL of every record of a stale answer, in seconds, as RFC 8767 recommends. Clients query again
/// soon, but not all the time.
pub const STALE_TTL: u32 = 30;

/// How long an answer stays usable after its fresh time. RFC 8767 recommends one to three days.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// Upper limit for the fresh time, whatever the TTLs are.
const LONGEST_FRESH: Duration = Duration::from_secs(60 * 60);

/// Approximate memory of an entry in addition to its bytes: list, map, and allocations.
const OVERHEAD: usize = 256;

/// Type of the record that bounds how long a negative answer is valid.
const SOA: u16 = 6;

/// Two names of an SOA record have at least one byte each, its five numbers four bytes each.
const SMALLEST_SOA: usize = 22;

/// Types of signatures of a whole message, which cover its id (SIG, TSIG).
const SIGNATURES: [u16; 2] = [24, 250];

/// In the TTL of an OPT record: the upper bits of the response code.
const EXTENDED_CODE: u32 = 0xff00_0000;

/// Answers by question.
#[derive(Debug)]
pub struct Cache {
    entries: LruCache<Key, Entry>,
    /// Approximate memory of all entries, in bytes.
    pub bytes: usize,
    max_bytes: usize,
}

/// An answer that can be returned again.
#[derive(Debug)]
struct Entry {
    answer: Box<[u8]>,
    /// Offsets of the TTLs in the answer.
    ttls: Box<[u16]>,
    received: Instant,
    /// Time for which it is fresh.
    fresh: Duration,
}

impl Cache {
    /// An empty cache with a limit of approximately `max_bytes` of memory.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            entries: LruCache::unbounded(),
            bytes: 0,
            max_bytes,
        }
    }

    /// The reply to `query` from a fresh answer.
    #[must_use]
    pub fn fresh(&mut self, query: &Query, now: Instant) -> Option<Bytes> {
        self.repeat(query, now, Duration::ZERO)
    }

    /// The reply to `query` from a fresh or stale answer, for use if no server can be queried.
    #[must_use]
    pub fn stale(&mut self, query: &Query, now: Instant) -> Option<Bytes> {
        let reply = self.repeat(query, now, STALE);
        if reply.is_none() {
            self.remove(query.key.as_ref()?);
        }
        reply
    }

    fn repeat(&mut self, query: &Query, now: Instant, stale: Duration) -> Option<Bytes> {
        let entry = self.entries.get(query.key.as_ref()?)?;
        let age = now.saturating_duration_since(entry.received);
        if age < entry.fresh {
            let seconds = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
            return Some(entry.reply(query, |ttl| ttl.saturating_sub(seconds)));
        }
        (age - entry.fresh < stale).then(|| entry.reply(query, |_| STALE_TTL))
    }

    /// Caches a server's answer to `query`.
    pub fn store(&mut self, query: &Query, answer: &[u8], now: Instant) {
        let Some(key) = &query.key else { return };
        let Ok(header) = Header::read(&mut BinDecoder::new(answer)) else {
            return;
        };
        let metadata = &header.metadata;
        let is_answer =
            metadata.id == query.metadata.id && metadata.message_type == MessageType::Response;
        if !is_answer || metadata.response_code == ResponseCode::ServFail {
            return;
        }
        self.remove(key);
        let Some(entry) = Entry::read(query, answer, &header, now) else {
            return;
        };
        let cost = entry.cost(key);
        if cost > self.max_bytes {
            return;
        }
        while self.bytes + cost > self.max_bytes
            && let Some((oldest, entry)) = self.entries.pop_lru()
        {
            self.bytes -= entry.cost(&oldest);
        }
        self.bytes += cost;
        self.entries.put(key.clone(), entry);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.pop(key) {
            self.bytes -= entry.cost(key);
        }
    }
}

impl Entry {
    /// `None` for an answer to another question, one that cannot be parsed completely, or a negative
    /// one without an SOA record.
    fn read(query: &Query, answer: &[u8], header: &Header, received: Instant) -> Option<Self> {
        let absence = match header.metadata.response_code {
            ResponseCode::NoError => header.counts.answers == 0,
            ResponseCode::NXDomain => true,
            _ => return None,
        };
        let mut decoder = BinDecoder::new(answer);
        decoder.read_slice(HEADER).ok()?;
        let (name, tail) = query.question_bytes()?;
        let answered_name = decoder.read_slice(name.len()).ok()?.unverified();
        let same_question = header.counts.queries == 1
            && name.eq_ignore_ascii_case(answered_name)
            && decoder.read_slice(tail.len()).ok()?.unverified() == tail;
        let sendable = answer.len() <= query.transport.max_message();
        if !same_question || !sendable || header.metadata.op_code != OpCode::Query {
            return None;
        }
        let mut kept = answer.to_vec();
        let mut ttls = Vec::new();
        let (mut fresh, mut bounded) = (u32::MAX, false);
        for record in records(&mut decoder, &header.counts) {
            let (section, record) = record?;
            let mut ttl = record.ttl;
            match (record.kind, section) {
                (OPT, Section::Additional) if is_repeatable(&record) => continue,
                (OPT, _) => return None,
                (SOA, Section::Authority) => {
                    // The last of its numbers limits how long a negative answer may be cached.
                    let minimum = record.data.last_chunk();
                    let minimum = minimum.filter(|_| record.data.len() >= SMALLEST_SOA)?;
                    ttl = ttl.min(u32::from_be_bytes(*minimum));
                    bounded = true;
                    put_ttl(&mut kept, record.ttl_at, ttl);
                }
                (kind, _) if SIGNATURES.contains(&kind) => return None,
                _ => {}
            }
            fresh = fresh.min(ttl);
            // The length of a message fits into 16 bits.
            ttls.push(record.ttl_at as u16);
        }
        let complete = decoder.is_empty() && (bounded || !absence);
        complete.then(|| Self {
            answer: kept.into(),
            ttls: ttls.into(),
            received,
            fresh: Duration::from_secs(fresh.into()).min(LONGEST_FRESH),
        })
    }

    /// Approximate memory in bytes.
    fn cost(&self, key: &Key) -> usize {
        OVERHEAD + key.len() + self.answer.len() + size_of_val(&*self.ttls)
    }

    fn reply(&self, query: &Query, ttl: impl Fn(u32) -> u32) -> Bytes {
        let mut reply = BytesMut::from(&*self.answer);
        reply[..2].copy_from_slice(&query.metadata.id.to_be_bytes());
        if let Some((name, _)) = query.question_bytes() {
            // The same name has the same length.
            reply[HEADER..][..name.len()].copy_from_slice(name);
        }
        for at in &self.ttls {
            let at = usize::from(*at);
            if let Some(bytes) = self.answer[at..].first_chunk() {
                put_ttl(&mut reply, at, ttl(u32::from_be_bytes(*bytes)));
            }
        }
        reply.freeze()
    }
}

/// Whether an OPT record may be sent to other clients: it has no cookie, and no upper bits of the
/// response code.
fn is_repeatable(edns: &Record<'_>) -> bool {
    let no_cookie = |options: Vec<(u16, &[u8])>| options.iter().all(|(code, _)| *code != COOKIE);
    edns.ttl & EXTENDED_CODE == 0 && options(edns.data).is_ok_and(no_cookie)
}

fn put_ttl(message: &mut [u8], at: usize, ttl: u32) {
    message[at..at + 4].copy_from_slice(&ttl.to_be_bytes());
}
