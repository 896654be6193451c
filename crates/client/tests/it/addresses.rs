//! Discovery of servers: names, addresses, commands, and the servers' own list.

use legate_testkit::fake_server::{Call, FakeServer, server_entry};
use legate_testkit::network::{Cuttable, free_port};

use super::*;

#[tokio::test]
async fn servers_are_found_by_name_address_and_command() {
    let server = FakeServer::plaintext().await;
    for addresses in [
        "localhost",
        "127.0.0.1",
        "exec=echo 127.0.0.1",
        "no-such-host.invalid, 127.0.0.1",
    ] {
        let client = Client::start(config(addresses, server.address().port()));
        let connection = client.connected().await;
        assert_eq!(connection.server, server.address(), "{addresses}");
        call(&connection).await.unwrap();
        assert!(
            client
                .metrics()
                .contains("consul_dataplane_consul_connected 1")
        );
        assert!(
            client
                .metrics()
                .contains("consul_dataplane_connect_duration_count 1")
        );
        client.close().await;
        assert!(
            client
                .metrics()
                .contains("consul_dataplane_consul_connected 0")
        );
    }
    let features = server.script().calls(Call::Features);
    assert!(
        features.iter().all(|call| call.token.is_none()),
        "no token, no key"
    );
    let agent = features[0]
        .metadata
        .get("user-agent")
        .unwrap()
        .to_str()
        .unwrap();
    assert!(agent.starts_with("legate-dataplane/"), "{agent}");
    assert!(server.script().logouts().is_empty());
}

#[tokio::test]
async fn a_session_waits_for_a_server_that_is_not_there_yet() {
    let port = free_port();
    let client = Client::start(config("127.0.0.1", port));
    let mut states = client.session.subscribe();
    let refused = states.wait_for(|state| {
        matches!(
            state,
            SessionState::Connecting {
                last_error: Some(_)
            }
        )
    });
    let state = refused.await.unwrap().clone();
    let SessionState::Connecting {
        last_error: Some(error),
    } = state
    else {
        panic!("{state:?}")
    };
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );
    let ip = "127.0.0.1".parse().unwrap();
    let server = FakeServer::start(FakeServerOptions {
        ip,
        port,
        tls: None,
    })
    .await;
    assert_eq!(client.connected().await.server, server.address());
    client.close().await;
}

#[tokio::test]
async fn the_servers_list_is_followed() {
    let mut servers = two_servers().await;
    let second = servers[1].address();
    let client = Client::start(config("127.0.0.1", second.port()));
    let connection = client.connected().await;
    assert_eq!(connection.server, servers[0].address());
    servers[0]
        .script()
        .wait_for_calls(Call::WatchServers, 1)
        .await;
    servers[0].script().servers(vec![
        server_entry("server.example"),
        server_entry("127.0.0.1"),
        server_entry("127.0.0.2"),
    ]);
    // The second server is not among the configured addresses, so it is found only if the list has
    // arrived before the first server goes away.
    servers[0]
        .script()
        .end_watches(Status::unavailable("going away"));
    assert_eq!(client.after(&connection).await.server, second);
    call(&connection)
        .await
        .expect("the connection before is still usable");
    servers[0].stop().await;
    client.close().await;
}

#[tokio::test]
async fn a_disabled_watch_is_not_opened_and_losses_are_noticed_all_the_same() {
    let mut server = FakeServer::plaintext().await;
    let disabled = ClientConfig {
        server_watch_disabled: true,
        ..config("127.0.0.1", server.address().port())
    };
    let client = Client::start(disabled);
    let connection = client.connected().await;
    server.restart().await;
    let next = client.after(&connection).await;
    call(&next).await.unwrap();
    assert!(server.script().calls(Call::WatchServers).is_empty());
    client.close().await;
}

#[tokio::test]
async fn a_server_without_a_list_is_used_all_the_same() {
    let server = FakeServer::plaintext().await;
    server
        .script()
        .fail_always(Call::WatchServers, Status::unimplemented("no such method"));
    let client = Client::start(config("127.0.0.1", server.address().port()));
    let connection = client.connected().await;
    server.script().wait_for_calls(Call::WatchServers, 1).await;
    call(&connection).await.unwrap();
    assert_eq!(client.connected().await.generation, 1);
    client.close().await;
}

#[tokio::test]
async fn several_addresses_of_both_families_are_all_servers() {
    let ips = ["127.0.0.1", "127.0.0.2", "::1"].map(|ip| ip.parse().unwrap());
    let port = free_port_on(&ips);
    for used in ips {
        let server = FakeServer::start(FakeServerOptions {
            ip: used,
            port,
            tls: None,
        })
        .await;
        for addresses in ["127.0.0.1,127.0.0.2,[::1]", " 127.0.0.1 127.0.0.2 ::1 "] {
            let client = Client::start(config(addresses, port));
            assert_eq!(
                client.connected().await.server,
                server.address(),
                "{addresses:?}"
            );
            client.close().await;
        }
    }
}

/// The balancer's address, and a server behind it whose list contains an unreachable address of its
/// own.
async fn balanced() -> (Cuttable, FakeServer) {
    let server = FakeServer::plaintext().await;
    let balancer = Cuttable::start(server.address()).await;
    server.script().servers(vec![server_entry("127.0.0.3")]);
    (balancer, server)
}

#[tokio::test]
async fn a_load_balancer_is_returned_to_although_servers_name_other_addresses() {
    for disabled in [false, true] {
        let (balancer, server) = balanced().await;
        let client = Client::start(ClientConfig {
            server_watch_disabled: disabled,
            ..config("localhost", balancer.address().port())
        });
        let mut connection = client.connected().await;
        assert_eq!(connection.server, balancer.address());
        for _ in 0..3 {
            if !disabled {
                client
                    .shows("sees the list", |now| now.servers.len() == 2)
                    .await;
            }
            server.cut_connections();
            connection = client.after(&connection).await;
            assert_eq!(connection.server, balancer.address());
            call(&connection).await.unwrap();
        }
        let shed = Status::resource_exhausted("please try another");
        client.session.report(&connection, &shed);
        let next = client.after(&connection).await;
        assert_eq!(
            next.server,
            balancer.address(),
            "another server may answer there"
        );
        client.close().await;
    }
}

#[tokio::test]
async fn a_balancer_that_goes_away_and_comes_back_is_found_again() {
    let (balancer, _server) = balanced().await;
    let client = Client::start(config("127.0.0.1", balancer.address().port()));
    let connection = client.connected().await;
    client
        .shows("sees the list", |now| now.servers.len() == 2)
        .await;
    balancer.cut().await;
    client
        .shows("without a server", |now| {
            let error = now.last_error.as_ref();
            error.is_some_and(|last| last.error.to_string().contains("127.0.0.3"))
        })
        .await;
    balancer.restore().await;
    let next = client.after(&connection).await;
    call(&next).await.unwrap();
    client.close().await;
}
