//! Failover from a failing server to the next one.

use legate_api::dataplane::DataplaneFeatures;
use legate_client::{Bearer, LoginConfig};
use legate_model::Secret;
use legate_testkit::fake_server::Call;

use super::*;

#[tokio::test]
async fn a_server_that_sheds_load_is_left_for_the_other() {
    let mut servers = two_servers().await;
    let client = Client::start(config(BOTH, servers[0].address().port()));
    let connection = client.connected().await;
    let (used, other) = sorted(&mut servers, connection.server);
    used.script().fail_always(
        Call::BootstrapParams,
        Status::resource_exhausted("please try another"),
    );
    let status = call(&connection).await.unwrap_err();
    client.session.report(&connection, &status);
    let next = client.after(&connection).await;
    assert_eq!(next.server, other.address());
    call(&next).await.unwrap();
    used.script().heal(Call::BootstrapParams);
    call(&connection)
        .await
        .expect("whoever still uses the connection before can");
    // A late report about the old connection does not affect the new one.
    client.session.report(&connection, &status);
    call(&next).await.unwrap();
    assert_eq!(client.connected().await.generation, next.generation);
    let metrics = client.metrics();
    let errors = "consul_dataplane_connection_errors{error_code=\"ResourceExhausted\"} 2";
    assert!(metrics.contains(errors), "{metrics}");
    client.close().await;
}

#[tokio::test]
async fn a_killed_server_is_left_for_the_other() {
    let mut servers = two_servers().await;
    let client = Client::start(config(BOTH, servers[0].address().port()));
    let connection = client.connected().await;
    let (used, other) = sorted(&mut servers, connection.server);
    used.stop().await;
    let next = client.after(&connection).await;
    assert_eq!(next.server, other.address());
    let status = call(&connection).await.unwrap_err();
    assert_eq!(
        legate_client::classify(&status),
        legate_client::ErrorClass::ThisServer,
        "{status:?}"
    );
    client.close().await;
}

#[tokio::test]
async fn a_token_is_reused_at_the_next_server() {
    let mut servers = two_servers().await;
    for server in &servers {
        server.script().accept_token("secret");
    }
    let client = Client::start(ClientConfig {
        credentials: Credentials::Static(legate_model::Secret::new("secret")),
        ..config(BOTH, servers[0].address().port())
    });
    let connection = client.connected().await;
    let (used, other) = sorted(&mut servers, connection.server);
    used.stop().await;
    let next = client.after(&connection).await;
    call(&next).await.unwrap();
    assert!(
        other
            .script()
            .calls(Call::Features)
            .iter()
            .all(|call| call.token.as_deref() == Some("secret"))
    );
    client.close().await;
}

#[tokio::test]
async fn a_server_that_is_busy_at_first_is_skipped() {
    let servers = two_servers().await;
    servers[0]
        .script()
        .fail_always(Call::Features, Status::resource_exhausted("rate limit"));
    let client = Client::start(config(BOTH, servers[0].address().port()));
    assert_eq!(client.connected().await.server, servers[1].address());
    client.close().await;
}

#[tokio::test]
async fn a_server_that_cannot_configure_proxies_is_skipped() {
    let servers = two_servers().await;
    servers[0]
        .script()
        .features(&[DataplaneFeatures::WatchServers]);
    let client = Client::start(config(BOTH, servers[0].address().port()));
    assert_eq!(client.connected().await.server, servers[1].address());
    client.close().await;
}

#[tokio::test]
async fn an_only_server_is_returned_to() {
    let mut server = FakeServer::plaintext().await;
    let client = Client::start(config("127.0.0.1", server.address().port()));
    let connection = client.connected().await;
    server.restart().await;
    let next = client.after(&connection).await;
    call(&next).await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn a_server_that_is_replaced_by_one_that_knows_nothing_gets_a_login() {
    let login = LoginConfig {
        auth_method: "k8s".into(),
        namespace: String::new(),
        partition: String::new(),
        datacenter: String::new(),
        bearer: Bearer::Token(Secret::new("jwt")),
        meta: [].into(),
    };
    let mut server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "jwt");
    let client = Client::start(with(Credentials::Login(login), &server));
    let connection = client.connected().await;
    server.stop().await;
    // The next server has the same address, and none of the tokens.
    server.script().revoke_tokens();
    let before = server.script().calls(Call::Features).len();
    server.restart().await;
    let next = client.after(&connection).await;
    call(&next).await.unwrap();
    let accessor = client.session.snapshot().accessor_id;
    assert_eq!(accessor.as_deref(), Some("login-accessor-2"));
    let checks = server.script().calls(Call::Features).len() - before;
    assert_eq!(checks, 4, "the token it had, three times, and the new one");
    client.close().await;
    assert!(server.script().tokens().is_empty());
}

#[tokio::test]
async fn closing_wakes_waiting_callers() {
    let client = Client::start(config("127.0.0.1", legate_testkit::network::free_port()));
    let session = client.session.clone();
    let (waited, ()) = tokio::join!(session.connected(), client.close());
    assert_eq!(waited.unwrap_err().kind, ErrorKind::Closed);
}
