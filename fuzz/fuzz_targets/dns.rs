//! The path of a DNS query: the stream is taken apart the same however it is cut, declining a
//! query always makes a reply to it, and the cache repeats answers without growing or lying.
//!
//! Input: how often the stream is cut (one byte), then DNS messages behind their lengths, as they
//! come over TCP: queries and answers by turns.
#![no_main]

use std::time::Duration;

use bytes::{BufMut as _, Bytes};
use legate_dataplane::dns::cache::{Cache, CacheLimits, Key};
use legate_dataplane::dns::framing::{Deframer, frame};
use legate_dataplane::dns::message::{LARGEST, Query, Reason, Transport};
use libfuzzer_sys::fuzz_target;
use tokio::time::Instant;

/// Header of a message.
const HEADER: usize = 12;

/// In the third byte: the message is a reply.
const RESPONSE: u8 = 0x80;

/// What every client takes without saying so.
const SMALLEST_DATAGRAM: usize = 512;

fuzz_target!(|input: &[u8]| {
    let Some((cut, stream)) = input.split_first() else {
        return;
    };
    let messages = deframe(stream, stream.len());
    let in_pieces = deframe(stream, usize::from(*cut).max(1));
    assert_eq!(messages, in_pieces, "a cut makes a difference");
    for message in &messages {
        let framed = frame(message).expect("it came with a length");
        assert_eq!(
            deframe(&framed, 1),
            [message],
            "a message is not what it was"
        );
    }

    let limits = CacheLimits {
        entries: 3,
        bytes: 4096,
        ..CacheLimits::default()
    };
    let mut cache = Cache::new(limits.clone());
    for pair in messages.chunks(2) {
        let Some(query) = Query::parse(pair[0].clone()) else {
            continue;
        };
        decline(&query);
        for transport in Transport::ALL {
            let answer = pair.get(1).map_or(&[][..], |answer| answer);
            remember(&mut cache, &query, answer, transport);
            assert!(cache.entries() <= limits.entries, "too many entries");
            assert!(cache.bytes() <= limits.bytes, "too much memory");
        }
    }
});

fn deframe(stream: &[u8], piece: usize) -> Vec<Bytes> {
    let mut deframer = Deframer::default();
    let mut messages = Vec::new();
    for piece in stream.chunks(piece.max(1)) {
        deframer.buffer().put_slice(piece);
        messages.extend(std::iter::from_fn(|| deframer.message()));
    }
    messages
}

/// Every reply of our own is a reply to this query, and fits everywhere when the query does.
fn decline(query: &Query) {
    let failures = Reason::ALL.map(|reason| query.failure(reason));
    for reply in failures.iter().chain([&query.truncation()]) {
        assert!(reply.len() >= HEADER, "a reply without a header");
        assert_eq!(reply[..2], query.bytes()[..2], "a reply to something else");
        assert!(reply[2] & RESPONSE != 0, "a reply that is a query");
        assert!(reply.len() <= SMALLEST_DATAGRAM, "a reply that may be lost");
    }
}

/// What the cache gives is the answer, but for its TTLs and what is copied from the query.
fn remember(cache: &mut Cache, query: &Query, answer: &[u8], transport: Transport) {
    let Some(key) = Key::of(query, transport) else {
        return;
    };
    let start = Instant::now();
    let entries = cache.entries();
    let known = cache.stale(query, &key, start).is_some();
    cache.store(query, &key, answer, start);
    let fresh = cache.fresh(query, &key, start);
    let stale = cache.stale(query, &key, start + Duration::from_secs(2 * 60 * 60));
    // What is kept now may still be what was known before.
    if let Some(reply) = fresh.iter().chain(&stale).find(|_| !known) {
        assert_eq!(reply.len(), answer.len(), "an answer changes its length");
        assert_eq!(reply[2..HEADER], answer[2..HEADER], "another header");
    }
    for reply in fresh.iter().chain(&stale) {
        assert_eq!(reply[..2], query.bytes()[..2], "a reply to something else");
        assert!(reply[2] & RESPONSE != 0, "a reply that is a query");
        assert!(reply.len() <= LARGEST, "a reply that cannot be sent");
    }
    let long_after = start + Duration::from_secs(30 * 60 * 60);
    assert!(
        cache.stale(query, &key, long_after).is_none(),
        "an answer that never ends"
    );
    assert!(cache.entries() <= entries, "an answer that stays");
    cache.store(query, &key, answer, start);
}
