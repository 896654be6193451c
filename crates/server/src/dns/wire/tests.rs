use hickory_proto::rr::rdata::{A, SRV};
use hickory_proto::rr::{Name, Record};
use proptest::prelude::*;

use super::*;

fn request_bytes(payload: Option<u16>) -> Vec<u8> {
    let mut request = Message::new(7, MessageType::Query, OpCode::Query);
    let name = Name::from_ascii("web.service.consul.").unwrap();
    request.add_query(Query::query(name, RecordType::A));
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        request.set_edns(edns);
    }
    request.to_vec().unwrap()
}

fn request(payload: Option<u16>) -> Request {
    Request::read(&request_bytes(payload)).unwrap().unwrap()
}

fn address(name: &Name, number: u32) -> Record {
    Record::from_rdata(name.clone(), 0, RData::A(A(Ipv4Addr::from_bits(number))))
}

fn with_answers(request: &Request, count: u32) -> Message {
    let mut reply = request.reply(ResponseCode::NoError);
    for number in 0..count {
        reply.add_answer(address(request.question.name(), number));
    }
    request.add_edns(&mut reply, false);
    reply
}

fn sent(
    payload: Option<u16>,
    answers: u32,
    transport: Transport,
    settings: &DnsSettings,
) -> (usize, Message) {
    let request = request(payload);
    let reply = with_answers(&request, answers);
    let bytes = Form::of(&request, transport, settings)
        .write(reply)
        .unwrap();
    (bytes.len(), Message::from_vec(&bytes).unwrap())
}

fn limited_settings() -> DnsSettings {
    DnsSettings {
        enable_truncate: true,
        ..DnsSettings::default()
    }
}

#[test]
fn a_short_answer_is_whole() {
    let (_, reply) = sent(None, 3, Transport::Udp, &limited_settings());
    assert_eq!((reply.answers.len(), reply.metadata.truncation), (3, false));
    assert_eq!(reply.metadata.id, 7);
    assert!(reply.edns.is_none());
}

#[test]
fn answers_are_truncated_to_the_transports_limit() {
    for (payload, transport, limit) in [
        (Some(1_232), Transport::Udp, 1_232),
        (Some(u16::MAX), Transport::Udp, 65_467),
        (None, Transport::Tcp, 65_535),
    ] {
        let (length, reply) = sent(payload, 5_000, transport, &limited_settings());
        assert!(
            length <= limit && length + 64 > limit,
            "{length} of {limit}"
        );
        assert!(reply.metadata.truncation);
        let edns = reply.edns.map(|edns| edns.max_payload());
        assert_eq!(edns, payload);
        let (_, reply) = sent(payload, 5_000, transport, &DnsSettings::default());
        assert!(!reply.metadata.truncation);
    }
}

#[test]
fn clients_without_edns_get_few_answers() {
    for (limit, payload, count) in [
        (3, None, 3),
        (20, None, 8),
        (3, Some(100), 3),
        (3, Some(4096), 40),
    ] {
        let settings = DnsSettings {
            udp_answer_limit: limit,
            ..limited_settings()
        };
        let (_, reply) = sent(payload, 40, Transport::Udp, &settings);
        assert_eq!(reply.answers.len(), count);
        assert_eq!(reply.metadata.truncation, count < 40);
    }
}

#[test]
fn additional_records_are_truncated_with_their_answers() {
    let request = request(None);
    let mut reply = request.reply(ResponseCode::NoError);
    for number in 0..6 {
        let target = Name::from_ascii(format!("n{number}.node.consul.")).unwrap();
        let srv = SRV::new(1, 1, 80, target.clone());
        let name = request.question.name().clone();
        reply.add_answer(Record::from_rdata(name, 0, RData::SRV(srv)));
        reply.add_additional(address(&target, number));
    }
    let form = Form::of(&request, Transport::Udp, &DnsSettings::default());
    let cut = Message::from_vec(&form.write(reply).unwrap()).unwrap();
    assert_eq!((cut.answers.len(), cut.additionals.len()), (3, 3));
    for (answer, help) in cut.answers.iter().zip(&cut.additionals) {
        let RData::SRV(srv) = &answer.data else {
            panic!("{answer}")
        };
        assert_eq!(srv.target, help.name);
    }
}

#[test]
fn additional_records_are_dropped_before_the_only_answer() {
    let request = request(None);
    let mut reply = with_answers(&request, 1);
    reply.additionals = with_answers(&request, 60).answers;
    let form = Form::of(&request, Transport::Udp, &limited_settings());
    let cut = Message::from_vec(&form.write(reply).unwrap()).unwrap();
    assert_eq!((cut.answers.len(), cut.additionals.len()), (1, 0));
    assert!(!cut.metadata.truncation);
}

#[test]
fn name_compression_can_be_disabled() {
    let full = DnsSettings {
        disable_compression: true,
        ..DnsSettings::default()
    };
    let lengths = [&DnsSettings::default(), &full].map(|settings| {
        let (length, reply) = sent(None, 3, Transport::Udp, settings);
        assert_eq!(reply.answers.len(), 3);
        length
    });
    // Each name takes 20 bytes, and a pointer to it two.
    assert_eq!(lengths[1] - lengths[0], 3 * 18);
}

