//! The DNS wire format: decoding requests, and encoding responses that fit their transport.
//!
//! Only the needed parts of a request are decoded. Records are skipped without following compression pointers,
//! so the work is linear in the length of the message.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::ProtoError;
use hickory_proto::op::{
    Edns, Header, HeaderCounts, Message, MessageType, Metadata, OpCode, Query, ResponseCode,
};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{RData, RecordType};
use hickory_proto::serialize::binary::{
    BinDecodable, BinDecoder, BinEncodable, BinEncoder, DecodeError, NameEncoding,
};

use crate::config::dns::DnsSettings;

/// The transport of a response, which limits its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// 512 bytes, or the payload size in the client's EDNS record.
    Udp,
    /// 65,535 bytes.
    Tcp,
}

/// The maximum length of a DNS message.
pub(super) const LARGEST_MESSAGE: usize = 65_535;

/// The maximum response length without EDNS (RFC 1035).
const PLAIN_UDP: u16 = 512;

/// The maximum response length over UDP, whatever payload size the client sets. Consul's.
const LARGEST_UDP: u16 = 65_467;

/// Reserve that Consul subtracts from the client's payload size.
const UDP_HEADER: u16 = 8;

/// The maximum response length over TCP. Consul's.
const LARGEST_TCP: u16 = 65_523;

/// Maximum answers over UDP to clients with a payload size of 512 bytes.
const MAX_PLAIN_ANSWERS: usize = 8;

/// Length of a header. Shorter requests get no response, not even an error.
const HEADER: usize = 12;

/// Length in bytes of type and class at the end of a question.
const QUESTION_TAIL: usize = 4;

/// Maximum records in each section of a request. The additional section may have one more.
const MAX_RECORDS: u16 = 1;

/// Type of the EDNS record (RFC 6891).
const OPT: u16 = 41;

/// The EDNS client subnet option (RFC 7871).
const SUBNET: u16 = 8;

/// Not a valid DNS request.
#[derive(Debug, thiserror::Error)]
#[error("failure decoding dns request: {0}")]
pub(crate) struct Undecodable(String);

/// A decoded request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) metadata: Metadata,
    pub(super) question: Query,
    /// Offset at which the question ends.
    pub(super) question_end: usize,
    pub(super) edns: Option<RequestEdns>,
}

/// The EDNS record of a request.
#[derive(Debug, Clone)]
pub(super) struct RequestEdns {
    /// The maximum response length over UDP.
    pub(super) payload: u16,
    pub(super) subnet: Option<Subnet>,
}

/// The EDNS client subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subnet {
    /// The address, with zeros after the prefix.
    pub(super) ip: IpAddr,
    family: u16,
    prefix: u8,
}

impl Request {
    /// Decodes a request. `None` for a response, which must not be answered: two servers could answer each
    /// other forever.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>, Undecodable> {
        let undecodable = |error: DecodeError| Undecodable(error.to_string());
        let mut decoder = BinDecoder::new(bytes);
        let Header { metadata, counts } = Header::read(&mut decoder).map_err(undecodable)?;
        if metadata.message_type == MessageType::Response {
            return Ok(None);
        }
        let most = [
            ("answers", counts.answers, MAX_RECORDS),
            ("authorities", counts.authorities, MAX_RECORDS),
            ("additional records", counts.additionals, MAX_RECORDS + 1),
        ];
        if let Some((what, count, _)) = most.iter().find(|(_, count, most)| count > most) {
            return Err(Undecodable(format!("a request with {count} {what}")));
        }
        let question = read_question(&mut decoder, &counts)?;
        let question_end = decoder.index();
        let records = counts.answers + counts.authorities + counts.additionals;
        let mut edns = None;
        for _ in 0..records {
            let record = read_record(&mut decoder).map_err(undecodable)?;
            if record.kind == OPT && edns.is_none() {
                edns = Some(RequestEdns {
                    payload: record.class,
                    subnet: subnet_of(record.data)?,
                });
            }
        }
        Ok(Some(Self {
            metadata,
            question,
            question_end,
            edns,
        }))
    }

    /// A response without records.
    pub(super) fn reply(&self, code: ResponseCode) -> Message {
        let mut reply = Message::response(self.metadata.id, self.metadata.op_code);
        reply.metadata.recursion_desired = self.metadata.recursion_desired;
        reply.metadata.checking_disabled = self.metadata.checking_disabled;
        reply.metadata.response_code = code;
        reply.add_query(self.question.clone());
        reply
    }

    pub(super) fn subnet(&self) -> Option<Subnet> {
        self.edns.as_ref()?.subnet
    }

    /// Adds EDNS to the response if the request has it, with the subnet's scope.
    pub(super) fn add_edns(&self, reply: &mut Message, depends_on_subnet: bool) {
        let Some(asked) = &self.edns else { return };
        let mut edns = Edns::new();
        edns.set_max_payload(asked.payload).set_version(0);
        if let Some(subnet) = asked.subnet {
            let code = reply.metadata.response_code;
            let is_answer = matches!(code, ResponseCode::NoError);
            let scope = match depends_on_subnet && is_answer {
                true => subnet.prefix,
                false => 0,
            };
            let option = EdnsOption::Unknown(SUBNET, subnet.bytes(scope));
            edns.options_mut().insert(option);
        }
        reply.set_edns(edns);
    }

    /// The maximum response length over UDP, in bytes.
    fn payload(&self) -> u16 {
        let asked = self.edns.as_ref().map_or(PLAIN_UDP, |edns| edns.payload);
        asked.clamp(PLAIN_UDP, LARGEST_UDP)
    }
}

