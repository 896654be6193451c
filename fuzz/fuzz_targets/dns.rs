//! The path of a DNS query: every error response is a valid reply to its query, and the cache returns correct
//! answers in bounded memory.
//!
//! Input: one byte that is skipped, then DNS messages with their lengths as over TCP, alternately queries and
//! answers.
#![no_main]

use std::time::Duration;

use bytes::Bytes;
use legate_dataplane::dns::cache::Cache;
use legate_dataplane::dns::message::{MAX_MESSAGE, Query, Reason, Transport};
use libfuzzer_sys::fuzz_target;
use tokio::time::Instant;

/// Length of a message's header.
const HEADER: usize = 12;

/// The bit of replies in the third byte.
const RESPONSE: u8 = 0x80;

/// The size that every client accepts.
const SMALLEST_DATAGRAM: usize = 512;

const REASONS: [Reason; 5] = [
    Reason::Overloaded,
    Reason::NoServer,
    Reason::Timeout,
    Reason::ServerError,
    Reason::Stopping,
];

/// Size of the cache in bytes, enough for some answers.
const CACHE: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((_, stream)) = input.split_first() else {
        return;
    };
    let messages = messages(stream);
    let mut cache = Cache::new(CACHE);
    for pair in messages.chunks(2) {
        for transport in Transport::ALL {
            let Some(query) = Query::parse(pair[0].clone(), transport) else {
                continue;
            };
            decline(&query);
            let answer = pair.get(1).map_or(&[][..], |answer| answer);
            remember(&mut cache, &query, answer);
            assert!(cache.bytes <= CACHE, "too much memory");
        }
    }
});

/// The complete messages of the input.
fn messages(mut stream: &[u8]) -> Vec<Bytes> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = stream.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length));
        let Some((message, rest)) = rest.split_at_checked(length) else {
            break;
        };
        messages.push(Bytes::copy_from_slice(message));
        stream = rest;
    }
    messages
}

/// Checks that every error response is a reply to this query and small enough for every client.
fn decline(query: &Query) {
    let failures = REASONS.map(|reason| query.failure(reason));
    for reply in failures
        .iter()
        .chain([&query.truncation(), &query.format_error()])
    {
        assert!(reply.len() >= HEADER, "a reply without a header");
        assert_eq!(reply[..2], query.message[..2], "a reply to something else");
        assert!(reply[2] & RESPONSE != 0, "a reply that is a query");
        assert!(reply.len() <= SMALLEST_DATAGRAM, "a reply that may be lost");
    }
}

/// Checks that the cache returns the answer, except for its TTLs and the parts copied from the query.
fn remember(cache: &mut Cache, query: &Query, answer: &[u8]) {
    let start = Instant::now();
    let bytes = cache.bytes;
    let known = cache.stale(query, start).is_some();
    cache.store(query, answer, start);
    let fresh = cache.fresh(query, start);
    let stale = cache.stale(query, start + Duration::from_secs(2 * 60 * 60));
    // An answer that was cached before may have been kept.
    if let Some(reply) = fresh.iter().chain(&stale).find(|_| !known) {
        assert_eq!(reply.len(), answer.len(), "an answer changes its length");
        assert_eq!(reply[2..HEADER], answer[2..HEADER], "another header");
    }
    for reply in fresh.iter().chain(&stale) {
        assert_eq!(reply[..2], query.message[..2], "a reply to something else");
        assert!(reply[2] & RESPONSE != 0, "a reply that is a query");
        assert!(reply.len() <= MAX_MESSAGE, "a reply that cannot be sent");
    }
    let long_after = start + Duration::from_secs(30 * 60 * 60);
    assert!(
        cache.stale(query, long_after).is_none(),
        "an answer that never expires"
    );
    assert!(cache.bytes <= bytes, "an expired answer is still cached");
    cache.store(query, answer, start);
}