#[test]
fn malformed_requests_with_an_id_get_an_error() {
    assert!(Request::read(&[1, 2, 3]).is_err());
    assert_eq!(format_error(&[1, 2, 3]), None);
    let mut garbage = [0xff; 40];
    garbage[2] = 0x01;
    assert!(Request::read(&garbage).is_err());
    let error = Message::from_vec(&format_error(&garbage).unwrap()).unwrap();
    assert_eq!(error.metadata.id, 0xffff);
    assert_eq!(error.metadata.response_code, ResponseCode::FormErr);
    garbage[2] = 0x81;
    assert_eq!(format_error(&garbage), None, "a response is not answered");
    let whole = request_bytes(Some(1232));
    for length in 0..whole.len() {
        assert!(Request::read(&whole[..length]).is_err(), "{length}");
    }
}

#[test]
fn names_of_questions_are_written_in_full_and_records_are_few() {
    let header = |counts: [u8; 4]| {
        let [questions, answers, authorities, additionals] = counts;
        [
            1,
            2,
            1,
            0,
            0,
            questions,
            0,
            answers,
            0,
            authorities,
            0,
            additionals,
        ]
    };
    let compressed = [&header([1, 0, 0, 0])[..], b"\xc0\x0c\0\x01\0\x01"].concat();
    assert!(Request::read(&compressed).is_err());
    let question = b"\x03web\0\0\x01\0\x01";
    // A pointer to itself, which the parser does not follow.
    let record = b"\xc0\x15\0\x01\0\x01\0\0\0\0\0\0";
    let with = |counts: [u8; 4]| {
        let count = counts[1..].iter().sum::<u8>();
        let records = record.repeat(count.into());
        Request::read(&[&header(counts)[..], question, &records].concat())
    };
    assert!(with([1, 1, 1, 2]).is_ok());
    for counts in [
        [0, 0, 0, 0],
        [2, 0, 0, 0],
        [1, 2, 0, 0],
        [1, 0, 2, 0],
        [1, 0, 0, 3],
    ] {
        assert!(with(counts).is_err(), "{counts:?}");
    }
}

#[test]
fn the_client_subnet_is_echoed() {
    let ask = |value: &[u8]| {
        let mut message = Message::from_vec(&request_bytes(None)).unwrap();
        let mut edns = Edns::new();
        let option = EdnsOption::Unknown(SUBNET, value.to_vec());
        edns.set_max_payload(1232).options_mut().insert(option);
        message.set_edns(edns);
        Request::read(&message.to_vec().unwrap())
    };
    let echo = |asked: &[u8], code, depends| {
        let request = ask(asked).unwrap().unwrap();
        let mut reply = request.reply(code);
        request.add_edns(&mut reply, depends);
        let edns = reply.edns.unwrap();
        match edns.options().as_ref() {
            [(_, EdnsOption::Unknown(SUBNET, value))] => value.clone(),
            other => panic!("{other:?}"),
        }
    };
    let v4 = [0, 1, 20, 0, 10, 1, 0xff];
    assert_eq!(
        ask(&v4).unwrap().unwrap().subnet().unwrap().ip.to_string(),
        "10.1.240.0"
    );
    assert_eq!(
        echo(&v4, ResponseCode::NoError, true),
        [0, 1, 20, 20, 10, 1, 0xf0]
    );
    assert_eq!(
        echo(&v4, ResponseCode::NoError, false),
        [0, 1, 20, 0, 10, 1, 0xf0]
    );
    assert_eq!(
        echo(&v4, ResponseCode::NXDomain, true),
        [0, 1, 20, 0, 10, 1, 0xf0]
    );
    let v6 = [0, 2, 16, 0, 0xfd, 1];
    assert_eq!(
        echo(&v6, ResponseCode::NoError, true),
        [0, 2, 16, 16, 0xfd, 1]
    );
    assert_eq!(
        echo(&[0, 0, 0, 0], ResponseCode::NoError, true),
        [0, 0, 0, 0]
    );
    for wrong in [
        &[0, 1, 33, 0][..],
        &[0, 2, 129, 0],
        &[0, 3, 0, 0],
        &[0, 1, 8, 0, 1, 2, 3, 4, 5],
        &[0, 1],
    ] {
        assert!(ask(wrong).is_err(), "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..600),
        counts in proptest::collection::vec(0..3_u8, 4),
        is_request in any::<bool>(),
    ) {
        if let (true, [_, _, flags, _, rest @ ..]) = (is_request, &mut bytes[..]) {
            *flags &= 0x7f;
            for (place, count) in rest.chunks_exact_mut(2).zip(&counts) {
                place.copy_from_slice(&[0, *count]);
            }
        }
        let Ok(Some(request)) = Request::read(&bytes) else {
            return Ok(());
        };
        let reply = with_answers(&request, 3);
        let form = Form::of(&request, Transport::Udp, &DnsSettings::default());
        let written = form.write(reply).unwrap();
        prop_assert!(written.len() <= usize::from(request.payload()));
        prop_assert_eq!(&written[..2], &bytes[..2]);
        prop_assert!(Request::read(&written).unwrap().is_none());
    }

    #[test]
    fn changed_requests_are_read_or_refused(
        payload in proptest::option::of(any::<u16>()),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        length in any::<prop::sample::Index>(),
    ) {
        let mut bytes = request_bytes(payload);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(length.index(bytes.len() + 1));
        if let Ok(Some(request)) = Request::read(&bytes) {
            prop_assert!(request.question_end <= bytes.len());
            request.reply(ResponseCode::Refused).to_vec().unwrap();
        }
    }
}
