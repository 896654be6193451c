//! Specifics of TCP: framing, pipelining, and misbehaving clients.

use std::time::Duration;

use bytes::Bytes;
use legate_api::dns::Protocol;
use legate_dataplane::dns::Limits;
use legate_testkit::fake_server::Call;
use tokio::io::AsyncWriteExt;

use super::harness::*;

#[tokio::test]
async fn messages_of_every_size_pass_unchanged() {
    let setup = start(limits()).await;
    let mut client = setup.tcp().await;
    for (asked, answered) in [(32, 12), (100, 65_467), (65_535, 65_535)] {
        let answer = noise(0x1111, answered);
        let served = Bytes::from(answer.clone());
        setup.server.script().dns(move |_| Ok(served.clone()));
        let query = long_query(0x2222, asked);
        assert_eq!(client.ask(&query).await, Some(answer));
        let forwarded = setup.forwarded().pop().unwrap();
        assert_eq!(forwarded.msg, query);
        assert_eq!(forwarded.protocol(), Protocol::Tcp);
    }
    assert_eq!(setup.count("tcp", "answered"), 3);
}

#[tokio::test]
async fn a_query_may_come_in_pieces() {
    let setup = start(limits()).await;
    let mut client = setup.tcp().await;
    let query = query(3, "web.service.consul.");
    client.0.set_nodelay(true).unwrap();
    for byte in [&[0, query.len() as u8], &query[..]].concat() {
        client.send_raw(&[byte]).await;
    }
    assert_eq!(client.receive().await, Some(answer_to(&query)));
}

