//! Connections that are replaced while in use, and tokens that are deleted.

use std::fs;
use std::time::SystemTime;

use legate_client::{Bearer, LoginConfig, TlsConfig};
use legate_model::Secret;
use legate_testkit::certs::{ServerTls, TestCa};
use legate_testkit::fake_server::Call;
use legate_testkit::jwt::TestSigner;
use serde_json::json;
use tempfile::TempDir;

use super::*;

fn login(bearer: Bearer) -> Credentials {
    Credentials::Login(LoginConfig {
        auth_method: "k8s".into(),
        namespace: String::new(),
        partition: String::new(),
        datacenter: String::new(),
        bearer,
        meta: [].into(),
    })
}

/// A server that requires client certificates, and a session with one of `ca`.
async fn mutual(ca: &TestCa) -> (FakeServer, Client, (std::path::PathBuf, std::path::PathBuf)) {
    let tls = ServerTls {
        require_client_cert: true,
        ..ServerTls::default()
    };
    let server = FakeServer::tls(ca.server_config(&["localhost"], tls)).await;
    let files = ca.client("dataplane");
    let pair = (files.cert, files.key);
    let options = TlsConfig {
        ca: Some(ca.ca_file()),
        client_certificate: Some(pair.clone()),
        ..TlsConfig::default()
    };
    let config = ClientConfig {
        tls: Some(options),
        ..config("localhost", server.address().port())
    };
    (server, Client::with(config, hasty()), pair)
}

#[tokio::test]
async fn a_rotated_client_certificate_is_shown_without_losing_the_connection() {
    let ca = TestCa::new();
    let (server, client, (cert, key)) = mutual(&ca).await;
    let connection = client.connected().await;
    assert!(
        client
            .session
            .snapshot()
            .client_certificate_expires
            .is_some()
    );
    let new = ca.client("dataplane");
    // One file after the other: in between they do not match.
    fs::write(&cert, &new.cert_pem).unwrap();
    fs::write(&key, &new.key_pem).unwrap();
    let next = client.after(&connection).await;
    let snapshot = client.session.snapshot();
    assert!(
        snapshot.last_error.is_none(),
        "the session was connected all the time: {snapshot:?}"
    );
    for connection in [&connection, &next] {
        call(connection).await.unwrap();
    }
    let calls = server.script().calls(Call::BootstrapParams);
    assert_ne!(calls[0].peer, calls[1].peer, "there are two connections");
    let watches = server.script().wait_for_calls(Call::WatchServers, 2).await;
    assert_eq!(
        watches[1].peer, calls[1].peer,
        "the new one is watched over"
    );
    client.close().await;
}

#[tokio::test]
async fn a_rotation_that_does_not_work_yet_is_retried_without_effect_on_users() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let (server, client, _) = mutual(&ca).await;
    let connection = client.connected().await;
    server.script().wait_for_calls(Call::WatchServers, 1).await;
    // The servers do not have certificates of the new CA yet.
    fs::write(ca.ca_file(), other.ca_pem()).unwrap();
    let snapshot = client.shows("failed", |now| now.last_error.is_some()).await;
    let error = snapshot.last_error.unwrap().error;
    assert_eq!(error.kind, ErrorKind::Untrusted, "{error}");
    assert_eq!(snapshot.generation, 1);
    call(&connection).await.unwrap();
    server.script().wait_for_calls(Call::WatchServers, 2).await;
    assert_eq!(client.connected().await.generation, 1);
    // Reverting the change triggers another attempt at once.
    fs::write(ca.ca_file(), ca.ca_pem()).unwrap();
    client.after(&connection).await;
    client.close().await;
}

#[tokio::test]
async fn a_deleted_token_is_noticed_by_the_session_itself() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "jwt");
    let client = Client::with(
        with(login(Bearer::Token(Secret::new("jwt"))), &server),
        hasty(),
    );
    let connection = client.connected().await;
    // A pod of the same name was deleted, with all its tokens.
    server.script().delete_token("login-secret-1");
    let next = client.after(&connection).await;
    let accessor = client.session.snapshot().accessor_id;
    assert_eq!(accessor.as_deref(), Some("login-accessor-2"));
    assert_eq!(next.server, connection.server);
    call(&next).await.unwrap();
    let peers: Vec<_> = server
        .script()
        .calls(Call::Login)
        .iter()
        .map(|call| call.peer)
        .collect();
    assert_eq!(peers[0], peers[1], "on the same connection");
    client.close().await;
}

#[tokio::test]
async fn a_new_bearer_token_ends_the_wait_for_a_login() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("token");
    let signer = TestSigner::generate();
    let jwt = |exp: u64| signer.sign(&json!({"sub": "web", "exp": exp}));
    let (old, new) = (jwt(1_000_000_000), jwt(4_000_000_000));
    fs::write(&file, &old).unwrap();
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", &old);
    let client = Client::with(with(login(Bearer::File(file.clone())), &server), hasty());
    let connection = client.connected().await;
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    assert_eq!(
        client.session.snapshot().bearer_expires,
        Some(at(1_000_000_000))
    );
    server.script().refuse_login("k8s", &old);
    server.script().accept_login("k8s", &new);
    server.script().delete_token("login-secret-1");
    // The snapshot contains the reason.
    let snapshot = client
        .shows("refused", |now| {
            let error = now.last_error.as_ref();
            error.is_some_and(|last| last.error.text.contains("refuses the login"))
        })
        .await;
    let error = snapshot.last_error.unwrap().error.to_string();
    assert!(error.contains(", which expired "), "{error}");
    fs::write(&file, &new).unwrap();
    let next = client.after(&connection).await;
    call(&next).await.unwrap();
    assert_eq!(
        client.session.snapshot().bearer_expires,
        Some(at(4_000_000_000))
    );
    client.close().await;
}
