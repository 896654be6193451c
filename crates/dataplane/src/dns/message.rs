//! As much of a DNS message as somebody has to understand who forwards it and must never be
//! silent: what is a query, and how to decline one.
//!
//! No IO and no state. It never changes a message that it forwards.

use bytes::{BufMut, Bytes, BytesMut};

use super::wire::{
    CHECKING_DISABLED, FORMAT_ERROR, HEADER, NO_ERROR, OPCODE, OPT, Question, RECURSION_AVAILABLE,
    RECURSION_DESIRED, RESPONSE, Reader, SERVER_FAILURE, Section, TRUNCATED,
};

/// The longest message of all: lengths have 16 bits.
pub const LARGEST: usize = 65_535;

/// The longest message that fits into a datagram over IPv4.
const LARGEST_DATAGRAM: usize = 65_507;

/// In the TTL of the record that carries EDNS: DNSSEC records are welcome.
const DNSSEC_OK: u32 = 0x8000;

/// Code of the EDNS option that explains an error (RFC 8914).
const EXTENDED_ERROR: u16 = 15;

/// Largest datagram that we say we take. Queries of any size are taken; this is what travels
/// everywhere without being fragmented.
const PAYLOAD: u16 = 1232;

/// How a query came, and how its reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// In a datagram of its own.
    Udp,
    /// On a stream, behind its length.
    Tcp,
}

impl Transport {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Udp, Self::Tcp];

    /// Length in bytes of the longest message that can be sent.
    #[must_use]
    pub fn largest(self) -> usize {
        match self {
            Self::Udp => LARGEST_DATAGRAM,
            Self::Tcp => LARGEST,
        }
    }

    /// In labels and logs.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// Why a query gets no real answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too many queries are being answered already.
    Overloaded,
    /// There is no connection to a server.
    NoServer,
    /// The server took too long.
    Timeout,
    /// The server refused, or its answer is no DNS message that fits.
    ServerError,
    /// This process ends.
    Stopping,
}

impl Reason {
    /// Every reason, for metrics that show zero before anything has happened.
    pub const ALL: [Self; 5] = [
        Self::Overloaded,
        Self::NoServer,
        Self::Timeout,
        Self::ServerError,
        Self::Stopping,
    ];

    /// Info code and text that tools like `dig` show.
    fn explanation(self) -> (u16, &'static str) {
        match self {
            Self::Overloaded => (0, "too many queries at one time"),
            Self::NoServer => (22, "not connected to a server"),
            Self::Timeout => (23, "the server did not answer in time"),
            Self::ServerError => (23, "the server failed"),
            Self::Stopping => (14, "shutting down"),
        }
    }
}

/// A message that is to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query(Bytes);

impl Query {
    /// `None` for what must not be answered: bytes without a whole header have no id to answer to,
    /// and answering responses would let two servers talk to each other for ever.
    ///
    /// Whether the rest can be read is said by [`Query::is_malformed`].
    #[must_use]
    pub fn parse(message: Bytes) -> Option<Self> {
        (message.len() >= HEADER && message[2] & RESPONSE == 0).then_some(Self(message))
    }

    /// The message as it came.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// What the reply has to begin with.
    pub(super) fn id(&self) -> [u8; 2] {
        [self.0[0], self.0[1]]
    }

    /// Whether no server could read it: an entry of a section is cut off or has an impossible name,
    /// or a standard query has no question or several (RFC 9619). What follows the last entry is
    /// the server's to judge.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        let message = &self.0;
        let standard = message[2] & OPCODE == 0;
        if standard && Question::only(message).is_none() {
            return true;
        }
        let mut reader = Reader::behind_header(message);
        let questions = Section::Questions.count(message);
        // Names in the questions of other operations may be pointers.
        let readable = (0..questions).all(|_| match standard {
            true => reader.question().is_some(),
            false => reader.skip_question().is_some(),
        });
        !(readable && reader.records(message).all(|record| record.is_some()))
    }

    /// FORMERR: the query is malformed.
    #[must_use]
    pub fn format_error(&self) -> Bytes {
        self.reply(0, FORMAT_ERROR, None)
    }

    /// SERVFAIL, with the reason for clients that know EDNS.
    #[must_use]
    pub fn failure(&self, reason: Reason) -> Bytes {
        self.reply(0, SERVER_FAILURE, Some(reason.explanation()))
    }

    /// An empty answer that says that the real one is too long: ask again over TCP.
    #[must_use]
    pub fn truncation(&self) -> Bytes {
        self.reply(TRUNCATED, NO_ERROR, None)
    }

    fn reply(&self, flags: u8, code: u8, explanation: Option<(u16, &str)>) -> Bytes {
        let query = &self.0;
        let question = Question::only(query).map(|question| question.bytes);
        let dnssec_ok = self.edns();
        let mut reply = BytesMut::with_capacity(512);
        reply.put_slice(&query[..2]);
        reply.put_u8(RESPONSE | query[2] & (OPCODE | RECURSION_DESIRED) | flags);
        // Servers do recursion where they are told to; without this bit, some resolvers would
        // never come back.
        reply.put_u8(RECURSION_AVAILABLE | query[3] & CHECKING_DISABLED | code);
        reply.put_u16(question.is_some().into());
        reply.put_u16(0);
        reply.put_u16(0);
        // A client that speaks EDNS takes an answer without it for a server that does not.
        reply.put_u16(dnssec_ok.is_some().into());
        reply.put_slice(question.unwrap_or_default());
        if let Some(dnssec_ok) = dnssec_ok {
            put_edns(&mut reply, dnssec_ok, explanation);
        }
        reply.freeze()
    }

    /// Whether DNSSEC records are welcome; `None` without EDNS.
    fn edns(&self) -> Option<bool> {
        let mut reader = Reader::behind_header(&self.0);
        for _ in 0..Section::Questions.count(&self.0) {
            reader.question()?;
        }
        let mut records = reader.records(&self.0).map_while(|record| record);
        let edns = records.find(|record| record.kind == OPT)?;
        Some(edns.ttl & DNSSEC_OK != 0)
    }
}

