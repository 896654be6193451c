//! What an answer has to be like to be kept, and how it is repeated.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::super::message::{LARGEST, Query};
use super::super::wire::{
    HEADER, NAME_ERROR, NO_ERROR, OPCODE, OPT, Question, RESPONSE, RESPONSE_CODE, Reader, Record,
    SERVER_FAILURE, SOA, Section,
};
use super::STALE_TTL;
use super::key::COOKIE;

/// Types of signatures of a whole message, which cover its id.
const SIGNATURES: [u16; 2] = [24, 250];

/// In the TTL of the record that carries EDNS: the higher bits of the response code.
const EXTENDED_CODE: u32 = 0xff00_0000;

/// What becomes of an answer.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It is kept.
    Keep(Kept),
    /// It cannot be kept, and what was known before is no longer true.
    Forget,
    /// It says nothing.
    Ignore,
}

/// An answer that can be repeated.
#[derive(Debug)]
pub(super) struct Kept {
    answer: Box<[u8]>,
    /// Where in the answer TTLs are.
    ttls: Box<[u16]>,
    /// How long it is fresh.
    pub(super) fresh: Duration,
}

/// Judges an answer to a query. It is fresh for `longest` at most.
pub(super) fn examine(query: &Query, answer: &[u8], longest: Duration) -> Verdict {
    let answers = answer.len() >= HEADER && answer[..2] == query.id() && answer[2] & RESPONSE != 0;
    if !answers {
        return Verdict::Ignore;
    }
    match answer[3] & RESPONSE_CODE {
        SERVER_FAILURE => Verdict::Ignore,
        NO_ERROR | NAME_ERROR => {
            let kept = Kept::read(query.bytes(), answer, longest);
            kept.map_or(Verdict::Forget, Verdict::Keep)
        }
        _ => Verdict::Forget,
    }
}

impl Kept {
    /// `None` for an answer to another question, or one that cannot be read completely, or an
    /// absence that does not say for how long.
    fn read(query: &[u8], answer: &[u8], longest: Duration) -> Option<Self> {
        let asked = Question::only(query)?;
        let answered = Question::only(answer)?;
        let same = asked.name.eq_ignore_ascii_case(answered.name) && asked.tail == answered.tail;
        if !same || answer[2] & OPCODE != 0 || answer.len() > LARGEST {
            return None;
        }
        let mut kept = answer.to_vec();
        let mut ttls = Vec::new();
        let (mut fresh, mut bounded) = (u32::MAX, false);
        let mut reader = Reader::behind_header(answer);
        reader.question()?;
        for section in Section::RECORDS {
            for _ in 0..section.count(answer) {
                let record = reader.record()?;
                let mut ttl = record.ttl;
                match (record.kind, section) {
                    (OPT, Section::Additional) if is_plain(&record) => continue,
                    (OPT, _) => return None,
                    (SOA, Section::Authorities) => {
                        ttl = ttl.min(record.minimum()?);
                        bounded = true;
                        put_ttl(&mut kept, record.ttl_at, ttl);
                    }
                    (kind, _) if SIGNATURES.contains(&kind) => return None,
                    _ => {}
                }
                fresh = fresh.min(ttl);
                // A message is at most as long as 16 bits can say.
                ttls.push(record.ttl_at as u16);
            }
        }
        let nothing =
            answer[3] & RESPONSE_CODE == NAME_ERROR || Section::Answers.count(answer) == 0;
        let complete = reader.is_at_end() && (bounded || !nothing);
        complete.then(|| Self {
            answer: kept.into(),
            ttls: ttls.into(),
            fresh: Duration::from_secs(fresh.into()).min(longest),
        })
    }

    /// In bytes.
    pub(super) fn size(&self) -> usize {
        self.answer.len() + size_of_val(&*self.ttls)
    }

    /// The reply after so much time of the TTLs has passed.
    pub(super) fn aged(&self, query: &Query, age: Duration) -> Bytes {
        let age = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
        self.reply(query, |ttl| ttl.saturating_sub(age))
    }

    /// The reply when the TTLs no longer mean anything.
    pub(super) fn stale(&self, query: &Query) -> Bytes {
        self.reply(query, |_| STALE_TTL)
    }

    fn reply(&self, query: &Query, ttl: impl Fn(u32) -> u32) -> Bytes {
        let mut reply = BytesMut::from(&*self.answer);
        reply[..2].copy_from_slice(&query.id());
        if let Some(question) = Question::only(query.bytes()) {
            // Same name, same length.
            let name = reply.iter_mut().skip(HEADER);
            name.zip(question.name).for_each(|(to, from)| *to = *from);
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

/// Whether a record that carries EDNS can be repeated to others: it belongs to no client, and no
/// higher bits of the response code are in it.
fn is_plain(record: &Record<'_>) -> bool {
    let mut options = Reader::new(record.data);
    while !options.is_at_end() {
        match options.option() {
            Some((code, _)) if code != COOKIE => {}
            _ => return false,
        }
    }
    record.root && record.ttl & EXTENDED_CODE == 0
}

fn put_ttl(message: &mut [u8], at: usize, ttl: u32) {
    if let Some(bytes) = message.get_mut(at..at + 4) {
        bytes.copy_from_slice(&ttl.to_be_bytes());
    }
}