fn read_question(
    decoder: &mut BinDecoder<'_>,
    counts: &HeaderCounts,
) -> Result<Query, Undecodable> {
    if counts.queries != 1 {
        return Err(Undecodable(format!("{} questions", counts.queries)));
    }
    let start = decoder.index();
    let question = Query::read(decoder).map_err(|error| Undecodable(error.to_string()))?;
    let length = question.name().len() + usize::from(!question.name().is_root());
    // A pointer could only point into the header; with one, the encoded name would be shorter than the decoded
    // one.
    if length != decoder.index() - start - QUESTION_TAIL {
        return Err(Undecodable(
            "the name of the question is compressed".to_owned(),
        ));
    }
    Ok(question)
}

/// A record without its name and TTL.
struct RawRecord<'a> {
    kind: u16,
    class: u16,
    data: &'a [u8],
}

fn read_record<'a>(decoder: &mut BinDecoder<'a>) -> Result<RawRecord<'a>, DecodeError> {
    skip_name(decoder)?;
    let kind = decoder.read_u16()?.unverified();
    let class = decoder.read_u16()?.unverified();
    decoder.read_u32()?;
    let length = decoder.read_u16()?.unverified();
    Ok(RawRecord {
        kind,
        class,
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

/// The client subnet in the EDNS options.
fn subnet_of(mut options: &[u8]) -> Result<Option<Subnet>, Undecodable> {
    let cut = || Undecodable("an EDNS option is truncated".to_owned());
    let mut found = None;
    while !options.is_empty() {
        let (head, rest) = options.split_at_checked(4).ok_or_else(cut)?;
        let length = u16::from_be_bytes([head[2], head[3]]);
        let (value, rest) = rest.split_at_checked(length.into()).ok_or_else(cut)?;
        options = rest;
        if u16::from_be_bytes([head[0], head[1]]) == SUBNET && found.is_none() {
            let subnet = Subnet::read(value);
            found = Some(subnet.ok_or_else(|| Undecodable("an invalid client subnet".to_owned()))?);
        }
    }
    Ok(found)
}

impl Subnet {
    fn read(value: &[u8]) -> Option<Self> {
        let (head, address) = value.split_at_checked(4)?;
        let prefix = head[2];
        let bits = u32::from(prefix);
        let family = u16::from_be_bytes([head[0], head[1]]);
        let ip = match family {
            // RFC 7871 permits family 0 with an empty prefix.
            0 if prefix == 0 && address.is_empty() => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            1 if prefix <= 32 => {
                let mut bytes = [0; 4];
                bytes.get_mut(..address.len())?.copy_from_slice(address);
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(u32::from_be_bytes(bytes) & mask))
            }
            2 if prefix <= 128 => {
                let mut bytes = [0; 16];
                bytes.get_mut(..address.len())?.copy_from_slice(address);
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(u128::from_be_bytes(bytes) & mask))
            }
            _ => return None,
        };
        Some(Self { ip, family, prefix })
    }

    fn bytes(self, scope: u8) -> Vec<u8> {
        let address = match self.ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let used = usize::from(self.prefix).div_ceil(8);
        let head = [self.prefix, scope];
        [&self.family.to_be_bytes()[..], &head, &address[..used]].concat()
    }
}

/// The FORMERR response to a malformed request. `None` if its id is missing or it is a response.
pub(super) fn format_error(bytes: &[u8]) -> Option<Vec<u8>> {
    let header = bytes.get(..HEADER)?;
    let is_response = header[2] & 0x80 != 0;
    if is_response {
        return None;
    }
    let id = u16::from_be_bytes([header[0], header[1]]);
    let message = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
    message.to_vec().ok()
}

/// Limits and format of a response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// Maximum length, in bytes.
    limit: u16,
    /// Maximum number of answers.
    most: Option<usize>,
    /// Whether name compression is disabled.
    uncompressed: bool,
    /// Whether truncated responses set the TC bit.
    sets_truncation: bool,
}

