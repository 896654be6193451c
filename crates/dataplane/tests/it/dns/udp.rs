//! Over UDP, and rules for both transports: which server is queried, how often, and the reply.

use std::net::Ipv6Addr;
use std::time::Duration;

use bytes::Bytes;
use hickory_proto::op::{Message, ResponseCode};
use legate_api::dns::Protocol;
use legate_dataplane::dns::{DnsOptions, Limits};
use legate_testkit::fake_server::Call;
use legate_testkit::network::free_port;
use tonic::Status;

use super::harness::*;

#[tokio::test]
async fn messages_pass_unchanged_with_token_and_tenancy() {
    let setup = start_with(DnsOptions {
        namespace: "team".into(),
        partition: "east".into(),
        ..options(limits())
    })
    .await;
    let answer = noise(0x1234, 9_216);
    let served = Bytes::from(answer.clone());
    setup.server.script().dns(move |_| Ok(served.clone()));
    // Longer than the limit without EDNS.
    let query = long_query(0x4321, 4_096);
    assert_eq!(setup.udp().await.ask(&query).await, answer);
    let forwarded = setup.forwarded();
    assert_eq!(forwarded.len(), 1);
    assert_eq!(forwarded[0].msg, query);
    assert_eq!(forwarded[0].protocol(), Protocol::Udp);
    let call = &setup.server.script().calls(Call::Dns)[0];
    assert_eq!(call.token.as_deref(), Some(TOKEN));
    assert_eq!(call.metadata.get("x-consul-namespace").unwrap(), "team");
    assert_eq!(call.metadata.get("x-consul-partition").unwrap(), "east");
    assert!(call.metadata.contains_key("grpc-timeout"));
    assert_eq!(setup.count("udp", "answered"), 1);
    assert_eq!(setup.in_flight("udp"), 0);
}

#[tokio::test]
async fn an_empty_tenancy_is_sent_too() {
    let setup = start(limits()).await;
    let query = query(1, "web.service.consul.");
    assert_eq!(setup.udp().await.ask(&query).await, answer_to(&query));
    let call = &setup.server.script().calls(Call::Dns)[0];
    assert_eq!(call.metadata.get("x-consul-namespace").unwrap(), "");
    assert_eq!(call.metadata.get("x-consul-partition").unwrap(), "");
}

#[tokio::test]
async fn replies_are_sent_to_their_clients() {
    let setup = start(limits()).await;
    let clients = [setup.udp().await, setup.udp().await, setup.udp().await];
    let queries = [1, 2, 3].map(|id| query(id, "web.service.consul."));
    for (client, query) in clients.iter().zip(&queries) {
        client.send(query).await;
    }
    for (client, query) in clients.iter().zip(&queries).rev() {
        assert_eq!(client.receive().await, answer_to(query));
    }
}

#[tokio::test]
async fn answers_too_large_for_a_datagram_are_truncated() {
    let setup = start(limits()).await;
    let client = setup.udp().await;
    let largest = noise(7, 65_507);
    let served = Bytes::from(largest.clone());
    setup.server.script().dns(move |_| Ok(served.clone()));
    let query = query(7, "many.service.consul.");
    assert_eq!(client.ask(&query).await, largest);
    setup.server.script().dns(|_| Ok(noise(7, 65_508).into()));
    let reply = Message::from_vec(&client.ask(&query).await).unwrap();
    assert!(reply.metadata.truncation);
    assert_eq!(reply.metadata.id, 7);
    assert_eq!(reply.metadata.response_code, ResponseCode::NoError);
    assert_eq!(reply.queries, Message::from_vec(&query).unwrap().queries);
    assert_eq!(setup.count("udp", "truncated"), 1);
}

#[tokio::test]
async fn messages_that_are_not_queries_are_neither_forwarded_nor_answered() {
    let setup = start(limits()).await;
    let client = setup.udp().await;
    client.send(b"").await;
    client.send(b"hello").await;
    client
        .send(&answer_to(&query(1, "web.service.consul.")))
        .await;
    let query = query(2, "web.service.consul.");
    assert_eq!(client.ask(&query).await, answer_to(&query));
    assert_eq!(setup.forwarded().len(), 1);
    assert_eq!(setup.count("udp", "ignored"), 3);
}