fn put_edns(reply: &mut BytesMut, dnssec_ok: bool, explanation: Option<(u16, &str)>) {
    reply.put_u8(0); // the root, which is the record's name
    reply.put_u16(OPT);
    reply.put_u16(PAYLOAD);
    reply.put_u32(if dnssec_ok { DNSSEC_OK } else { 0 });
    let Some((code, text)) = explanation else {
        return reply.put_u16(0);
    };
    // The texts are the short ones above.
    let length = 2 + text.len() as u16;
    reply.put_u16(4 + length);
    reply.put_u16(EXTENDED_ERROR);
    reply.put_u16(length);
    reply.put_u16(code);
    reply.put_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as Asked, ResponseCode};
    use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
    use hickory_proto::rr::{DNSClass, Name, RecordType};
    use proptest::prelude::*;

    use super::*;

    fn query(edns: Option<bool>) -> Message {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.metadata.checking_disabled = true;
        let name = Name::from_str("web.service.consul.").unwrap();
        message.add_query(Asked::query(name, RecordType::SRV));
        if let Some(dnssec_ok) = edns {
            let mut record = Edns::new();
            record.set_max_payload(4096).set_dnssec_ok(dnssec_ok);
            message.set_edns(record);
        }
        message
    }

    fn parse(message: &Message) -> Query {
        Query::parse(message.to_vec().unwrap().into()).unwrap()
    }

    #[test]
    fn a_failure_has_the_id_and_the_question() {
        let query = query(None);
        let reply = Message::from_vec(&parse(&query).failure(Reason::NoServer)).unwrap();
        assert_eq!(reply.metadata.id, query.metadata.id);
        assert_eq!(reply.metadata.message_type, MessageType::Response);
        assert_eq!(reply.metadata.op_code, OpCode::Query);
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
        assert!(reply.metadata.recursion_desired && reply.metadata.recursion_available);
        assert!(reply.metadata.checking_disabled);
        assert!(!reply.metadata.authoritative && !reply.metadata.truncation);
        assert_eq!(reply.queries, query.queries);
        assert_eq!(reply.edns, None);
    }

    #[test]
    fn a_failure_is_explained_to_who_speaks_edns() {
        for dnssec_ok in [false, true] {
            for reason in Reason::ALL {
                let reply = parse(&query(Some(dnssec_ok))).failure(reason);
                assert!(reply.len() <= 512);
                let edns = Message::from_vec(&reply).unwrap().edns.unwrap();
                assert_eq!(edns.flags().dnssec_ok, dnssec_ok);
                let (code, text) = reason.explanation();
                let expected = [&code.to_be_bytes(), text.as_bytes()].concat();
                let option = edns.option(EdnsCode::Unknown(EXTENDED_ERROR));
                assert_eq!(option, Some(&EdnsOption::Unknown(EXTENDED_ERROR, expected)));
            }
        }
    }

    #[test]
    fn a_truncation_is_no_failure() {
        let query = query(Some(false));
        let reply = Message::from_vec(&parse(&query).truncation()).unwrap();
        assert!(reply.metadata.truncation);
        assert_eq!(reply.metadata.response_code, ResponseCode::NoError);
        assert_eq!(reply.queries, query.queries);
        assert!(reply.edns.unwrap().options().as_ref().is_empty());
    }

    #[test]
    fn edns_is_found_behind_other_records() {
        let mut message = query(Some(true));
        let name = Name::from_str("web.service.consul.").unwrap();
        let data = hickory_proto::rr::RData::A("10.0.0.1".parse().unwrap());
        let record = hickory_proto::rr::Record::from_rdata(name, 5, data);
        message
            .add_answer(record.clone())
            .add_authority(record.clone())
            .add_additional(record);
        assert_eq!(parse(&message).edns(), Some(true));
    }

    #[test]
    fn the_longest_name_fits_and_longer_ones_are_not_echoed() {
        let label = [&[63][..], &[b'a'; 63]].concat();
        let message = |name: &[u8]| {
            let header = [1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            let bytes = [&header[..], name, &[0, 0, 1, 0, 1]].concat();
            Query::parse(bytes.into()).unwrap()
        };
        let longest = [&label[..], &label, &label, &[61], &[b'a'; 61]].concat();
        let query = message(&longest);
        let question = Question::only(query.bytes()).unwrap();
        assert_eq!(question.bytes.len(), 255 + 4);
        let reply = Message::from_vec(&query.failure(Reason::Timeout)).unwrap();
        assert_eq!(reply.queries[0].query_class(), DNSClass::IN);
        let query = message(&[&label[..], &label, &label, &label].concat());
        assert_eq!(query.failure(Reason::Timeout).len(), HEADER);
    }

    #[test]
    fn what_cannot_be_read_is_not_echoed() {
        let tails: [&[u8]; 5] = [
            b"",
            b"\x03ab",
            b"\xc0\x0c\0\x01\0\x01",
            b"\x40a\0\0\x01\0\x01",
            b"\x01a\0\0\x01\0",
        ];
        for tail in tails {
            let bytes = [&[1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1], tail].concat();
            let reply = Query::parse(bytes.into())
                .unwrap()
                .failure(Reason::ServerError);
            assert_eq!(
                reply[..],
                [1, 2, 0x81, 0x82, 0, 0, 0, 0, 0, 0, 0, 0],
                "{tail:?}"
            );
        }
    }

    #[test]
    fn a_malformed_query_is_told_from_an_odd_one() {
        let whole = query(Some(true)).to_vec().unwrap();
        assert!(!parse(&query(None)).is_malformed());
        for length in HEADER..whole.len() {
            let cut = Query::parse(Bytes::copy_from_slice(&whole[..length])).unwrap();
            assert!(cut.is_malformed(), "{length} of {} bytes", whole.len());
        }
        // Behind the last record, and in other operations: an update's zone, with no name of its own.
        let odd = [&whole[..], b"more"].concat();
        assert!(!Query::parse(odd.into()).unwrap().is_malformed());
        let update = [1, 2, 0x28, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 6, 0, 1];
        assert!(
            !Query::parse(Bytes::copy_from_slice(&update))
                .unwrap()
                .is_malformed()
        );
        for questions in [0, 2] {
            let mut message = query(None).to_vec().unwrap();
            let question = message[HEADER..].to_vec();
            message.extend(question);
            message[5] = questions;
            let reply = Query::parse(message.into()).unwrap();
            assert!(reply.is_malformed(), "{questions} questions");
            let reply = Message::from_vec(&reply.format_error()).unwrap();
            assert_eq!(reply.metadata.response_code, ResponseCode::FormErr);
        }
    }

    #[test]
    fn responses_and_fragments_of_headers_are_not_answered() {
        let mut bytes = query(None).to_vec().unwrap();
        assert_eq!(
            Query::parse(Bytes::copy_from_slice(&bytes[..HEADER - 1])),
            None
        );
        assert_eq!(Query::parse(Bytes::new()), None);
        bytes[2] |= RESPONSE;
        assert_eq!(Query::parse(bytes.into()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_get_a_short_reply_with_their_id(
            mut bytes in proptest::collection::vec(any::<u8>(), HEADER..600),
            counts in proptest::collection::vec(0..3_u8, 4),
        ) {
            bytes[2] &= !RESPONSE;
            for (index, count) in counts.into_iter().enumerate() {
                bytes[4 + 2 * index..][..2].copy_from_slice(&[0, count]);
            }
            let query = Query::parse(bytes.clone().into()).unwrap();
            for reply in [query.failure(Reason::Overloaded), query.truncation(), query.format_error()] {
                prop_assert!((HEADER..=512).contains(&reply.len()));
                prop_assert_eq!(&reply[..2], &bytes[..2]);
                prop_assert_eq!(reply[2] & RESPONSE, RESPONSE);
                // What we send, we would not answer.
                prop_assert_eq!(Query::parse(reply), None);
            }
        }

        #[test]
        fn queries_of_others_keep_their_question(
            labels in proptest::collection::vec("[a-z0-9_-]{1,20}", 1..8),
            kind in any::<u16>(),
            edns in proptest::option::of(any::<bool>()),
        ) {
            let mut message = query(edns);
            let name = Name::from_labels(labels.iter().map(String::as_bytes)).unwrap();
            message.queries = vec![Asked::query(name, RecordType::from(kind))];
            let query = parse(&message);
            prop_assert_eq!(query.edns(), edns);
            let reply = Message::from_vec(&query.failure(Reason::Timeout)).unwrap();
            prop_assert_eq!(reply.queries, message.queries);
        }
    }
}
