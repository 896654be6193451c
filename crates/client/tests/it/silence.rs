//! Servers that stop responding while their connections stay open.

use legate_testkit::fake_server::Call;
use legate_testkit::network::Cuttable;
use tokio::time::Instant;

use super::*;

/// A session that is connected through a simulated network to one server, and knows another one.
async fn through_a_network(watch: bool) -> (Client, Connection, Cuttable, [FakeServer; 2]) {
    let used = FakeServer::plaintext().await;
    let network = Cuttable::start(used.address()).await;
    let port = network.address().port();
    let client = Client::with(
        ClientConfig {
            server_watch_disabled: !watch,
            ..config(BOTH, port)
        },
        hasty(),
    );
    let connection = client.connected().await;
    assert_eq!(connection.server, network.address());
    let other = FakeServer::start(FakeServerOptions {
        ip: "127.0.0.2".parse().unwrap(),
        port,
        tls: None,
    })
    .await;
    (client, connection, network, [used, other])
}

#[tokio::test]
async fn a_half_open_connection_is_left_within_the_bound() {
    for watch in [true, false] {
        let (client, connection, network, [_used, other]) = through_a_network(watch).await;
        let timing = hasty();
        let frozen = Instant::now();
        network.freeze();
        let next = client.after(&connection).await;
        let took = frozen.elapsed();
        assert_eq!(next.server, other.address());
        // Silence, the time limit of the check, the short delay, and a margin for the machine.
        let bound = timing.silence.mul_f64(1.25) + timing.answer + Duration::from_millis(250);
        assert!(
            took >= timing.answer,
            "{took:?}: there was no sign that the connection was lost"
        );
        assert!(took < bound + Duration::from_secs(5), "{took:?}");
        call(&next).await.unwrap();
        let last = client.session.snapshot().last_error.unwrap().error;
        assert!(
            last.to_string()
                .contains("did not answer the feature check"),
            "{last}"
        );
        client.close().await;
    }
}

#[tokio::test]
async fn a_server_that_answers_is_kept_however_silent_its_watch_is() {
    let (client, connection, _network, [used, _other]) = through_a_network(true).await;
    let asked = used.script().calls(Call::Features).len();
    used.script()
        .wait_for_calls(Call::Features, asked + 5)
        .await;
    assert_eq!(
        used.script().calls(Call::WatchServers).len(),
        1,
        "the watch stays open"
    );
    assert_eq!(client.connected().await.generation, connection.generation);
    client.close().await;
}

#[tokio::test]
async fn a_server_that_accepts_connections_and_never_responds_is_skipped() {
    let (client, connection, network, [used, mut other]) = through_a_network(true).await;
    // The other server hangs in its feature check, then entirely.
    other.script().hang_next(Call::Features);
    network.freeze();
    let next = client.after(&connection).await;
    assert_eq!(next.server, other.address());
    other.stop().await;
    network.restore().await;
    let back = client.after(&next).await;
    assert_eq!(back.server, network.address());
    call(&back).await.unwrap();
    drop(used);
    client.close().await;
}

#[tokio::test]
async fn a_host_that_is_gone_is_noticed_by_a_missed_ping() {
    let used = FakeServer::plaintext().await;
    let network = Cuttable::start(used.address()).await;
    let client = Client::start(config("127.0.0.1", network.address().port()));
    client.connected().await;
    used.script().wait_for_calls(Call::WatchServers, 1).await;
    network.freeze();
    let mut states = client.session.subscribe();
    tokio::time::pause();
    let frozen = Instant::now();
    let lost = states.wait_for(|state| !matches!(state, SessionState::Connected(_)));
    lost.await.unwrap();
    let took = frozen.elapsed();
    tokio::time::resume();
    // A ping follows 30 s of silence.
    assert!(took <= Duration::from_secs(41), "{took:?}");
    client.close().await;
}
