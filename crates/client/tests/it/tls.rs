//! Certificates: trusted, untrusted, presented and rotated.

use legate_client::{ConfigError, TlsConfig};
use legate_testkit::certs::{ServerTls, TestCa};
use legate_testkit::fake_server::Call;

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn trusting(ca: &TestCa) -> TlsConfig {
    TlsConfig {
        ca: Some(ca.ca_file()),
        ..TlsConfig::default()
    }
}

fn tls(
    addresses: &str,
    server: &FakeServer,
    options: TlsConfig,
    name: Option<&str>,
) -> ClientConfig {
    let server_name = name.map(str::to_owned);
    ClientConfig {
        tls: Some(TlsConfig {
            server_name,
            ..options
        }),
        ..config(addresses, server.address().port())
    }
}

#[tokio::test]
async fn the_name_to_verify_is_the_authority() {
    let ca = TestCa::new();
    let names = ["localhost", "127.0.0.1", "server.dc1.consul"];
    let server = FakeServer::tls(ca.server_config(&names, ServerTls::default())).await;
    let cases = [
        ("localhost", None, "localhost"),
        // A final dot disables search domains; it is not part of names in certificates.
        ("127.0.0.1", Some("localhost."), "localhost."),
        ("127.0.0.1", None, "127.0.0.1"),
        (
            "exec=echo 127.0.0.1",
            Some("server.dc1.consul"),
            "server.dc1.consul",
        ),
    ];
    for (addresses, name, authority) in cases {
        let client = Client::start(tls(addresses, &server, trusting(&ca), name));
        call(&client.connected().await).await.unwrap();
        let calls = server.script().calls(Call::BootstrapParams);
        assert_eq!(calls.last().unwrap().authority.as_deref(), Some(authority));
        client.close().await;
    }
}

#[tokio::test]
async fn each_of_several_servers_is_verified_by_its_own_name() {
    let ca = TestCa::new();
    let ips = ["127.0.0.1", "127.0.0.2"].map(|ip| ip.parse().unwrap());
    let port = free_port_on(&ips);
    let start = |ip: std::net::IpAddr| {
        let tls = ca.server_config(&[&ip.to_string()], ServerTls::default());
        FakeServer::start(FakeServerOptions {
            ip,
            port,
            tls: Some(tls),
        })
    };
    let mut servers = [start(ips[0]).await, start(ips[1]).await];
    let client = Client::start(tls(BOTH, &servers[0], trusting(&ca), None));
    let connection = client.connected().await;
    let (used, other) = sorted(&mut servers, connection.server);
    used.stop().await;
    let next = client.after(&connection).await;
    call(&next).await.unwrap();
    let calls = other.script().calls(Call::BootstrapParams);
    assert_eq!(calls[0].authority, Some(next.server.ip().to_string()));
    client.close().await;
}

