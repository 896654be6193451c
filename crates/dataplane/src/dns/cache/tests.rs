//! Which answers are cached, for which queries, and for how long.

use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message, OpCode, Query as Asked, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::rdata::{A, CNAME, NULL, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::super::message::Transport;
use super::*;

mod generated;

const SECOND: Duration = Duration::from_secs(1);
const NAME: &str = "web.service.consul.";

fn name(text: &str) -> Name {
    // Preserves the spelling.
    Name::from_ascii(text).unwrap()
}

fn question(id: u16, text: &str) -> Message {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    message.add_query(Asked::query(name(text), RecordType::A));
    message.set_edns(Edns::new());
    message
}

fn query(message: &Message) -> Query {
    Query::parse(message.to_vec().unwrap().into(), Transport::Udp).unwrap()
}

fn key(message: &Message) -> Option<Key> {
    query(message).key
}

/// An answer to `asked` without records but with EDNS.
fn nothing(asked: &Message, code: ResponseCode) -> Message {
    let mut message = Message::response(asked.metadata.id, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.metadata.response_code = code;
    message.add_queries(asked.queries.iter().cloned());
    let mut edns = Edns::new();
    edns.set_max_payload(4096).set_dnssec_ok(true);
    message.set_edns(edns);
    message
}

fn address(text: &str, ttl: u32, last: u8) -> Record {
    let data = RData::A(A(Ipv4Addr::new(10, 0, 0, last)));
    Record::from_rdata(name(text), ttl, data)
}

fn soa(ttl: u32, minimum: u32) -> Record {
    let (server, mail) = (name("ns.consul."), name("hostmaster.consul."));
    let data = SOA::new(server, mail, 1, 3600, 600, 86_400, minimum);
    Record::from_rdata(name("consul."), ttl, RData::SOA(data))
}

/// An answer with an address for each TTL.
fn addresses(asked: &Message, ttls: &[u32]) -> Message {
    let mut message = nothing(asked, ResponseCode::NoError);
    let records = ttls.iter().zip(1..);
    message.add_answers(records.map(|(ttl, last)| address(NAME, *ttl, last)));
    message
}

struct Setup {
    cache: Cache,
    start: Instant,
}

impl Setup {
    fn new() -> Self {
        Self::with(1 << 20)
    }

    fn with(bytes: usize) -> Self {
        Self {
            cache: Cache::new(bytes),
            start: Instant::now(),
        }
    }

    fn store(&mut self, asked: &Message, answer: &Message) {
        self.store_bytes(asked, &answer.to_vec().unwrap());
    }

    fn store_bytes(&mut self, asked: &Message, answer: &[u8]) {
        self.cache.store(&query(asked), answer, self.start);
    }

    fn fresh(&mut self, asked: &Message, after: Duration) -> Option<Message> {
        let reply = self.cache.fresh(&query(asked), self.start + after);
        reply.map(|reply| Message::from_vec(&reply).unwrap())
    }

    fn stale(&mut self, asked: &Message, after: Duration) -> Option<Message> {
        let reply = self.cache.stale(&query(asked), self.start + after);
        reply.map(|reply| Message::from_vec(&reply).unwrap())
    }
}

fn ttls(message: &Message) -> Vec<u32> {
    message.all_sections().map(|record| record.ttl).collect()
}

#[test]
fn an_answer_ages_becomes_stale_and_expires() {
    let mut setup = Setup::new();
    let asked = question(1, NAME);
    let mut answer = addresses(&asked, &[60, 20]);
    answer.add_additional(address("node.consul.", 300, 9));
    setup.store(&asked, &answer);
    let fresh = setup.fresh(&asked, Duration::ZERO).unwrap();
    assert_eq!(fresh, answer);
    let fresh = setup.fresh(&asked, Duration::from_millis(12_900)).unwrap();
    assert_eq!(ttls(&fresh), [48, 8, 288]);
    assert_eq!(fresh.edns, answer.edns);
    assert_eq!(setup.stale(&asked, 12 * SECOND), Some(fresh));
    assert_eq!(setup.fresh(&asked, 20 * SECOND), None);
    let stale = setup.stale(&asked, 20 * SECOND).unwrap();
    assert_eq!(ttls(&stale), [STALE_TTL; 3]);
    assert_eq!(stale.edns, answer.edns);
    let last = 20 * SECOND + STALE;
    assert!(setup.stale(&asked, last - SECOND).is_some());
    assert_eq!(setup.stale(&asked, last), None);
    assert_eq!((setup.cache.entries.len(), setup.cache.bytes), (0, 0));
}

#[test]
fn an_answer_without_ttl_is_for_outages_only() {
    let mut setup = Setup::new();
    let asked = question(1, NAME);
    setup.store(&asked, &addresses(&asked, &[60, 0]));
    assert_eq!(setup.fresh(&asked, Duration::ZERO), None);
    let stale = setup.stale(&asked, Duration::ZERO).unwrap();
    assert_eq!(ttls(&stale), [STALE_TTL; 2]);
}

#[test]
fn the_latest_answer_counts() {
    let mut setup = Setup::new();
    let asked = question(1, NAME);
    setup.store(&asked, &addresses(&asked, &[60]));
    setup.store(&asked, &addresses(&asked, &[0, 0, 0]));
    assert_eq!(setup.fresh(&asked, Duration::ZERO), None);
    let stale = setup.stale(&asked, SECOND).unwrap();
    assert_eq!(stale.answers.len(), 3);
    assert_eq!(setup.cache.entries.len(), 1);
}

#[test]
fn replies_have_the_id_and_spelling_of_the_query() {
    let mut setup = Setup::new();
    let asked = question(0x1234, NAME);
    setup.store(&asked, &addresses(&asked, &[60]));
    let again = question(0x4321, "wEb.SERVICE.Consul.");
    let reply = setup.fresh(&again, SECOND).unwrap();
    assert_eq!(reply.metadata.id, 0x4321);
    let spelt = reply.queries[0].name().to_string();
    assert_eq!(spelt, "wEb.SERVICE.Consul.");
    // The names of the records are compressed pointers to the question.
    assert_eq!(reply.answers[0].name.to_string(), spelt);
}

#[test]
fn queries_that_may_have_other_answers_have_other_keys() {
    let change = |change: &dyn Fn(&mut Message)| {
        let mut message = question(1, NAME);
        change(&mut message);
        key(&message).unwrap()
    };
    let edns = |change: &dyn Fn(&mut Edns)| {
        let mut edns = Edns::new();
        change(&mut edns);
        let mut message = question(1, NAME);
        message.set_edns(edns);
        key(&message).unwrap()
    };
    let option = |code, value: &[u8]| {
        let option = EdnsOption::Unknown(code, value.to_vec());
        edns(&|edns| edns.options_mut().insert(option.clone()))
    };
    let bytes = question(1, NAME).to_vec().unwrap();
    let over_tcp = Query::parse(bytes.into(), Transport::Tcp).unwrap();
    let over_tcp = over_tcp.key.unwrap();
    let mut keys = vec![
        change(&|_| {}),
        over_tcp,
        change(&|message| message.queries[0] = Asked::query(name("db.consul."), RecordType::A)),
        change(&|message| message.queries[0] = Asked::query(name(NAME), RecordType::SRV)),
        change(&|message| message.metadata.recursion_desired = false),
        change(&|message| message.metadata.checking_disabled = true),
        change(&|message| message.metadata.authentic_data = true),
        change(&|message| message.edns = None),
        edns(&|edns| _ = edns.set_max_payload(1232)),
        edns(&|edns| _ = edns.set_dnssec_ok(true)),
        edns(&|edns| _ = edns.set_version(1)),
        option(8, &[0, 1, 24, 0, 10, 0, 0]),
        option(8, &[0, 1, 24, 0, 10, 0, 1]),
    ];
    let count = keys.len();
    keys.sort_by(|one, other| format!("{one:?}").cmp(&format!("{other:?}")));
    keys.dedup();
    assert_eq!(keys.len(), count);
    let same = key(&question(1, NAME)).unwrap();
    for key in [
        change(&|message| message.metadata.id = 77),
        change(&|message| {
            message.queries[0] = Asked::query(name("WEB.service.consul."), RecordType::A);
        }),
        option(10, b"eight by"),
    ] {
        assert_eq!(key, same);
    }
}

#[test]
fn only_plain_questions_have_a_key() {
    let plain = question(1, NAME).to_vec().unwrap();
    let of = |bytes: &[u8]| {
        let query = Query::parse(Bytes::copy_from_slice(bytes), Transport::Tcp).unwrap();
        query.key
    };
    assert!(of(&plain).is_some());
    for length in 12..plain.len() {
        assert_eq!(of(&plain[..length]), None);
    }
    assert_eq!(of(&[&plain[..], &[0]].concat()), None);
    let changed = |at: usize, to: u8| {
        let mut bytes = plain.clone();
        bytes[at] = to;
        of(&bytes)
    };
    // Another operation, and counts that do not match one question with EDNS.
    for (at, to) in [(2, 0x29), (5, 0), (5, 2), (7, 1), (9, 1), (11, 0), (11, 2)] {
        assert_eq!(changed(at, to), None, "byte {at} is {to}");
    }
    // The record becomes a signature.
    let kind = plain.len() - 10;
    assert_eq!(plain[kind..][..2], [0, 41]);
    assert_eq!(changed(kind + 1, 250), None);
    let mut transfer = question(1, NAME);
    transfer.queries[0] = Asked::query(name(NAME), RecordType::AXFR);
    assert_eq!(key(&transfer), None);
}

#[test]
fn negative_answers_are_kept_for_their_soa_time() {
    let asked = question(1, NAME);
    for code in [ResponseCode::NXDomain, ResponseCode::NoError] {
        for (ttl, minimum) in [(20, 300), (300, 20)] {
            let mut setup = Setup::new();
            let mut absence = nothing(&asked, code);
            absence.add_authority(soa(ttl, minimum));
            setup.store(&asked, &absence);
            let reply = setup.fresh(&asked, 5 * SECOND).unwrap();
            assert_eq!(reply.metadata.response_code, code);
            assert_eq!(ttls(&reply), [15]);
            assert_eq!(setup.fresh(&asked, 20 * SECOND), None);
            let stale = setup.stale(&asked, 20 * SECOND).unwrap();
            assert_eq!(ttls(&stale), [STALE_TTL]);
        }
    }
}

#[test]
fn answers_that_cannot_be_cached_remove_the_entry() {
    let asked = question(1, NAME);
    let good = addresses(&asked, &[60]);
    let mut alias = nothing(&asked, ResponseCode::NXDomain);
    let target = RData::CNAME(CNAME(name("gone.consul.")));
    alias.add_answer(Record::from_rdata(name(NAME), 60, target));
    let mut cookie = good.clone();
    let option = EdnsOption::Unknown(10, b"eight by".to_vec());
    cookie.edns.as_mut().unwrap().options_mut().insert(option);
    let mut extended = good.clone();
    extended.metadata.response_code = ResponseCode::BADVERS;
    let mut signed = good.clone();
    let signature = RData::Unknown {
        code: RecordType::Unknown(24),
        rdata: NULL::with(vec![0; 20]),
    };
    signed.add_additional(Record::from_rdata(Name::root(), 0, signature));
    let mut other = good.clone();
    other.queries[0] = Asked::query(name("db.service.consul."), RecordType::A);
    let mut kind = good.clone();
    kind.queries[0] = Asked::query(name(NAME), RecordType::AAAA);
    let mut unasked = good.clone();
    unasked.queries.clear();
    let messages = [
        nothing(&asked, ResponseCode::Refused),
        nothing(&asked, ResponseCode::NotImp),
        nothing(&asked, ResponseCode::NXDomain),
        nothing(&asked, ResponseCode::NoError),
        alias,
        cookie,
        extended,
        signed,
        other,
        kind,
        unasked,
    ];
    let good = good.to_vec().unwrap();
    let mut all = messages.map(|message| message.to_vec().unwrap()).to_vec();
    all.push(good[..good.len() - 1].to_vec());
    all.push([&good[..], &[0]].concat());
    for (index, bytes) in all.into_iter().enumerate() {
        let mut setup = Setup::new();
        setup.store_bytes(&asked, &good);
        assert_eq!(setup.cache.entries.len(), 1);
        setup.store_bytes(&asked, &bytes);
        assert_eq!(setup.cache.entries.len(), 0, "answer {index}");
    }
}

#[test]
fn messages_that_are_not_answers_are_ignored() {
    let asked = question(1, NAME);
    let good = addresses(&asked, &[60]);
    let mut other = good.clone();
    other.metadata.id = 2;
    let all = [
        nothing(&asked, ResponseCode::ServFail).to_vec().unwrap(),
        other.to_vec().unwrap(),
        asked.to_vec().unwrap(),
        good.to_vec().unwrap()[..11].to_vec(),
        Vec::new(),
    ];
    for bytes in all {
        let mut setup = Setup::new();
        setup.store(&asked, &good);
        setup.store_bytes(&asked, &bytes);
        assert_eq!(setup.fresh(&asked, Duration::ZERO), Some(good.clone()));
    }
}

#[test]
fn no_answer_is_fresh_for_longer_than_the_limit() {
    let mut setup = Setup::new();
    let asked = question(1, NAME);
    setup.store(&asked, &addresses(&asked, &[u32::MAX]));
    let hour = Duration::from_secs(3600);
    assert!(setup.fresh(&asked, hour - SECOND).is_some());
    assert_eq!(setup.fresh(&asked, hour), None);
}

#[test]
fn the_least_recently_used_entry_is_evicted_first() {
    let questions = ["a.consul.", "b.consul.", "c.consul.", "d.consul."];
    let [a, b, c, d] = questions.map(|name| question(1, name));
    let answer = |asked: &Message| {
        let mut message = nothing(asked, ResponseCode::NXDomain);
        message.add_authority(soa(60, 60));
        message
    };
    let mut setup = Setup::new();
    setup.store(&a, &answer(&a));
    let cost = setup.cache.bytes;
    let mut setup = Setup::with(3 * cost);
    for asked in [&a, &b, &c] {
        setup.store(asked, &answer(asked));
    }
    assert!(setup.fresh(&a, SECOND).is_some());
    assert!(setup.stale(&b, 99 * SECOND).is_some());
    setup.store(&d, &answer(&d));
    let there = [&a, &b, &c, &d].map(|asked| setup.stale(asked, SECOND).is_some());
    assert_eq!(there, [true, true, false, true]);
    assert_eq!(setup.cache.entries.len(), 3);
}

#[test]
fn the_capacity_may_be_zero() {
    let asked = question(1, NAME);
    for bytes in [0, OVERHEAD] {
        let mut setup = Setup::with(bytes);
        setup.store(&asked, &addresses(&asked, &[60]));
        assert_eq!((setup.cache.entries.len(), setup.cache.bytes), (0, 0));
    }
}