impl Form {
    pub(super) fn of(request: &Request, transport: Transport, settings: &DnsSettings) -> Self {
        let (limit, most) = match (transport, request.payload()) {
            (Transport::Tcp, _) => (LARGEST_TCP, None),
            (Transport::Udp, PLAIN_UDP) => (
                PLAIN_UDP - UDP_HEADER,
                Some(settings.udp_answer_limit.min(MAX_PLAIN_ANSWERS)),
            ),
            (Transport::Udp, payload) => (payload - UDP_HEADER, None),
        };
        Self {
            limit,
            most,
            uncompressed: settings.disable_compression,
            sets_truncation: settings.enable_truncate,
        }
    }

    /// Encodes `reply`. Records that do not fit are dropped: first additional and authority records, then
    /// answers.
    pub(super) fn write(self, mut reply: Message) -> Result<Vec<u8>, ProtoError> {
        let total = reply.answers.len();
        if let Some(most) = self.most.filter(|most| total > *most) {
            truncate(&mut reply, most);
        }
        if let Some(bytes) = self.fitting(&reply, total)? {
            return Ok(bytes);
        }
        reply.authorities.clear();
        let whole = reply;
        // Binary search for the largest number of answers that fits.
        let (mut fits, mut exceeds) = (0, whole.answers.len() + 1);
        while exceeds - fits > 1 {
            let middle = fits + (exceeds - fits) / 2;
            match self.fitting(&shortened(&whole, middle), total)? {
                Some(_) => fits = middle,
                None => exceeds = middle,
            }
        }
        let mut reply = shortened(&whole, fits);
        if fits == 0 && !whole.answers.is_empty() {
            // Prefer one answer without additional records over none.
            reply = shortened(&whole, 1);
            reply.additionals.clear();
            if self.fitting(&reply, total)?.is_none() {
                reply.answers.clear();
            }
        } else if fits == 0 {
            reply.additionals.clear();
        }
        self.bytes(&reply, total)
    }

    /// The encoded `reply`, if it fits.
    fn fitting(self, reply: &Message, total: usize) -> Result<Option<Vec<u8>>, ProtoError> {
        let bytes = self.bytes(reply, total)?;
        // The encoder drops records beyond 64 KiB and sets the TC bit (third byte) itself.
        let dropped = !self.is_cut(reply, total) && bytes[2] & 0x02 != 0;
        Ok((bytes.len() <= usize::from(self.limit) && !dropped).then_some(bytes))
    }

    /// Whether to set the TC bit. Always set if no answers are left: otherwise the response would mean that
    /// there are none.
    fn is_cut(self, reply: &Message, total: usize) -> bool {
        let left = reply.answers.len();
        left < total && (self.sets_truncation || left == 0)
    }

    fn bytes(self, reply: &Message, total: usize) -> Result<Vec<u8>, ProtoError> {
        let mut bytes = Vec::with_capacity(usize::from(PLAIN_UDP));
        let mut encoder = BinEncoder::new(&mut bytes);
        if self.uncompressed {
            encoder.set_name_encoding(NameEncoding::Uncompressed);
        }
        if self.is_cut(reply, total) && !reply.metadata.truncation {
            let mut reply = reply.clone();
            reply.metadata.truncation = true;
            reply.emit(&mut encoder)?;
        } else {
            reply.emit(&mut encoder)?;
        }
        Ok(bytes)
    }
}

/// The first `count` answers, with the additional records that belong to them.
fn shortened(whole: &Message, count: usize) -> Message {
    let mut reply = Message::response(whole.metadata.id, whole.metadata.op_code);
    reply.metadata = whole.metadata;
    reply.queries.clone_from(&whole.queries);
    reply.answers.extend_from_slice(&whole.answers[..count]);
    reply.additionals.clone_from(&whole.additionals);
    reply.edns.clone_from(&whole.edns);
    retain_additionals(&mut reply);
    reply
}

fn truncate(reply: &mut Message, count: usize) {
    reply.answers.truncate(count);
    retain_additionals(reply);
}

/// Removes additional records that do not belong to targets of the answers.
fn retain_additionals(reply: &mut Message) {
    let mut targets = BTreeSet::new();
    for answer in &reply.answers {
        if let RData::SRV(srv) = &answer.data {
            targets.insert(srv.target.to_lowercase());
        }
    }
    // Aliases precede the records of their targets.
    reply.additionals.retain(|help| {
        let is_wanted = targets.contains(&help.name.to_lowercase());
        if let (true, RData::CNAME(alias)) = (is_wanted, &help.data) {
            targets.insert(alias.0.to_lowercase());
        }
        let kinds = [RecordType::A, RecordType::AAAA, RecordType::CNAME];
        is_wanted && kinds.contains(&help.record_type())
    });
}

#[cfg(test)]
mod tests;
