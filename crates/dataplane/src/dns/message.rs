//! Parses as much of a query as a forwarder needs, and builds the replies that do not come from
//! servers.
//!
//! hickory parses headers and questions and encodes replies. Records are only skipped, without
//! following compression pointers: hickory would follow them for every record, however long the
//! chain, and logs records that it cannot parse. So the work is linear in the message's length for
//! any content.
//!
//! No IO and no state. Forwarded messages are never changed.

use std::iter::repeat_n;
use std::ops::RangeInclusive;

use bytes::Bytes;
use hickory_proto::op::{self, Edns, Header, HeaderCounts, Message, MessageType, Metadata};
use hickory_proto::op::{OpCode, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, DecodeError};

/// Maximum length of any message, in bytes: lengths have 16 bits.
pub const MAX_MESSAGE: usize = 65_535;

/// Maximum length of a message in an IPv4 datagram, in bytes.
const MAX_DATAGRAM: usize = 65_507;

/// Length of the header that every message starts with, in bytes.
pub(super) const HEADER: usize = 12;

/// Length of the type and class at the end of a question, in bytes.
const QUESTION_TAIL: usize = 4;

/// Type of the record that carries EDNS (RFC 6891).
pub(super) const OPT: u16 = 41;

/// EDNS option with a random value chosen by the client (RFC 7873).
pub(super) const COOKIE: u16 = 10;

/// EDNS option that explains an error (RFC 8914).
const EXTENDED_ERROR: u16 = 15;

/// In the TTL of an OPT record: the client accepts DNSSEC records.
const DNSSEC_OK: u32 = 0x8000;

/// Types whose answers cannot be cached: keys for signatures, and zone transfers.
const UNREPEATABLE: RangeInclusive<u16> = 249..=252;

/// Largest datagram in bytes that our own replies announce. Larger queries are accepted, too; this
/// size passes everywhere without fragmentation.
const PAYLOAD: u16 = 1232;

/// Transport of a query and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// One datagram per message.
    Udp,
    /// A stream, with a length before each message.
    Tcp,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 2] = [Self::Udp, Self::Tcp];

    /// Maximum length of a message, in bytes.
    pub(super) fn max_message(self) -> usize {
        match self {
            Self::Udp => MAX_DATAGRAM,
            Self::Tcp => MAX_MESSAGE,
        }
    }

    /// Name in labels and logs.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// Reason for a SERVFAIL reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too many queries are in flight.
    Overloaded,
    /// There is no connection to a server.
    NoServer,
    /// The server took too long.
    Timeout,
    /// The server refused, or its answer is not a DNS message of a valid size.
    ServerError,
    /// This process is stopping.
    Stopping,
}

impl Reason {
    /// Info code and text of the extended error, shown by tools like `dig`.
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

/// Everything in a query that its answer may depend on: transport, flags, the name in lower case,
/// type and class, and the EDNS parameters except for cookies. Not the id.
pub(super) type Key = Bytes;

/// A message that needs a reply.
#[derive(Clone, Debug)]
pub struct Query {
    /// The message as received.
    pub message: Bytes,
    /// The transport that it arrived on.
    pub(super) transport: Transport,
    pub(super) metadata: Metadata,
    /// The question, and the offset of its end in the message.
    question: Option<(op::Query, usize)>,
    /// Whether the client accepts DNSSEC records; `None` without EDNS.
    dnssec_ok: Option<bool>,
    /// Whether no server could parse it: it has no question or several (RFC 9619), or an entry of a
    /// section is truncated or has an invalid name. Trailing bytes are left for the server to
    /// judge.
    pub(super) malformed: bool,
    /// The cache key; `None` if the answer cannot be cached: the query is not a plain question, or
    /// is signed.
    pub(super) key: Option<Key>,
}

impl Query {
    /// `None` for messages that must not be answered. Bytes without a complete header have no id to
    /// reply to, and replies to responses could make two servers send messages to each other
    /// endlessly.
    #[must_use]
    pub fn parse(message: Bytes, transport: Transport) -> Option<Self> {
        let Header { metadata, counts } = Header::read(&mut BinDecoder::new(&message)).ok()?;
        if metadata.message_type == MessageType::Response {
            return None;
        }
        let mut query = Self {
            message: message.clone(),
            transport,
            metadata,
            question: None,
            dnssec_ok: None,
            malformed: false,
            key: None,
        };
        query.malformed = query.read_body(&message, &counts).is_none();
        Some(query)
    }