#[tokio::test]
async fn errors_of_the_server_are_reported_and_change_nothing() {
    let setup = start(limits()).await;
    let client = setup.udp().await;
    let generation = setup.generation();
    let query = query(5, "web.service.consul.");
    for status in [
        Status::internal("bad message"),
        Status::permission_denied("no"),
        Status::invalid_argument("?"),
    ] {
        setup.server.script().fail_next(Call::Dns, status);
        assert_eq!(declined(&client.ask(&query).await, &query), SERVER_FAILED);
    }
    setup.server.script().dns(|_| Ok(Bytes::new()));
    assert_eq!(declined(&client.ask(&query).await, &query), SERVER_FAILED);
    assert_eq!(setup.count("udp", "server_error"), 4);
    assert_eq!(setup.forwarded().len(), 4);
    assert_eq!(setup.generation(), generation);
}

#[tokio::test]
async fn a_query_that_cannot_be_read_gets_a_format_error() {
    let setup = start(limits()).await;
    let whole = query(0x0102, "web.service.consul.");
    let (udp, mut tcp) = (setup.udp().await, setup.tcp().await);
    for malformed in [&whole[..20], &whole[..whole.len() - 1], &noise(0x0102, 40)] {
        for reply in [udp.ask(malformed).await, tcp.ask(malformed).await.unwrap()] {
            let reply = Message::from_vec(&reply).unwrap();
            assert_eq!(reply.metadata.id, 0x0102);
            assert_eq!(reply.metadata.response_code, ResponseCode::FormErr);
        }
    }
    assert!(setup.forwarded().is_empty(), "a query was forwarded");
    for transport in ["udp", "tcp"] {
        assert_eq!(setup.count(transport, "malformed"), 3);
    }
}

#[tokio::test]
async fn the_loss_of_a_server_is_not_noticed() {
    let setup = start(limits()).await;
    let generation = setup.generation();
    for status in [
        Status::unavailable("shutting down"),
        Status::resource_exhausted("too busy"),
    ] {
        setup.server.script().fail_next(Call::Dns, status);
        let query = query(6, "web.service.consul.");
        assert_eq!(setup.udp().await.ask(&query).await, answer_to(&query));
    }
    assert_eq!(setup.forwarded().len(), 4);
    assert_eq!(
        setup.generation(),
        generation.map(|generation| generation + 2)
    );
    assert_eq!(setup.count("udp", "answered"), 2);
}

#[tokio::test]
async fn a_broken_connection_costs_no_query() {
    let setup = start(limits()).await;
    let query = query(6, "web.service.consul.");
    let (udp, mut tcp) = (setup.udp().await, setup.tcp().await);
    setup.server.script().hang_next(Call::Dns);
    setup.server.script().hang_next(Call::Dns);
    udp.send(&query).await;
    tcp.send(&[&query]).await;
    setup.server.script().wait_for_calls(Call::Dns, 2).await;
    setup.server.cut_connections();
    assert_eq!(udp.receive().await, answer_to(&query));
    assert_eq!(tcp.receive().await, Some(answer_to(&query)));
    assert_eq!(setup.forwarded().len(), 4);
}

#[tokio::test]
async fn a_query_is_sent_at_most_twice() {
    let setup = start(limits()).await;
    setup
        .server
        .script()
        .fail_always(Call::Dns, Status::unavailable("always"));
    let query = query(6, "web.service.consul.");
    assert_eq!(
        declined(&setup.udp().await.ask(&query).await, &query),
        SERVER_FAILED
    );
    assert_eq!(setup.forwarded().len(), 2);
}

#[tokio::test]
async fn without_servers_clients_get_errors_until_there_is_one_again() {
    let patience = Duration::from_millis(100);
    let mut setup = start(Limits {
        connection: patience,
        ..limits()
    })
    .await;
    let client = setup.udp().await;
    let query = query(8, "web.service.consul.");
    setup.server.stop().await;
    setup.disconnected().await;
    for _ in 0..3 {
        assert_eq!(declined(&client.ask(&query).await, &query), NO_SERVER);
    }
    assert_eq!(
        declined(&setup.tcp().await.ask(&query).await.unwrap(), &query),
        NO_SERVER
    );
    setup.server.restart().await;
    setup.session.connected().await.unwrap();
    assert_eq!(client.ask(&query).await, answer_to(&query));
    assert_eq!(setup.count("udp", "no_server"), 3);
    assert_eq!(setup.count("tcp", "no_server"), 1);
}