#[tokio::test]
async fn a_server_need_not_select_http2() {
    let ca = TestCa::new();
    let without = ServerTls {
        alpn: false,
        ..ServerTls::default()
    };
    let server = FakeServer::tls(ca.server_config(&["localhost"], without)).await;
    let client = Client::start(tls("localhost", &server, trusting(&ca), None));
    call(&client.connected().await).await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn a_client_certificate_is_shown() {
    let ca = TestCa::new();
    let mutual = ServerTls {
        require_client_cert: true,
        ..ServerTls::default()
    };
    let server = FakeServer::tls(ca.server_config(&["localhost"], mutual)).await;
    let files = ca.client("dataplane");
    let options = TlsConfig {
        client_certificate: Some((files.cert, files.key)),
        ..trusting(&ca)
    };
    let client = Client::start(tls("localhost", &server, options, None));
    call(&client.connected().await).await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn an_untrusted_certificate_is_one_clear_error() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let server =
        FakeServer::tls(ca.server_config(&["localhost", "127.0.0.1"], ServerTls::default())).await;
    let wrong_authority = tls("127.0.0.1", &server, trusting(&other), None);
    let wrong_name = tls(
        "127.0.0.1",
        &server,
        trusting(&ca),
        Some("server.dc2.consul"),
    );
    for config in [wrong_authority, wrong_name] {
        let client = Client::start(config);
        let error = client.refused().await.to_string();
        assert!(
            error.contains("-ca-certs") && error.contains("-tls-server-name"),
            "{error}"
        );
        client.close().await;
    }
    assert!(
        server.script().recorded().is_empty(),
        "nothing is sent to an untrusted server"
    );
}

#[tokio::test]
async fn verification_can_be_switched_off() {
    let ca = TestCa::new();
    let server = FakeServer::tls(ca.server_config(&["elsewhere"], ServerTls::default())).await;
    let options = TlsConfig {
        insecure_skip_verify: true,
        ..TlsConfig::default()
    };
    let client = Client::start(tls("exec=echo 127.0.0.1", &server, options, None));
    call(&client.connected().await).await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn rotated_files_are_read_for_the_next_connection() {
    let (old, new) = (TestCa::new(), TestCa::new());
    let mut first = FakeServer::tls(old.server_config(&["localhost"], ServerTls::default())).await;
    let address = first.address();
    let client = Client::start(tls("localhost", &first, trusting(&old), None));
    let connection = client.connected().await;
    std::fs::write(old.ca_file(), new.ca_pem()).unwrap();
    first.stop().await;
    let second = FakeServer::start(FakeServerOptions {
        ip: address.ip(),
        port: address.port(),
        tls: Some(new.server_config(&["localhost"], ServerTls::default())),
    })
    .await;
    let next = client.after(&connection).await;
    call(&next).await.unwrap();
    assert_eq!(second.script().calls(Call::BootstrapParams).len(), 1);
    client.close().await;
}

#[tokio::test]
async fn a_plaintext_server_is_distinguished_from_an_untrusted_one() {
    let ca = TestCa::new();
    let server = FakeServer::plaintext().await;
    let client = Client::start(tls("127.0.0.1", &server, trusting(&ca), None));
    let mut states = client.session.subscribe();
    let failed = |state: &SessionState| {
        matches!(
            state,
            SessionState::Connecting {
                last_error: Some(_)
            }
        )
    };
    let state = tokio::time::timeout(WAIT, states.wait_for(failed))
        .await
        .unwrap()
        .unwrap()
        .clone();
    assert!(format!("{state:?}").contains("-tls-disabled"), "{state:?}");
    client.close().await;
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_at_once() {
    let scope = Scope::new("test");
    let refused = |config| connect(config, &scope.spawner(), &Registry::new()).unwrap_err();
    let tls = |ca: Option<std::path::PathBuf>| TlsConfig {
        ca,
        ..TlsConfig::default()
    };
    let nameless = ClientConfig {
        tls: Some(tls(None)),
        ..config("exec=echo 127.0.0.1", 8502)
    };
    assert!(matches!(refused(nameless), ConfigError::NoServerName));
    let unreadable = ClientConfig {
        tls: Some(tls(Some("/no/such/ca.pem".into()))),
        ..config("localhost", 8502)
    };
    let error = refused(unreadable).to_string();
    assert!(
        error.contains("/no/such/ca.pem") && error.contains("-ca-certs"),
        "{error}"
    );
    let token = Credentials::Static(legate_model::Secret::new("line\nbreak"));
    let error = refused(ClientConfig {
        credentials: token,
        ..config("localhost", 8502)
    });
    assert!(matches!(error, ConfigError::Token));
}

/// The first error of a session.
async fn first_error(client: &Client) -> String {
    let mut states = client.session.subscribe();
    let failed = |state: &SessionState| match state {
        SessionState::Connecting { last_error } => last_error.is_some(),
        _ => true,
    };
    let state = tokio::time::timeout(WAIT, states.wait_for(failed)).await;
    match &*state.unwrap().unwrap() {
        SessionState::Connecting { last_error } => last_error.as_ref().unwrap().to_string(),
        other => panic!("{other:?}"),
    }
}

/// Sends `answer` to every client after its first bytes, and closes the connection.
async fn odd_server(answer: &'static [u8]) -> (u16, Scope) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let scope = Scope::new("odd server");
    scope.spawn("answer", async move {
        loop {
            let (mut stream, _) = listener.accept().await?;
            let mut heard = [0; 4096];
            if stream.read(&mut heard).await? > 0 {
                // The client may be gone already.
                let _ = stream.write_all(answer).await;
            }
        }
        #[expect(unreachable_code, reason = "it ends with its scope")]
        Ok::<_, std::io::Error>(())
    });
    (port, scope)
}

#[tokio::test]
async fn plaintext_to_a_tls_port_is_reported() {
    let ca = TestCa::new();
    let server = FakeServer::tls(ca.server_config(&["127.0.0.1"], ServerTls::default())).await;
    for credentials in [
        Credentials::None,
        Credentials::Login(legate_client::LoginConfig {
            auth_method: "k8s".into(),
            namespace: String::new(),
            partition: String::new(),
            datacenter: String::new(),
            bearer: legate_client::Bearer::Token(legate_model::Secret::new("jwt")),
            meta: [].into(),
        }),
    ] {
        let client = Client::start(with(credentials, &server));
        let error = first_error(&client).await;
        for words in ["expect", "TLS: check -tls-disabled and -grpc-port"] {
            assert!(error.contains(words), "{error}");
        }
        client.close().await;
    }
}

#[tokio::test]
async fn other_protocols_on_the_port_are_reported_where_recognised() {
    let http: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    for (answer, hint) in [
        (&b""[..], Some("may expect TLS")),
        (&[21, 3, 1, 0, 2, 2, 70], Some("expects TLS")),
        (http, Some("speaks HTTP/1")),
        (b"SSH-2.0-OpenSSH_9.9\r\n", None),
    ] {
        let (port, scope) = odd_server(answer).await;
        let client = Client::start(config("127.0.0.1", port));
        let error = first_error(&client).await;
        match hint {
            Some(hint) => assert!(error.contains(hint), "{error}"),
            None => assert!(!error.contains("check -"), "{error}"),
        }
        client.close().await;
        drop(scope);
    }
}

#[tokio::test]
async fn an_http_port_is_distinguished_from_one_without_tls() {
    let http: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let ca = TestCa::new();
    for (answer, hint) in [
        (http, "speaks HTTP/1, not gRPC: check -grpc-port"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "does not speak TLS"),
    ] {
        let (port, scope) = odd_server(answer).await;
        let client = Client::start(ClientConfig {
            tls: Some(trusting(&ca)),
            ..config("127.0.0.1", port)
        });
        let error = first_error(&client).await;
        assert!(error.contains(hint), "{error}");
        client.close().await;
        drop(scope);
    }
}

#[tokio::test]
async fn a_grpc_server_gets_no_hint_about_tls() {
    let server = FakeServer::plaintext().await;
    let broken = Status::unavailable("starting");
    server.script().fail_always(Call::Features, broken);
    let client = Client::start(config("127.0.0.1", server.address().port()));
    let error = first_error(&client).await;
    assert!(error.ends_with("starting"), "{error}");
    client.close().await;

    // Nor does an unreachable server.
    let client = Client::start(config("127.0.0.1", legate_testkit::network::free_port()));
    let error = first_error(&client).await;
    assert!(!error.contains("TLS"), "{error}");
    client.close().await;
}