    /// Parses everything after the header; `None` if that fails.
    fn read_body(&mut self, message: &[u8], counts: &HeaderCounts) -> Option<()> {
        let mut decoder = BinDecoder::new(message);
        decoder.read_slice(HEADER).ok()?;
        if counts.queries != 1 {
            return None;
        }
        let question = op::Query::read(&mut decoder).ok()?;
        let end = decoder.index();
        // A compression pointer could only point into the header; the decoded name would then be
        // longer than its encoding.
        let length = question.name.len() + usize::from(!question.name.is_root());
        if length != end - HEADER - QUESTION_TAIL {
            return None;
        }
        let ordinary = self.metadata.op_code == OpCode::Query
            && !UNREPEATABLE.contains(&question.query_type.into());
        self.question = Some((question, end));
        let (mut edns, mut only_edns) = (None, true);
        for record in records(&mut decoder, counts) {
            let (section, record) = record?;
            if record.kind == OPT && edns.is_none() {
                self.dnssec_ok = Some(record.ttl & DNSSEC_OK != 0);
                only_edns &= section == Section::Additional;
                edns = Some(record);
            } else {
                only_edns = false;
            }
        }
        if ordinary && only_edns && decoder.is_empty() {
            self.key = self.make_key(edns.as_ref());
        }
        Some(())
    }

    fn make_key(&self, edns: Option<&Record<'_>>) -> Option<Key> {
        let (name, tail) = self.question_bytes()?;
        let mut key = vec![self.transport as u8];
        key.extend(&self.message[2..4]);
        // Length bytes are smaller than any letter, so this leaves them unchanged.
        key.extend(name.to_ascii_lowercase());
        key.extend(tail);
        if let Some(edns) = edns {
            key.extend(edns.class.to_be_bytes());
            key.extend(edns.ttl.to_be_bytes());
            for (code, value) in options(edns.data).ok()? {
                if code != COOKIE {
                    key.extend(code.to_be_bytes());
                    key.extend((value.len() as u16).to_be_bytes());
                    key.extend(value);
                }
            }
        }
        Some(key.into())
    }

    /// The question as received: its name, then its type and class.
    pub(super) fn question_bytes(&self) -> Option<(&[u8], &[u8; QUESTION_TAIL])> {
        let (_, end) = self.question.as_ref()?;
        self.message.get(HEADER..*end)?.split_last_chunk()
    }

    /// FORMERR for a malformed query.
    #[must_use]
    pub fn format_error(&self) -> Bytes {
        self.reply(ResponseCode::FormErr, false, None)
    }

    /// SERVFAIL, with the reason if the client supports EDNS.
    #[must_use]
    pub fn failure(&self, reason: Reason) -> Bytes {
        self.reply(ResponseCode::ServFail, false, Some(reason))
    }

    /// An empty, truncated answer that makes the client retry over TCP.
    #[must_use]
    pub fn truncation(&self) -> Bytes {
        self.reply(ResponseCode::NoError, true, None)
    }

    fn reply(&self, code: ResponseCode, truncated: bool, reason: Option<Reason>) -> Bytes {
        let mut reply = Message::response(self.metadata.id, self.metadata.op_code);
        reply.metadata = Metadata::response_from_request(&self.metadata);
        reply.metadata.truncation = truncated;
        // Servers resolve recursively if they are configured to. Without this bit, some resolvers
        // would stop using this one.
        reply.metadata.recursion_available = true;
        reply.metadata.response_code = code;
        reply.add_queries(self.question.iter().map(|(question, _)| question.clone()));
        // A client that uses EDNS assumes that a server which omits it does not support it.
        if let Some(dnssec_ok) = self.dnssec_ok {
            let mut edns = Edns::new();
            edns.set_max_payload(PAYLOAD).set_dnssec_ok(dnssec_ok);
            if let Some((code, text)) = reason.map(Reason::explanation) {
                let data = [&code.to_be_bytes(), text.as_bytes()].concat();
                let option = EdnsOption::Unknown(EXTENDED_ERROR, data);
                edns.options_mut().insert(option);
            }
            reply.set_edns(edns);
        }
        // Everything that was parsed can be encoded.
        reply.to_vec().unwrap_or_default().into()
    }
}

/// The section of a message that a record is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Answer,
    Authority,
    Additional,
}