#[tokio::test]
async fn a_short_outage_is_waited_for() {
    let mut setup = start(limits()).await;
    let client = setup.udp().await;
    let query = query(9, "web.service.consul.");
    setup.server.stop().await;
    setup.disconnected().await;
    client.send(&query).await;
    until("the query waits", || setup.in_flight("udp") == 1).await;
    setup.server.restart().await;
    assert_eq!(client.receive().await, answer_to(&query));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_waited_for_longer_than_the_deadline() {
    let deadline = Duration::from_millis(100);
    let setup = start(Limits {
        query: deadline,
        ..limits()
    })
    .await;
    let client = setup.udp().await;
    let generation = setup.generation();
    let query = query(10, "web.service.consul.");
    setup.server.script().hang(Call::Dns);
    assert_eq!(declined(&client.ask(&query).await, &query), SERVER_FAILED);
    assert_eq!(setup.count("udp", "timeout"), 1);
    assert_eq!(setup.in_flight("udp"), 0);
    // One slow name does not mean that the server is down.
    assert_eq!(setup.generation(), generation);
}

#[tokio::test]
async fn too_many_queries_fail_at_once_and_affect_no_others() {
    let setup = start(Limits {
        udp_queries: 2,
        query: Duration::from_secs(5),
        ..limits()
    })
    .await;
    let (patient, client) = (setup.udp().await, setup.udp().await);
    let query = query(11, "web.service.consul.");
    setup.server.script().hang_next(Call::Dns);
    setup.server.script().hang_next(Call::Dns);
    let hanging = queries::<2>();
    for query in &hanging {
        patient.send(query).await;
    }
    setup.server.script().wait_for_calls(Call::Dns, 2).await;
    assert_eq!(setup.in_flight("udp"), 2);
    for _ in 0..50 {
        assert_eq!(declined(&client.ask(&query).await, &query), OVERLOADED);
    }
    assert_eq!(setup.count("udp", "overloaded"), 50);
    // TCP has its own slots.
    assert_eq!(setup.tcp().await.ask(&query).await, Some(answer_to(&query)));
    assert_eq!(setup.forwarded().len(), 3);
    // The slots are released.
    let mut replies = [patient.receive().await, patient.receive().await];
    replies.sort();
    for (reply, query) in replies.iter().zip(&hanging) {
        assert_eq!(declined(reply, query), SERVER_FAILED);
    }
    assert_eq!(client.ask(&query).await, answer_to(&query));
}

#[tokio::test]
async fn a_closed_session_is_reported() {
    let setup = start(limits()).await;
    setup.session.close(PATIENCE).await;
    let query = query(12, "web.service.consul.");
    assert_eq!(
        declined(&setup.udp().await.ask(&query).await, &query),
        NO_SERVER
    );
}

#[tokio::test]
async fn a_port_is_taken_for_both_transports() {
    let setup = start(limits()).await;
    let address = ([127, 0, 0, 1], free_port()).into();
    let both = DnsOptions {
        address,
        ..options(limits())
    };
    let proxy = setup.another(both.clone()).await.unwrap();
    assert_eq!((proxy.udp, proxy.tcp), (address, address));
    let error = setup.another(both).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("error listening for udp") && text.contains(&address.to_string()),
        "{text}"
    );
    assert!(text.contains("-consul-dns-bind-port"), "{text}");
}

#[tokio::test]
async fn options_that_cannot_work_are_refused() {
    let setup = start(limits()).await;
    let error = setup
        .another(DnsOptions {
            partition: "öst".into(),
            ..options(limits())
        })
        .await
        .unwrap_err();
    assert!(error.to_string().contains("partition \"öst\""), "{error}");
}

#[tokio::test]
async fn ipv6_is_served() {
    let address = (Ipv6Addr::LOCALHOST, 0).into();
    if tokio::net::UdpSocket::bind(address).await.is_err() {
        return println!("not run: this machine has no IPv6");
    }
    let setup = start_with(DnsOptions {
        address,
        ..options(limits())
    })
    .await;
    let query = query(13, "web.service.consul.");
    assert_eq!(setup.udp().await.ask(&query).await, answer_to(&query));
    assert_eq!(setup.tcp().await.ask(&query).await, Some(answer_to(&query)));
}
