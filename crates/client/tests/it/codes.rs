//! Every gRPC code at every stage.

use futures_util::future::join_all;
use legate_client::{Bearer, ErrorClass, LoginConfig, classify};
use legate_model::Secret;
use legate_testkit::fake_server::{Call, server_entry};
use tonic::Code;

use super::*;

/// All codes except OK.
fn codes() -> impl Iterator<Item = Code> {
    (1..=16).map(Code::from_i32)
}

fn scripted(code: Code) -> Status {
    Status::new(code, "as scripted")
}

fn login() -> Credentials {
    Credentials::Login(LoginConfig {
        auth_method: "k8s".into(),
        namespace: String::new(),
        partition: String::new(),
        datacenter: String::new(),
        bearer: Bearer::Token(Secret::new("jwt")),
        meta: [].into(),
    })
}

fn static_token() -> Credentials {
    Credentials::Static(Secret::new("secret"))
}

async fn server() -> FakeServer {
    let server = FakeServer::plaintext().await;
    server.script().accept_token("secret");
    server.script().accept_login("k8s", "jwt");
    server
}

/// The outcome of a session if a server fails one call once. `None` means connected.
async fn comes_to(client: &Client) -> Option<SessionError> {
    tokio::time::timeout(WAIT, client.session.connected())
        .await
        .unwrap_or_else(|_| panic!("neither: {:?}", client.session.snapshot()))
        .err()
}

#[tokio::test]
async fn at_the_first_feature_check_with_a_static_token() {
    join_all(codes().map(|code| async move {
        let server = server().await;
        server.script().fail_next(Call::Features, scripted(code));
        let client = Client::start(with(static_token(), &server));
        let end = comes_to(&client).await;
        let checks = server.script().calls(Call::Features).len();
        match code {
            // The only server rejects the token, which is final.
            Code::Unauthenticated | Code::PermissionDenied => {
                assert!(
                    end.as_ref()
                        .is_some_and(|end| end.text.contains("rejects the ACL token")),
                    "{code:?}: {end:?}"
                );
                assert_eq!(checks, 1, "{code:?}");
            }
            _ => {
                assert!(end.is_none(), "{code:?}: {end:?}");
                assert_eq!(checks, 2, "{code:?}");
            }
        }
        let last = client.session.snapshot().last_error.unwrap().error;
        let wanted = match code {
            Code::PermissionDenied => Code::Unauthenticated,
            code => code,
        };
        assert_eq!(last.code, Some(wanted), "{code:?}");
        client.close().await;
    }))
    .await;
}

#[tokio::test]
async fn at_the_first_feature_check_after_a_login() {
    join_all(codes().map(|code| async move {
        let server = server().await;
        server.script().fail_next(Call::Features, scripted(code));
        let client = Client::start(with(login(), &server));
        assert!(comes_to(&client).await.is_none(), "{code:?}");
        let checks = server.script().calls(Call::Features);
        assert_eq!(
            (checks.len(), server.script().logins().len()),
            (2, 1),
            "{code:?}"
        );
        // An unknown token is checked again at the same server; other errors make the session
        // switch.
        let stayed = matches!(code, Code::Unauthenticated | Code::PermissionDenied);
        assert_eq!(checks[0].peer == checks[1].peer, stayed, "{code:?}");
        client.close().await;
        assert_eq!(server.script().logouts().len(), 1, "{code:?}");
    }))
    .await;
}