/// A resource record, without its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) kind: u16,
    /// Class and TTL, which have other meanings in an OPT record.
    pub(super) class: u16,
    pub(super) ttl: u32,
    /// Offset of the TTL in the message.
    pub(super) ttl_at: usize,
    pub(super) data: &'a [u8],
}

/// The records of a message whose question has been parsed. `None` stands for a record that cannot
/// be parsed; items after it are meaningless.
pub(super) fn records<'a>(
    decoder: &mut BinDecoder<'a>,
    counts: &HeaderCounts,
) -> impl Iterator<Item = Option<(Section, Record<'a>)>> {
    let sections = [
        (Section::Answer, counts.answers),
        (Section::Authority, counts.authorities),
        (Section::Additional, counts.additionals),
    ];
    sections
        .into_iter()
        .flat_map(|(section, count)| repeat_n(section, count.into()))
        .map(|section| Some((section, read_record(decoder).ok()?)))
}

fn read_record<'a>(decoder: &mut BinDecoder<'a>) -> Result<Record<'a>, DecodeError> {
    skip_name(decoder)?;
    let kind = decoder.read_u16()?.unverified();
    let class = decoder.read_u16()?.unverified();
    let ttl_at = decoder.index();
    let ttl = decoder.read_u32()?.unverified();
    let length = decoder.read_u16()?.unverified();
    Ok(Record {
        kind,
        class,
        ttl,
        ttl_at,
        data: decoder.read_slice(length.into())?.unverified(),
    })
}

/// Skips a name without following pointers.
fn skip_name(decoder: &mut BinDecoder<'_>) -> Result<(), DecodeError> {
    loop {
        match decoder.read_u8()?.unverified() {
            0 => return Ok(()),
            length @ 1..=0x3f => decoder.read_slice(length.into())?,
            0xc0.. => return decoder.read_u8().map(drop),
            other => return Err(DecodeError::UnrecognizedLabelCode(other)),
        };
    }
}

