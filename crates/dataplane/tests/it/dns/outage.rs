//! Cached answers: within their TTL, and during outages.

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use hickory_proto::op::{Edns, Message, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record};
use legate_dataplane::dns::Limits;
use legate_dataplane::dns::cache::STALE_TTL;
use legate_testkit::fake_server::{Call, FakeServer, Script};
use legate_testkit::network::Cuttable;
use tonic::Status;

use super::harness::*;

const SOON: Duration = Duration::from_millis(50);

/// Limits under which an outage is detected at once.
fn brief() -> Limits {
    Limits {
        connection: SOON,
        ..limits()
    }
}

/// Sets the server's answer.
fn serve(script: &Script, ttl: u32, last: u8) {
    script.dns(move |asked| Ok(answer(&asked.msg, ttl, last)));
}

/// An answer with one address, whose last byte identifies it.
fn answer(query: &[u8], ttl: u32, last: u8) -> Bytes {
    let query = Message::from_vec(query).unwrap();
    let mut message = Message::response(query.metadata.id, query.metadata.op_code);
    message.metadata.recursion_desired = true;
    let name = query.queries[0].name().clone();
    message.add_queries(query.queries);
    let data = RData::A(A(Ipv4Addr::new(10, 0, 0, last)));
    message.add_answer(Record::from_rdata(name, ttl, data));
    if query.edns.is_some() {
        message.set_edns(Edns::new());
    }
    message.to_vec().unwrap().into()
}

/// Id, TTL, and last byte of the address.
fn read(reply: &[u8]) -> (u16, u32, u8) {
    let message = Message::from_vec(reply).unwrap();
    assert_eq!(message.metadata.response_code, ResponseCode::NoError);
    assert_eq!(message.answers.len(), 1);
    let RData::A(A(address)) = message.answers[0].data else {
        panic!("{message} has no address");
    };
    let [.., last] = address.octets();
    (message.metadata.id, message.answers[0].ttl, last)
}

#[tokio::test]
async fn an_outage_is_bridged_and_over_when_there_is_a_server_again() {
    let mut setup = start(brief()).await;
    let (udp, mut tcp) = (setup.udp().await, setup.tcp().await);
    let [first, second, third] = [1, 2, 3].map(|id| query(id, "web.service.consul."));
    // No cached answer is used while the server responds.
    for last in [1, 2, 3] {
        serve(setup.server.script(), 0, last);
        assert_eq!(read(&udp.ask(&first).await), (1, 0, last));
        assert_eq!(read(&tcp.ask(&first).await.unwrap()), (1, 0, last));
    }
    assert_eq!(setup.forwarded().len(), 6);
    setup.server.stop().await;
    setup.disconnected().await;
    for _ in 0..3 {
        assert_eq!(read(&udp.ask(&second).await), (2, STALE_TTL, 3));
        assert_eq!(read(&tcp.ask(&second).await.unwrap()), (2, STALE_TTL, 3));
    }
    // A name without an earlier query is unknown.
    let unknown = query(4, "db.service.consul.");
    assert_eq!(declined(&udp.ask(&unknown).await, &unknown), NO_SERVER);
    serve(setup.server.script(), 0, 4);
    setup.server.restart().await;
    setup.session.connected().await.unwrap();
    assert_eq!(read(&udp.ask(&third).await), (3, 0, 4));
    assert_eq!(read(&tcp.ask(&third).await.unwrap()), (3, 0, 4));
    for transport in ["udp", "tcp"] {
        assert_eq!(setup.count(transport, "answered"), 4);
        assert_eq!(setup.count(transport, "stale"), 3);
        assert_eq!(setup.count(transport, "cached"), 0);
    }
}

