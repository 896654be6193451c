//! Content of a session's snapshot.

use legate_client::{Bearer, LoginConfig, Stage};
use legate_model::Secret;
use legate_testkit::fake_server::{Call, server_entry};
use legate_testkit::network::free_port;
use tonic::Code;

use super::*;

#[tokio::test]
async fn a_connected_session_shows_server_token_and_servers() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "jwt");
    server
        .script()
        .servers(vec![server_entry("127.0.0.1"), server_entry("127.0.0.9")]);
    let client = Client::start(with(
        Credentials::Login(LoginConfig {
            auth_method: "k8s".into(),
            namespace: String::new(),
            partition: String::new(),
            datacenter: String::new(),
            bearer: Bearer::Token(Secret::new("jwt")),
            meta: [].into(),
        }),
        &server,
    ));
    client.connected().await;
    let snapshot = client
        .shows("sees the list", |now| now.servers.len() == 2)
        .await;
    assert_eq!(snapshot.stage, Stage::Connected);
    assert_eq!(snapshot.stage.as_str(), "connected");
    assert_eq!(snapshot.server, Some(server.address()));
    assert_eq!(snapshot.next_attempt, None);
    assert_eq!(
        (snapshot.generation, snapshot.attempts, snapshot.logins),
        (1, 1, 1)
    );
    assert_eq!(snapshot.accessor_id.as_deref(), Some("login-accessor-1"));
    assert!(snapshot.token_since.is_some_and(|at| at.elapsed() < WAIT));
    assert!(snapshot.heard.is_some_and(|at| at.elapsed() < WAIT));
    assert!(snapshot.last_error.is_none());
    assert!(snapshot.bearer_expires.is_none(), "it is no JWT");
    let known = snapshot
        .servers
        .iter()
        .map(|server| server.ip().to_string());
    assert_eq!(known.collect::<Vec<_>>(), ["127.0.0.1", "127.0.0.9"]);
    assert!(
        !format!("{snapshot:?}").contains("login-secret"),
        "{snapshot:?}"
    );
    client.close().await;
    let snapshot = client.session.snapshot();
    assert_eq!((snapshot.stage, snapshot.server), (Stage::Closed, None));
    assert!(snapshot.token_since.is_none() && snapshot.heard.is_none());
}

#[tokio::test]
async fn a_session_without_a_server_shows_the_reason() {
    let port = free_port();
    let client = Client::start(config("127.0.0.1", port));
    let snapshot = client
        .shows("waiting", |now| {
            now.stage == Stage::Waiting && now.attempts >= 2
        })
        .await;
    let last = snapshot.last_error.unwrap();
    assert_eq!(last.error.code, Some(Code::Unavailable));
    assert!(
        last.error
            .to_string()
            .contains(&format!("127.0.0.1:{port}")),
        "{}",
        last.error
    );
    assert_eq!((snapshot.server, snapshot.generation), (None, 0));
    assert!(
        snapshot
            .next_attempt
            .is_some_and(|at| at < tokio::time::Instant::now() + WAIT)
    );
    client.close().await;
}

#[tokio::test]
async fn a_failed_session_shows_the_code() {
    let server = FakeServer::plaintext().await;
    server.script().accept_token("right");
    let client = Client::start(with(Credentials::Static(Secret::new("wrong")), &server));
    client.refused().await;
    let snapshot = client
        .shows("failed", |now| now.stage == Stage::Failed)
        .await;
    assert_eq!(
        snapshot.last_error.unwrap().error.code,
        Some(Code::Unauthenticated)
    );
    assert!(snapshot.accessor_id.is_none());
    assert_eq!(server.script().calls(Call::Features).len(), 1);
    client.close().await;
}
