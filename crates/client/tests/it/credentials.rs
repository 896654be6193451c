//! Tokens: static ones, logins, refusals and expiry, and the logout.

use std::fs;

use legate_api::metadata;
use legate_client::{Bearer, LoginConfig};
use legate_model::Secret;
use legate_testkit::fake_server::Call;
use tempfile::TempDir;

use super::*;

fn static_token(token: &str) -> Credentials {
    Credentials::Static(Secret::new(token))
}

fn login(bearer: Bearer) -> LoginConfig {
    LoginConfig {
        auth_method: "k8s".into(),
        namespace: "ns".into(),
        partition: "part".into(),
        datacenter: "dc1".into(),
        bearer,
        meta: [("pod".to_owned(), "default/web".to_owned())].into(),
    }
}

fn bearer(token: &str) -> Bearer {
    Bearer::Token(Secret::new(token))
}

#[tokio::test]
async fn a_static_token_is_sent_with_every_call() {
    let server = FakeServer::plaintext().await;
    server.script().accept_token("secret");
    let client = Client::start(with(static_token("secret"), &server));
    let connection = client.connected().await;
    call(&connection).await.unwrap();
    let question = legate_api::dns::QueryRequest {
        msg: vec![0; 12].into(),
        protocol: 1,
    };
    connection.dns().query(question.clone()).await.unwrap();
    let mut own = tonic::Request::new(question);
    own.metadata_mut()
        .insert(metadata::TOKEN, "other".parse().unwrap());
    connection.dns().query(own).await.unwrap();
    server.script().wait_for_calls(Call::WatchServers, 1).await;
    client.close().await;
    let recorded = server.script().recorded();
    let (last, others) = recorded.split_last().unwrap();
    assert!(
        others
            .iter()
            .all(|call| call.token.as_deref() == Some("secret") || call.call == Call::Dns)
    );
    let own = recorded
        .iter()
        .filter(|call| call.token.as_deref() == Some("other"))
        .count();
    assert_eq!(own, 1, "a call's own token is left alone: {last:?}");
    assert!(
        server.script().logouts().is_empty(),
        "a static token is not logged out"
    );
}

#[tokio::test]
async fn a_wrong_static_token_is_one_clear_error() {
    let server = FakeServer::plaintext().await;
    server.script().accept_token("right");
    let client = Client::start(with(static_token("wrong"), &server));
    let error = client.refused().await.to_string();
    assert!(
        error.contains("-static-token") && error.contains("-credential-type"),
        "{error}"
    );
    assert!(
        error.contains("ACL not found") && !error.contains("wrong"),
        "{error}"
    );
    assert!(matches!(client.session.state(), SessionState::Failed(_)));
    assert_eq!(server.script().calls(Call::Features).len(), 1);
    client.close().await;
}

#[tokio::test]
async fn a_missing_token_is_one_clear_error() {
    let server = FakeServer::plaintext().await;
    server.script().accept_token("right");
    for credentials in [Credentials::None, static_token("")] {
        let client = Client::start(with(credentials, &server));
        let error = client.refused().await.to_string();
        assert!(
            error.contains("none is configured: set -credential-type"),
            "{error}"
        );
        client.close().await;
    }
}

#[tokio::test]
async fn without_a_token_there_is_no_header() {
    let server = FakeServer::plaintext().await;
    for (before, credentials) in [Credentials::None, static_token("")]
        .into_iter()
        .enumerate()
    {
        let client = Client::start(with(credentials, &server));
        let connection = client.connected().await;
        let script = server.script();
        script.wait_for_calls(Call::WatchServers, before + 1).await;
        call(&connection).await.unwrap();
        let question = legate_api::dns::QueryRequest::default();
        connection.dns().query(question).await.unwrap();
        let request = legate_api::discovery::DeltaDiscoveryRequest::default();
        let requests = futures_util::stream::iter([request]);
        let mut discovery = connection.discovery();
        let stream = discovery.delta_aggregated_resources(requests);
        let (_stream, mut ads) = tokio::join!(stream, server.accept_ads());
        ads.next().await.unwrap();
        client.close().await;
    }
    let recorded = server.script().recorded();
    for kind in [
        Call::Features,
        Call::BootstrapParams,
        Call::WatchServers,
        Call::Dns,
        Call::Discovery,
    ] {
        let calls = server.script().calls(kind);
        assert_eq!(calls.len(), 2, "{kind:?}: {recorded:?}");
        for call in calls {
            // An empty header would differ from no header.
            assert_eq!(call.token, None, "{call:?}");
            assert!(!call.metadata.contains_key(metadata::TOKEN), "{call:?}");
        }
    }
    // There is no token before the login.
    server.script().accept_login("k8s", "jwt");
    let client = Client::start(with(Credentials::Login(login(bearer("jwt"))), &server));
    client.connected().await;
    client.close().await;
    for kind in [Call::Login, Call::Logout] {
        assert_eq!(server.script().calls(kind)[0].token, None, "{kind:?}");
    }
}

#[tokio::test]
async fn a_login_is_made_once_and_undone_at_the_end() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "jwt");
    let client = Client::start(with(Credentials::Login(login(bearer("jwt"))), &server));
    let connection = client.connected().await;
    let accessor = client.session.snapshot().accessor_id;
    assert_eq!(accessor.as_deref(), Some("login-accessor-1"));
    call(&connection).await.unwrap();
    let logins = server.script().logins();
    assert_eq!(logins.len(), 1);
    let expected = legate_api::acl::LoginRequest {
        auth_method: "k8s".into(),
        bearer_token: "jwt".into(),
        meta: [("pod".to_owned(), "default/web".to_owned())].into(),
        namespace: "ns".into(),
        partition: "part".into(),
        datacenter: "dc1".into(),
    };
    assert_eq!(logins[0], expected);
    let login = &server.script().calls(Call::Login)[0];
    assert_eq!(login.token, None);
    assert!(
        client
            .metrics()
            .contains("consul_dataplane_login_duration_count 1")
    );
    client.close().await;
    let logouts = server.script().logouts();
    assert_eq!(logouts.len(), 1);
    assert_eq!(
        (logouts[0].token.as_str(), logouts[0].datacenter.as_str()),
        ("login-secret-1", "dc1")
    );
    assert!(server.script().tokens().is_empty());
}