#[tokio::test]
async fn an_answer_is_cached_for_its_ttl() {
    let mut setup = start(brief()).await;
    let client = setup.udp().await;
    serve(setup.server.script(), 3600, 1);
    let (first, second) = (
        query(1, "web.service.consul."),
        query(2, "Web.SERVICE.consul."),
    );
    assert_eq!(read(&client.ask(&first).await), (1, 3600, 1));
    let reply = client.ask(&second).await;
    let (id, ttl, last) = read(&reply);
    assert_eq!((id, last), (2, 1));
    assert!(ttl > 3600 - 60, "{ttl}");
    let name = Message::from_vec(&reply).unwrap().queries[0]
        .name()
        .to_string();
    assert_eq!(name, "Web.SERVICE.consul.");
    assert_eq!(setup.forwarded().len(), 1);
    assert_eq!(setup.count("udp", "cached"), 1);
    // The TTL is valid without a server, too.
    setup.server.stop().await;
    setup.disconnected().await;
    let (id, ttl, _) = read(&client.ask(&first).await);
    assert!(id == 1 && ttl > 3600 - 60, "{ttl}");
    assert_eq!(setup.count("udp", "cached"), 2);
    assert_eq!(setup.count("udp", "stale"), 0);
}

#[tokio::test]
async fn answers_of_a_server_are_never_replaced() {
    let setup = start(brief()).await;
    let client = setup.udp().await;
    let query = query(1, "web.service.consul.");
    serve(setup.server.script(), 0, 1);
    client.ask(&query).await;
    let script = setup.server.script();
    for status in [Status::permission_denied("no"), Status::internal("bad")] {
        script.fail_next(Call::Dns, status);
        assert_eq!(declined(&client.ask(&query).await, &query), SERVER_FAILED);
    }
    for code in [ResponseCode::ServFail, ResponseCode::NXDomain] {
        let mut message = Message::from_vec(&answer(&query, 0, 1)).unwrap();
        message.metadata.response_code = code;
        message.answers.clear();
        let said = Bytes::from(message.to_vec().unwrap());
        let served = said.clone();
        script.dns(move |_| Ok(served.clone()));
        assert_eq!(client.ask(&query).await, said);
    }
    assert_eq!(setup.count("udp", "stale"), 0);
}

#[tokio::test]
async fn a_refused_session_is_not_an_outage() {
    let setup = start(brief()).await;
    let client = setup.udp().await;
    let query = query(1, "web.service.consul.");
    serve(setup.server.script(), 0, 1);
    client.ask(&query).await;
    setup.server.script().revoke_tokens();
    setup.server.cut_connections();
    setup.disconnected().await;
    until("the token is refused", || {
        let state = setup.session.state();
        format!("{state:?}").contains("rejects the ACL token")
    })
    .await;
    assert_eq!(declined(&client.ask(&query).await, &query), NO_SERVER);
    assert_eq!(setup.count("udp", "stale"), 0);
}

#[tokio::test]
async fn a_server_that_cannot_serve_counts_as_an_outage() {
    let setup = start(brief()).await;
    let client = setup.udp().await;
    let query = query(1, "web.service.consul.");
    serve(setup.server.script(), 0, 1);
    client.ask(&query).await;
    let unavailable = Status::unavailable("no leader");
    setup.server.script().fail_always(Call::Dns, unavailable);
    assert_eq!(read(&client.ask(&query).await), (1, STALE_TTL, 1));
}

#[tokio::test]
async fn a_server_that_is_too_slow_answers_the_next_query() {
    let server = FakeServer::plaintext().await;
    let network = Cuttable::start(server.address()).await;
    let slow = Limits {
        stale_after: SOON,
        ..limits()
    };
    let setup = start_at(server, network.address(), options(slow)).await;
    let client = setup.udp().await;
    let asked = query(1, "web.service.consul.");
    serve(setup.server.script(), 0, 1);
    assert_eq!(read(&client.ask(&asked).await), (1, 0, 1));
    serve(setup.server.script(), 3600, 2);
    network.freeze();
    assert_eq!(read(&client.ask(&asked).await), (1, STALE_TTL, 1));
    // All wait for one call, which occupies one slot.
    for id in 2..6 {
        let again = query(id, "web.service.consul.");
        assert_eq!(read(&client.ask(&again).await), (id, STALE_TTL, 1));
    }
    assert_eq!(setup.in_flight("udp"), 1);
    network.restore().await;
    until("the answer is here", || setup.in_flight("udp") == 0).await;
    let (id, ttl, last) = read(&client.ask(&asked).await);
    assert!((id, last) == (1, 2) && ttl > STALE_TTL, "{ttl}");
    assert_eq!(setup.forwarded().len(), 2);
    assert_eq!(setup.count("udp", "stale"), 5);
    assert_eq!(setup.count("udp", "cached"), 1);
}