#[tokio::test]
async fn pipelined_queries_do_not_wait_for_each_other() {
    let setup = start(Limits {
        query: Duration::from_secs(2),
        ..limits()
    })
    .await;
    let mut client = setup.tcp().await;
    let queries = queries::<4>();
    setup.server.script().hang_next(Call::Dns);
    client.send(&queries.each_ref().map(Vec::as_slice)).await;
    let mut replies = Vec::new();
    for _ in 0..3 {
        replies.push(client.receive().await.unwrap());
    }
    // The network determines which query hangs.
    let hung = client.receive().await.unwrap();
    let hung = queries
        .iter()
        .find(|query| query[..2] == hung[..2])
        .inspect(|query| {
            assert_eq!(declined(&hung, query), SERVER_FAILED);
        });
    replies.sort();
    let answered = queries.iter().filter(|query| Some(*query) != hung);
    assert_eq!(
        replies,
        answered.map(|query| answer_to(query)).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn one_connection_cannot_take_all_slots() {
    let setup = start(Limits {
        pipeline: 2,
        ..limits()
    })
    .await;
    let mut greedy = setup.tcp().await;
    let query = query(4, "web.service.consul.");
    setup.server.script().hang_next(Call::Dns);
    setup.server.script().hang_next(Call::Dns);
    greedy
        .send(&queries::<100>().each_ref().map(Vec::as_slice))
        .await;
    setup.server.script().wait_for_calls(Call::Dns, 2).await;
    for _ in 0..10 {
        assert_eq!(setup.tcp().await.ask(&query).await, Some(answer_to(&query)));
    }
    assert_eq!(setup.forwarded().len(), 12);
    assert_eq!(setup.in_flight("tcp"), 2);
}

#[tokio::test]
async fn queries_of_a_disconnected_client_are_cancelled() {
    let setup = start(limits()).await;
    let mut client = setup.tcp().await;
    setup.server.script().hang(Call::Dns);
    client
        .send(&queries::<2>().each_ref().map(Vec::as_slice))
        .await;
    setup.server.script().wait_for_calls(Call::Dns, 2).await;
    assert_eq!(setup.in_flight("tcp"), 2);
    // An orderly shutdown would only announce the end of the queries.
    client.0.set_zero_linger().unwrap();
    drop(client);
    until("its queries are given up", || setup.in_flight("tcp") == 0).await;
    assert_eq!(setup.count("tcp", "timeout"), 0);
}

#[tokio::test]
async fn queries_behind_a_full_pipeline_are_answered_in_time() {
    let setup = start(Limits {
        pipeline: 2,
        ..limits()
    })
    .await;
    let mut client = setup.tcp().await;
    let query = query(4, "web.service.consul.");
    client.send(&[&query[..]; 100]).await;
    for _ in 0..100 {
        assert_eq!(client.receive().await, Some(answer_to(&query)));
    }
}

#[tokio::test]
async fn too_many_queries_fail_at_once_and_affect_no_others() {
    let setup = start(Limits {
        tcp_queries: 1,
        ..limits()
    })
    .await;
    let (mut patient, mut client) = (setup.tcp().await, setup.tcp().await);
    let query = query(5, "web.service.consul.");
    setup.server.script().hang_next(Call::Dns);
    patient.send(&[&query]).await;
    setup.server.script().wait_for_calls(Call::Dns, 1).await;
    for _ in 0..20 {
        assert_eq!(
            declined(&client.ask(&query).await.unwrap(), &query),
            OVERLOADED
        );
    }
    assert_eq!(setup.count("tcp", "overloaded"), 20);
    assert_eq!(setup.udp().await.ask(&query).await, answer_to(&query));
}

#[tokio::test]
async fn too_many_connections_are_closed_at_once() {
    let setup = start(Limits {
        tcp_connections: 1,
        ..limits()
    })
    .await;
    let query = query(6, "web.service.consul.");
    let mut first = setup.tcp().await;
    assert_eq!(first.ask(&query).await, Some(answer_to(&query)));
    for _ in 0..3 {
        assert_eq!(setup.tcp().await.receive().await, None);
    }
    assert_eq!(first.ask(&query).await, Some(answer_to(&query)));
    drop(first);
    until_served(&setup, &query).await;
}

/// Reconnects until the connection is accepted.
async fn until_served(setup: &Setup, query: &[u8]) {
    let served = async {
        loop {
            let mut client = setup.tcp().await;
            let framed = [&[0, query.len() as u8], query].concat();
            if client.0.write_all(&framed).await.is_ok() && client.receive().await.is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, served)
        .await
        .expect("a place becomes free");
}

#[tokio::test]
async fn an_answer_without_a_length_is_a_failure_of_the_server() {
    let setup = start(limits()).await;
    let mut client = setup.tcp().await;
    let query = query(7, "many.service.consul.");
    setup.server.script().dns(|_| Ok(vec![0; 65_536].into()));
    for _ in 0..2 {
        assert_eq!(
            declined(&client.ask(&query).await.unwrap(), &query),
            SERVER_FAILED
        );
    }
    assert_eq!(setup.count("tcp", "server_error"), 2);
}

#[tokio::test]
async fn a_message_that_is_not_a_query_ends_the_connection_after_earlier_replies() {
    let setup = start(limits()).await;
    let query = query(8, "web.service.consul.");
    for garbage in [&b""[..], b"GET / HTTP", &answer_to(&query)] {
        let mut client = setup.tcp().await;
        client.send(&[&query, garbage, &query]).await;
        assert_eq!(client.receive().await, Some(answer_to(&query)));
        assert_eq!(client.receive().await, None);
    }
    assert_eq!(setup.count("tcp", "ignored"), 3);
    assert_eq!(setup.forwarded().len(), 3);
}

#[tokio::test]
async fn a_client_that_has_sent_everything_gets_everything() {
    let setup = start(limits()).await;
    let queries = queries::<2>();
    let mut client = setup.tcp().await;
    client.send(&queries.each_ref().map(Vec::as_slice)).await;
    // The beginning of a third query that is never completed.
    client.send_raw(&[0, 40, 1, 2, 3]).await;
    client.0.shutdown().await.unwrap();
    let mut replies = Vec::new();
    for _ in 0..2 {
        replies.push(client.receive().await.unwrap());
    }
    replies.sort();
    assert_eq!(replies, queries.map(|query| answer_to(&query)));
    assert_eq!(client.receive().await, None);
    assert_eq!(setup.forwarded().len(), 2);
}

#[tokio::test]
async fn idle_clients_are_disconnected() {
    let setup = start(Limits {
        idle: Duration::from_millis(100),
        ..limits()
    })
    .await;
    let query = query(10, "web.service.consul.");
    let mut mute = setup.tcp().await;
    let mut halting = setup.tcp().await;
    halting.send_raw(&[0, 40, 1, 2, 3]).await;
    assert_eq!(mute.receive().await, None);
    assert_eq!(halting.receive().await, None);
    assert!(setup.forwarded().is_empty());
    // The idle timeout does not apply while they wait for the server.
    let mut waiting = setup.tcp().await;
    setup.server.script().hang_next(Call::Dns);
    waiting.send(&[&query]).await;
    setup.server.script().wait_for_calls(Call::Dns, 1).await;
    let mut mute = setup.tcp().await;
    assert_eq!(mute.receive().await, None);
    assert_eq!(setup.in_flight("tcp"), 1);
}

#[tokio::test]
async fn clients_that_do_not_read_are_disconnected() {
    let limits = Limits {
        idle: Duration::from_millis(200),
        tcp_connections: 1,
        ..limits()
    };
    let setup = start(limits).await;
    let query = query(11, "many.service.consul.");
    let served = Bytes::from(noise(11, 65_000));
    setup.server.script().dns(move |_| Ok(served.clone()));
    let mut deaf = setup.tcp().await;
    // More than all buffers on the path hold.
    deaf.send(&[&query[..]; 500]).await;
    setup.server.script().wait_for_calls(Call::Dns, 1).await;
    until_served(&setup, &query).await;
    drop(deaf);
}