#[tokio::test]
async fn a_stopped_scope_logs_out_too() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "jwt");
    let client = Client::start(with(Credentials::Login(login(bearer("jwt"))), &server));
    client.connected().await;
    client.scope.stop(CLOSE).await.unwrap();
    assert_eq!(server.script().logouts().len(), 1);
    let error = client.session.connected().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Closed);
}

#[tokio::test]
async fn a_refused_login_is_one_clear_error() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "jwt");
    let client = Client::start(with(Credentials::Login(login(bearer("bad"))), &server));
    let error = client.refused().await.to_string();
    assert!(
        error.contains("-login-auth-method") && error.contains("-login-bearer-token"),
        "{error}"
    );
    assert!(
        !error.contains("bad") && !error.contains("expired"),
        "{error}"
    );
    assert_eq!(server.script().logins().len(), 3);
    client.close().await;
    assert!(server.script().logouts().is_empty());

    let other = LoginConfig {
        auth_method: "other".into(),
        ..login(bearer("jwt"))
    };
    let client = Client::start(with(Credentials::Login(other), &server));
    let error = client.refused().await.to_string();
    assert!(error.contains("\"other\" (-login-auth-method)"), "{error}");
    assert_eq!(
        server.script().logins().len(),
        4,
        "an unknown method is not tried again"
    );
    client.close().await;
}

#[tokio::test]
async fn a_token_that_is_not_replicated_yet_is_waited_for() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "jwt");
    server
        .script()
        .fail_next(Call::Features, Status::unauthenticated("ACL not found"));
    server.script().fail_next(
        Call::Features,
        Status::permission_denied("rpc error: ACL not found"),
    );
    let client = Client::start(with(Credentials::Login(login(bearer("jwt"))), &server));
    client.connected().await;
    assert_eq!(server.script().logins().len(), 1);
    assert_eq!(server.script().calls(Call::Features).len(), 3);
    client.close().await;
}

#[tokio::test]
async fn a_login_without_a_token_in_its_answer_is_repeated() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "jwt");
    server
        .script()
        .fail_next(Call::Login, Status::internal("raft"));
    let client = Client::start(with(Credentials::Login(login(bearer("jwt"))), &server));
    client.connected().await;
    assert_eq!(server.script().logins().len(), 2);
    client.close().await;
}

#[tokio::test]
async fn an_expired_token_is_replaced_with_the_rotated_bearer() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "first\n").unwrap();
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "first");
    let client = Client::start(with(
        Credentials::Login(login(Bearer::File(file.clone()))),
        &server,
    ));
    let connection = client.connected().await;
    call(&connection).await.unwrap();

    server.script().revoke_tokens();
    server.script().refuse_login("k8s", "first");
    server.script().accept_login("k8s", "second");
    fs::write(&file, "second\n").unwrap();
    // A typical user of a connection: call, report, wait, call again. Right after the login the
    // session assumes that a token that is not found is not replicated yet.
    let recovered = async {
        loop {
            let connection = client.connected().await;
            match call(&connection).await {
                Ok(()) => return connection,
                Err(status) => client.session.report(&connection, &status),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let recovered = tokio::time::timeout(WAIT, recovered).await.unwrap();
    assert!(recovered.generation > connection.generation);
    assert_eq!(recovered.server, connection.server);
    let accessor = client.session.snapshot().accessor_id;
    assert_eq!(accessor.as_deref(), Some("login-accessor-2"));
    let bearers: Vec<_> = server
        .script()
        .logins()
        .into_iter()
        .map(|login| login.bearer_token)
        .collect();
    assert_eq!(bearers, ["first", "second"]);
    client.close().await;
    let mut logouts: Vec<_> = server
        .script()
        .logouts()
        .into_iter()
        .map(|logout| logout.token)
        .collect();
    logouts.sort();
    assert_eq!(logouts, ["login-secret-1", "login-secret-2"]);
}

#[tokio::test]
async fn the_logout_finds_a_server_when_the_connection_is_gone() {
    let mut servers = two_servers().await;
    for server in &servers {
        server.script().accept_login("k8s", "jwt");
    }
    let port = servers[0].address().port();
    let client = Client::start(ClientConfig {
        credentials: Credentials::Login(login(bearer("jwt"))),
        ..config(BOTH, port)
    });
    let connection = client.connected().await;
    let (used, other) = sorted(&mut servers, connection.server);
    // The other server refuses all calls except logouts, so the session cannot switch to it.
    other
        .script()
        .fail_always(Call::Features, Status::unavailable("starting"));
    other.script().accept_token("login-secret-1");
    used.stop().await;
    other.script().wait_for_calls(Call::Features, 1).await;
    client.close().await;
    assert_eq!(other.script().logouts().len(), 1);
}

#[tokio::test]
async fn closing_is_bounded_if_no_server_accepts_the_logout() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "jwt");
    server.script().hang(Call::Logout);
    let client = Client::start(with(Credentials::Login(login(bearer("jwt"))), &server));
    client.connected().await;
    client.close().await;
    assert_eq!(server.script().logouts().len(), 1);
}