#[tokio::test]
async fn a_slow_call_does_not_hold_up_the_stop() {
    let setup = start(Limits {
        stale_after: SOON,
        drain: SOON,
        ..limits()
    })
    .await;
    let client = setup.udp().await;
    let query = query(1, "web.service.consul.");
    serve(setup.server.script(), 0, 1);
    client.ask(&query).await;
    setup.server.script().hang(Call::Dns);
    assert_eq!(read(&client.ask(&query).await), (1, STALE_TTL, 1));
    assert_eq!(setup.in_flight("udp"), 1);
    setup.scope.stop(PATIENCE).await.unwrap();
    assert_eq!(setup.in_flight("udp"), 0);
}

#[tokio::test]
async fn answers_are_for_clients_that_take_the_same() {
    let mut setup = start(brief()).await;
    let client = setup.udp().await;
    let plain = {
        let mut message = Message::from_vec(&query(1, "web.service.consul.")).unwrap();
        message.edns = None;
        message.to_vec().unwrap()
    };
    let sized = |size| {
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        let mut message = Message::from_vec(&plain).unwrap();
        message.set_edns(edns);
        message.to_vec().unwrap()
    };
    serve(setup.server.script(), 0, 1);
    client.ask(&sized(4096)).await;
    setup.server.stop().await;
    setup.disconnected().await;
    assert_eq!(read(&client.ask(&sized(4096)).await), (1, STALE_TTL, 1));
    for other in [sized(512), sized(1232), plain.clone()] {
        let reply = client.ask(&other).await;
        let code = Message::from_vec(&reply).unwrap().metadata.response_code;
        assert_eq!(code, ResponseCode::ServFail);
    }
}

#[tokio::test]
async fn the_same_question_at_the_same_time_is_one_call() {
    let server = FakeServer::plaintext().await;
    let network = Cuttable::start(server.address()).await;
    let setup = start_at(server, network.address(), options(limits())).await;
    serve(setup.server.script(), 0, 1);
    network.freeze();
    let client = setup.udp().await;
    let mut gone = setup.tcp().await;
    let mut stays = setup.tcp().await;
    gone.send(&[&query(7, "web.service.consul.")]).await;
    until("the first is there", || setup.in_flight("tcp") == 1).await;
    stays.send(&[&query(8, "web.service.consul.")]).await;
    for id in 0..20 {
        client.send(&query(id, "web.service.consul.")).await;
    }
    until("all are there", || {
        setup.in_flight("udp") == 20 && setup.in_flight("tcp") == 2
    })
    .await;
    // The call continues when its first client disconnects.
    gone.0.set_zero_linger().unwrap();
    drop(gone);
    until("one has gone", || setup.in_flight("tcp") == 1).await;
    network.restore().await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        let (id, _, last) = read(&client.receive().await);
        assert_eq!(last, 1);
        ids.push(id);
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    assert_eq!(read(&stays.receive().await.unwrap()), (8, 0, 1));
    // One for each transport, because their answers may differ.
    assert_eq!(setup.forwarded().len(), 2);
    // Later queries start a new call.
    client.ask(&query(21, "web.service.consul.")).await;
    assert_eq!(setup.forwarded().len(), 3);
}

#[tokio::test]
async fn answers_are_as_long_as_the_server_makes_them() {
    let setup = start(limits()).await;
    let client = setup.udp().await;
    for (size, length) in [(512, 600), (1232, 512), (1232, 1400), (4096, 9000)] {
        let mut message = Message::from_vec(&query(1, "many.service.consul.")).unwrap();
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        message.set_edns(edns);
        let asked = message.to_vec().unwrap();
        // The trailing bytes concern the client only.
        let mut said = answer(&asked, 0, 1).to_vec();
        said.resize(length, 0);
        let served = Bytes::from(said.clone());
        setup.server.script().dns(move |_| Ok(served.clone()));
        assert_eq!(client.ask(&asked).await, said);
        // The server gets the size that the client accepts.
        assert_eq!(setup.forwarded().last().unwrap().msg, asked);
    }
    assert_eq!(setup.count("udp", "answered"), 4);
}