/// Codes and values of the options in the data of an OPT record.
pub(super) fn options(data: &[u8]) -> Result<Vec<(u16, &[u8])>, DecodeError> {
    let mut decoder = BinDecoder::new(data);
    let mut options = Vec::new();
    while !decoder.is_empty() {
        let code = decoder.read_u16()?.unverified();
        let length = decoder.read_u16()?.unverified();
        options.push((code, decoder.read_slice(length.into())?.unverified()));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use hickory_proto::op::Query as Asked;
    use hickory_proto::rr::rdata::opt::EdnsCode;
    use hickory_proto::rr::{DNSClass, Name, RecordType};
    use proptest::prelude::*;

    use super::*;

    /// Flag in the third byte: the message is a response.
    const RESPONSE: u8 = 0x80;

    const REASONS: [Reason; 5] = [
        Reason::Overloaded,
        Reason::NoServer,
        Reason::Timeout,
        Reason::ServerError,
        Reason::Stopping,
    ];

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
        read(&message.to_vec().unwrap()).unwrap()
    }

    fn read(message: &[u8]) -> Option<Query> {
        Query::parse(Bytes::copy_from_slice(message), Transport::Udp)
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
    fn a_failure_is_explained_to_clients_with_edns() {
        for dnssec_ok in [false, true] {
            for reason in REASONS {
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
    fn a_truncation_is_not_a_failure() {
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
        assert_eq!(parse(&message).dnssec_ok, Some(true));
    }

    #[test]
    fn the_longest_name_fits_and_longer_ones_are_not_echoed() {
        let label = [&[63][..], &[b'a'; 63]].concat();
        let message = |name: &[u8]| {
            let header = [1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            let bytes = [&header[..], name, &[0, 0, 1, 0, 1]].concat();
            read(&bytes).unwrap()
        };
        let longest = [&label[..], &label, &label, &[61], &[b'a'; 61]].concat();
        let query = message(&longest);
        assert_eq!(query.question_bytes().unwrap().0.len(), 255);
        let reply = Message::from_vec(&query.failure(Reason::Timeout)).unwrap();
        assert_eq!(reply.queries[0].query_class(), DNSClass::IN);
        let query = message(&[&label[..], &label, &label, &label].concat());
        assert_eq!(query.failure(Reason::Timeout).len(), HEADER);
    }

    #[test]
    fn unreadable_questions_are_not_echoed() {
        let tails: [&[u8]; 5] = [
            b"",
            b"\x03ab",
            b"\xc0\x0c\0\x01\0\x01",
            b"\x40a\0\0\x01\0\x01",
            b"\x01a\0\0\x01\0",
        ];
        for tail in tails {
            let bytes = [&[1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1], tail].concat();
            let reply = read(&bytes).unwrap().failure(Reason::ServerError);
            assert_eq!(
                reply[..],
                [1, 2, 0x81, 0x82, 0, 0, 0, 0, 0, 0, 0, 0],
                "{tail:?}"
            );
        }
    }

    #[test]
    fn malformed_queries_are_distinguished_from_unusual_ones() {
        let whole = query(Some(true)).to_vec().unwrap();
        assert!(!parse(&query(None)).malformed);
        for length in HEADER..whole.len() {
            let cut = read(&whole[..length]).unwrap();
            assert!(cut.malformed, "{length} of {} bytes", whole.len());
        }
        // Trailing bytes, and other operations.
        let odd = [&whole[..], b"more"].concat();
        assert!(!read(&odd).unwrap().malformed);
        let update = [
            1, 2, 0x28, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 6, 0, 1,
        ];
        assert!(!read(&update).unwrap().malformed);
        for questions in [0, 2] {
            let mut message = query(None).to_vec().unwrap();
            let question = message[HEADER..].to_vec();
            message.extend(question);
            message[5] = questions;
            let reply = read(&message).unwrap();
            assert!(reply.malformed, "{questions} questions");
            let reply = Message::from_vec(&reply.format_error()).unwrap();
            assert_eq!(reply.metadata.response_code, ResponseCode::FormErr);
        }
    }

    #[test]
    fn responses_and_fragments_of_headers_are_not_answered() {
        let mut bytes = query(None).to_vec().unwrap();
        assert!(read(&bytes[..HEADER - 1]).is_none());
        assert!(read(&[]).is_none());
        bytes[2] |= RESPONSE;
        assert!(read(&bytes).is_none());
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
            let query = read(&bytes).unwrap();
            for reply in [query.failure(Reason::Overloaded), query.truncation(), query.format_error()] {
                prop_assert!((HEADER..=512).contains(&reply.len()));
                prop_assert_eq!(&reply[..2], &bytes[..2]);
                prop_assert_eq!(reply[2] & RESPONSE, RESPONSE);
                // Our own replies would not be answered.
                prop_assert!(read(&reply).is_none());
            }
        }

        #[test]
        fn queries_of_other_encoders_keep_their_question(
            labels in proptest::collection::vec("[a-z0-9_-]{1,20}", 1..8),
            kind in any::<u16>(),
            edns in proptest::option::of(any::<bool>()),
        ) {
            let mut message = query(edns);
            let name = Name::from_labels(labels.iter().map(String::as_bytes)).unwrap();
            message.queries = vec![Asked::query(name, RecordType::from(kind))];
            let query = parse(&message);
            prop_assert_eq!(query.dnssec_ok, edns);
            let reply = Message::from_vec(&query.failure(Reason::Timeout)).unwrap();
            prop_assert_eq!(reply.queries, message.queries);
        }
    }
}
