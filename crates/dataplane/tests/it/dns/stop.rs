//! Shutdown: every query gets a reply, and the ports are freed.

use std::time::Duration;

use bytes::Bytes;
use legate_dataplane::dns::Limits;
use legate_testkit::fake_server::{Call, FakeServer};
use legate_testkit::network::Cuttable;
use tokio::net::{TcpListener, UdpSocket};

use super::harness::*;

#[tokio::test]
async fn ports_are_free_after_the_stop() {
    let setup = start(limits()).await;
    let query = query(1, "web.service.consul.");
    let (udp, mut tcp) = (setup.udp().await, setup.tcp().await);
    assert_eq!(udp.ask(&query).await, answer_to(&query));
    assert_eq!(tcp.ask(&query).await, Some(answer_to(&query)));
    // An idle connection does not delay the stop.
    setup.scope.stop(PATIENCE).await.unwrap();
    assert_eq!(tcp.receive().await, None);
    UdpSocket::bind(setup.proxy.udp).await.unwrap();
    TcpListener::bind(setup.proxy.tcp).await.unwrap();
}

#[tokio::test]
async fn queries_in_flight_are_answered() {
    let server = FakeServer::plaintext().await;
    let network = Cuttable::start(server.address()).await;
    let setup = start_at(server, network.address(), options(limits())).await;
    let query = query(2, "web.service.consul.");
    let (udp, mut tcp) = (setup.udp().await, setup.tcp().await);
    network.freeze();
    udp.send(&query).await;
    tcp.send(&[&query]).await;
    until("both are in flight", || {
        setup.in_flight("udp") + setup.in_flight("tcp") == 2
    })
    .await;
    let stopping = setup.scope.token();
    let thaw = async {
        stopping.cancelled().await;
        network.restore().await;
    };
    let (stopped, ()) = tokio::join!(setup.scope.stop(PATIENCE), thaw);
    stopped.unwrap();
    assert_eq!(udp.receive().await, answer_to(&query));
    assert_eq!(tcp.receive().await, Some(answer_to(&query)));
    assert_eq!(tcp.receive().await, None);
}

#[tokio::test]
async fn queries_that_take_too_long_get_errors() {
    let setup = start(Limits {
        drain: Duration::from_millis(50),
        ..limits()
    })
    .await;
    let query = query(3, "web.service.consul.");
    let (udp, mut tcp) = (setup.udp().await, setup.tcp().await);
    setup.server.script().hang(Call::Dns);
    udp.send(&query).await;
    tcp.send(&[&query]).await;
    setup.server.script().wait_for_calls(Call::Dns, 2).await;
    setup.scope.stop(PATIENCE).await.unwrap();
    assert_eq!(declined(&udp.receive().await, &query), STOPPING);
    assert_eq!(declined(&tcp.receive().await.unwrap(), &query), STOPPING);
    assert_eq!(tcp.receive().await, None);
    assert_eq!(
        setup.count("udp", "stopping") + setup.count("tcp", "stopping"),
        2
    );
}

#[tokio::test]
async fn a_query_that_waits_for_a_server_does_not_hold_up_the_stop() {
    let mut setup = start(Limits {
        drain: Duration::from_millis(50),
        ..limits()
    })
    .await;
    let client = setup.udp().await;
    let query = query(4, "web.service.consul.");
    setup.server.stop().await;
    setup.disconnected().await;
    client.send(&query).await;
    until("the query waits", || setup.in_flight("udp") == 1).await;
    setup.scope.stop(PATIENCE).await.unwrap();
    assert_eq!(declined(&client.receive().await, &query), STOPPING);
    assert_eq!(setup.in_flight("udp"), 0);
}

#[tokio::test]
async fn a_client_that_does_not_read_does_not_hold_up_the_stop() {
    let setup = start(Limits {
        drain: Duration::from_millis(50),
        ..limits()
    })
    .await;
    let query = query(5, "many.service.consul.");
    let served = Bytes::from(noise(5, 65_000));
    setup.server.script().dns(move |_| Ok(served.clone()));
    let mut deaf = setup.tcp().await;
    // More than all buffers on the path hold.
    deaf.send(&[&query[..]; 500]).await;
    let mut before = 0;
    until("nothing moves any more", || {
        let now = setup.count("tcp", "answered");
        now > 0 && now == std::mem::replace(&mut before, now)
    })
    .await;
    assert!(setup.in_flight("tcp") > 0);
    setup.scope.stop(PATIENCE / 3).await.unwrap();
}