#[tokio::test]
async fn at_the_login() {
    join_all(codes().map(|code| async move {
        let server = server().await;
        server.script().fail_next(Call::Login, scripted(code));
        let client = Client::start(with(login(), &server));
        let end = comes_to(&client).await;
        let logins = server.script().calls(Call::Login);
        match code {
            Code::InvalidArgument | Code::FailedPrecondition => {
                assert!(
                    end.as_ref()
                        .is_some_and(|end| end.text.contains("refuses the login")),
                    "{code:?}: {end:?}"
                );
                assert_eq!(logins.len(), 1, "{code:?}");
            }
            code => {
                assert!(end.is_none(), "{code:?}: {end:?}");
                let stayed = matches!(code, Code::Unauthenticated | Code::PermissionDenied);
                assert_eq!(logins[0].peer == logins[1].peer, stayed, "{code:?}");
                assert_eq!(logins.len(), 2, "{code:?}");
            }
        }
        client.close().await;
        assert_eq!(
            server.script().tokens(),
            ["secret"],
            "{code:?}: no login token remains"
        );
    }))
    .await;
}

/// A session with a static token, connected to the first of two servers.
async fn connected_of_two(timing: Timing) -> (Client, Connection, [FakeServer; 2]) {
    let mut servers = two_servers().await;
    for server in &servers {
        server.script().accept_token("secret");
    }
    let config = ClientConfig {
        credentials: static_token(),
        ..config(BOTH, servers[0].address().port())
    };
    let client = Client::with(config, timing);
    let connection = client.connected().await;
    if servers[0].address() != connection.server {
        servers.swap(0, 1);
    }
    (client, connection, servers)
}

#[tokio::test]
async fn at_the_end_of_a_watch() {
    join_all(codes().map(|code| async move {
        let (client, connection, [used, other]) = connected_of_two(hasty()).await;
        used.script().wait_for_calls(Call::WatchServers, 1).await;
        used.script().end_watches(scripted(code));
        if code == Code::Unimplemented {
            // The server is checked periodically instead.
            let asked = used.script().calls(Call::Features).len();
            used.script()
                .wait_for_calls(Call::Features, asked + 2)
                .await;
            assert_eq!(client.connected().await.generation, 1);
            assert_eq!(used.script().calls(Call::WatchServers).len(), 1);
        } else {
            assert_eq!(
                client.after(&connection).await.server,
                other.address(),
                "{code:?}"
            );
        }
        client.close().await;
    }))
    .await;
}

#[tokio::test]
async fn at_a_sign_of_life() {
    join_all(codes().map(|code| async move {
        let (client, connection, [used, other]) = connected_of_two(hasty()).await;
        used.script().fail_always(Call::Features, scripted(code));
        assert_eq!(
            client.after(&connection).await.server,
            other.address(),
            "{code:?}"
        );
        call(&connection)
            .await
            .expect("the connection before is still usable");
        client.close().await;
    }))
    .await;
}

#[tokio::test]
async fn at_a_call_that_is_reported() {
    join_all(codes().map(|code| async move {
        let (client, connection, [used, other]) = connected_of_two(Timing::default()).await;
        used.script()
            .fail_next(Call::BootstrapParams, scripted(code));
        let status = call(&connection).await.unwrap_err();
        assert_eq!(status.code(), code);
        client.session.report(&connection, &status);
        let moves = match classify(&status) {
            ErrorClass::ThisServer | ErrorClass::Credentials => true,
            ErrorClass::Permanent | ErrorClass::Transient => false,
        };
        let wanted = [
            Code::ResourceExhausted,
            Code::Unavailable,
            Code::Unauthenticated,
        ];
        assert_eq!(moves, wanted.contains(&code), "{code:?}");
        if moves {
            assert_eq!(
                client.after(&connection).await.server,
                other.address(),
                "{code:?}"
            );
        } else {
            // The session has processed later events, too.
            used.script().wait_for_calls(Call::WatchServers, 1).await;
            used.script().servers(vec![server_entry("127.0.0.9")]);
            client
                .shows("sees the list", |now| now.servers.len() == 3)
                .await;
            assert_eq!(client.connected().await.generation, 1, "{code:?}");
        }
        let last = client.session.snapshot().last_error.unwrap().error;
        assert_eq!(last.code, Some(code));
        client.close().await;
    }))
    .await;
}
