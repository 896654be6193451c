//! DNS messages as bytes: reading a question, and writing an answer that fits its transport.

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};

/// How an answer travels, which decides how long it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// 512 bytes, or what the client says it takes.
    Udp,
    /// 65,535 bytes.
    Tcp,
}

/// The longest answer without EDNS, RFC 1035.
const PLAIN_UDP: u16 = 512;

/// The longest UDP payload over IPv4; nothing longer can be sent, whatever a client takes.
const LARGEST_UDP: u16 = 65_507;

/// The length of a header, without which not even an error can be answered.
const HEADER: usize = 12;

/// Bytes that are no DNS message.
#[derive(Debug, thiserror::Error)]
#[error("failure decoding dns request: {0}")]
pub(crate) struct Undecodable(String);

/// Reads a request.
pub(super) fn decode(bytes: &[u8]) -> Result<Message, Undecodable> {
    Message::from_vec(bytes).map_err(|error| Undecodable(error.to_string()))
}

/// The answer to a client whose request cannot be read; `None` when even its id is missing, or
/// when it is no request.
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

/// An answer to `request` without records.
pub(super) fn reply_to(request: &Message) -> Message {
    let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
    reply.metadata.recursion_desired = request.metadata.recursion_desired;
    reply.add_queries(request.queries.iter().cloned());
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(LARGEST_UDP).set_version(0);
        reply.set_edns(edns);
    }
    reply
}

/// Whether a message is a question at all. A response must not be answered: two servers would
/// talk for ever.
pub(super) fn is_request(message: &Message) -> bool {
    message.metadata.message_type == MessageType::Query
}

/// Writes `reply`, at most as long as `request` came with and `transport` allows. What does not fit
/// is left out: first what was only helpful, then answers, which the truncation flag tells.
pub(super) fn encode(
    mut reply: Message,
    request: &Message,
    transport: Transport,
) -> Result<Vec<u8>, ProtoError> {
    let limit = match transport {
        Transport::Udp => request.max_payload().clamp(PLAIN_UDP, LARGEST_UDP),
        Transport::Tcp => u16::MAX,
    };
    if let Some(bytes) = fitting(&reply, limit)? {
        return Ok(bytes);
    }
    reply.additionals.clear();
    if let Some(bytes) = fitting(&reply, limit)? {
        return Ok(bytes);
    }
    reply.metadata.truncation = true;
    let answers = std::mem::take(&mut reply.answers);
    // Between these two numbers of answers lies the largest that fits.
    let (mut fits, mut exceeds) = (0, answers.len());
    while exceeds - fits > 1 {
        let middle = fits + (exceeds - fits) / 2;
        reply.answers = answers[..middle].to_vec();
        match fitting(&reply, limit)? {
            Some(_) => fits = middle,
            None => exceeds = middle,
        }
    }
    reply.answers = answers[..fits].to_vec();
    reply.to_vec()
}

/// The bytes of `message` when they are `limit` at most.
fn fitting(message: &Message, limit: u16) -> Result<Option<Vec<u8>>, ProtoError> {
    let bytes = message.to_vec()?;
    // The codec drops records that exceed 64 KiB and sets the flag, third byte, by itself.
    let dropped = !message.metadata.truncation && bytes[2] & 0x02 != 0;
    Ok((bytes.len() <= usize::from(limit) && !dropped).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hickory_proto::op::Query;
    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{Name, RData, Record, RecordType};

    use super::*;

    fn request(payload: Option<u16>) -> Message {
        let mut request = Message::new(7, MessageType::Query, OpCode::Query);
        let name = Name::from_ascii("web.service.consul.").unwrap();
        request.add_query(Query::query(name, RecordType::A));
        if let Some(payload) = payload {
            let mut edns = Edns::new();
            edns.set_max_payload(payload);
            request.set_edns(edns);
        }
        request
    }

    fn with_answers(request: &Message, count: u32) -> Message {
        let mut reply = reply_to(request);
        let name = request.queries[0].name().clone();
        for number in 0..count {
            let ip = Ipv4Addr::from_bits(number);
            reply.add_answer(Record::from_rdata(name.clone(), 0, RData::A(A(ip))));
        }
        reply
    }

    fn sent(payload: Option<u16>, answers: u32, transport: Transport) -> (usize, Message) {
        let request = request(payload);
        let reply = with_answers(&request, answers);
        let bytes = encode(reply, &request, transport).unwrap();
        (bytes.len(), Message::from_vec(&bytes).unwrap())
    }

    #[test]
    fn a_short_answer_is_whole() {
        let (_, reply) = sent(None, 3, Transport::Udp);
        assert_eq!((reply.answers.len(), reply.metadata.truncation), (3, false));
        assert_eq!(reply.metadata.id, 7);
        assert!(reply.edns.is_none());
    }

    #[test]
    fn an_answer_is_cut_where_its_transport_ends() {
        for (payload, transport, limit) in [
            (None, Transport::Udp, 512),
            (Some(100), Transport::Udp, 512),
            (Some(1_232), Transport::Udp, 1_232),
            (Some(u16::MAX), Transport::Udp, 65_507),
            (None, Transport::Tcp, 65_535),
        ] {
            let (length, reply) = sent(payload, 5_000, transport);
            assert!(
                length <= limit && length + 16 > limit,
                "{length} of {limit}"
            );
            assert!(reply.metadata.truncation);
            assert_eq!(reply.edns.is_some(), payload.is_some());
        }
    }

    #[test]
    fn help_is_left_out_before_answers() {
        let request = request(None);
        let mut reply = with_answers(&request, 20);
        reply.additionals = with_answers(&request, 30).answers;
        let bytes = encode(reply, &request, Transport::Udp).unwrap();
        let reply = Message::from_vec(&bytes).unwrap();
        assert_eq!((reply.answers.len(), reply.additionals.len()), (20, 0));
        assert!(!reply.metadata.truncation);
    }

    #[test]
    fn what_cannot_be_read_gets_an_error_when_it_has_an_id() {
        assert!(decode(&[1, 2, 3]).is_err());
        assert_eq!(format_error(&[1, 2, 3]), None);
        let mut garbage = [0xff; 40];
        garbage[2] = 0x01;
        assert!(decode(&garbage).is_err());
        let error = Message::from_vec(&format_error(&garbage).unwrap()).unwrap();
        assert_eq!(error.metadata.id, 0xffff);
        assert_eq!(error.metadata.response_code, ResponseCode::FormErr);
        garbage[2] = 0x81;
        assert_eq!(format_error(&garbage), None, "a response is not answered");
    }
}
