//! Which queries have the same answer.

use std::sync::Arc;

use super::super::message::{Query, Transport};
use super::super::wire::{HEADER, OPCODE, OPT, Question, Reader, Section};

/// Types that ask for more than an answer: keys for signatures, transfers of whole zones.
const UNREPEATABLE: std::ops::RangeInclusive<u16> = 249..=252;

/// EDNS option that a client chooses at random (RFC 7873). A server that takes part answers with
/// one of its own, and such answers are not kept.
pub(super) const COOKIE: u16 = 10;

/// Everything in a query that its answer may depend on: how it came, the flags, the name
/// regardless of its spelling, type and class, and what EDNS says of sizes, DNSSEC and the rest,
/// but for cookies. Not the id.
///
/// Servers cut answers to the size that the client takes, therefore clients that take different
/// sizes do not share answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// `None` when the answer to this query cannot be repeated: it is more than one plain
    /// question, it is signed, or it cannot be read.
    #[must_use]
    pub fn of(query: &Query, transport: Transport) -> Option<Self> {
        let message = &query.bytes()[..];
        let question = Question::only(message)?;
        let records = Section::RECORDS.map(|section| section.count(message));
        let plain = message[2] & OPCODE == 0
            && !UNREPEATABLE.contains(&question.kind())
            && matches!(records, [0, 0, 0 | 1]);
        if !plain {
            return None;
        }
        let mut key = Vec::with_capacity(message.len() - HEADER + 3);
        key.push(transport as u8);
        key.extend(&message[2..4]);
        // Length bytes are below the letters.
        key.extend(question.name.iter().map(u8::to_ascii_lowercase));
        key.extend(question.tail);
        let mut reader = Reader::behind_header(message);
        reader.question()?;
        if records[2] == 1 {
            let edns = reader.record()?;
            if edns.kind != OPT || !edns.root {
                return None;
            }
            key.extend(edns.class.to_be_bytes());
            key.extend(edns.ttl.to_be_bytes());
            let mut options = Reader::new(edns.data);
            while !options.is_at_end() {
                let (code, value) = options.option()?;
                if code != COOKIE {
                    key.extend(code.to_be_bytes());
                    key.extend((value.len() as u16).to_be_bytes());
                    key.extend(value);
                }
            }
        }
        reader.is_at_end().then(|| Self(key.into()))
    }

    /// In bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
