use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Redirect;
use axum::routing::{get, put};
use legate_runtime::Scope;
use legate_testkit::certs::{ServerTls, TestCa};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use CheckStatus::{Critical, Passing, Warning};

async fn serve(scope: &Scope, router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    scope.spawn("web", async move { axum::serve(listener, router).await });
    address
}

async fn run(check: CheckType) -> RunResult {
    Prober::default().run(&check).await
}

fn http(address: SocketAddr, path: &str) -> CheckType {
    CheckType {
        http: format!("http://{address}{path}"),
        timeout: Duration::from_secs(5),
        ..CheckType::default()
    }
}

#[tokio::test]
async fn http_statuses_are_consuls() {
    let scope = Scope::new("test");
    let router = Router::new()
        .route("/ok", get(|| async { "fine" }))
        .route("/busy", get(|| async { StatusCode::TOO_MANY_REQUESTS }))
        .route("/gone", get(|| async { StatusCode::NOT_FOUND }))
        .route("/moved", get(|| async { Redirect::temporary("/ok") }))
        .route("/loop", get(|| async { Redirect::temporary("/loop") }))
        .route("/large", get(|| async { "x".repeat(1_000_000) }));
    let at = serve(&scope, router).await;
    let (status, output) = run(http(at, "/ok")).await;
    assert_eq!(status, Passing, "{output}");
    assert_eq!(
        output,
        format!("HTTP GET http://{at}/ok: 200 OK Output: fine")
    );
    assert_eq!(run(http(at, "/busy")).await.0, Warning);
    assert_eq!(run(http(at, "/gone")).await.0, Critical);
    assert_eq!(run(http(at, "/moved")).await.0, Passing);
    let still = CheckType {
        disable_redirects: true,
        ..http(at, "/moved")
    };
    assert_eq!(run(still).await.0, Critical);
    let (status, output) = run(http(at, "/loop")).await;
    assert!(
        status == Critical && output.contains("redirects"),
        "{output}"
    );
    let small = CheckType {
        output_max_size: 100,
        ..http(at, "/large")
    };
    let (status, output) = run(small).await;
    assert_eq!((status, output.len()), (Passing, 100));
}

#[tokio::test]
async fn redirects_may_be_relative() {
    let scope = Scope::new("test");
    let moved = |to: &'static str| get(move || async move { Redirect::temporary(to) });
    let shown = |uri: axum::http::Uri| async move { uri.to_string() };
    let router = Router::new()
        .route("/a/b", moved("c#part"))
        .route("/a/c", moved("../up?x=1"))
        .route("/up", get(shown));
    let at = serve(&scope, router).await;
    let (status, output) = run(http(at, "/a/b")).await;
    assert_eq!(status, Passing, "{output}");
    assert!(output.ends_with("Output: /up?x=1"), "{output}");
}

#[tokio::test]
async fn http_requests_have_the_configured_parts() {
    let scope = Scope::new("test");
    let echo = |headers: HeaderMap, body: String| async move {
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        format!("{} {} {body}", header("host"), header("x-own"))
    };
    let at = serve(&scope, Router::new().route("/", put(echo))).await;
    let check = CheckType {
        method: "put".to_owned(),
        body: "hello".to_owned(),
        header: BTreeMap::from([
            ("Host".to_owned(), vec!["other.example".to_owned()]),
            ("X-Own".to_owned(), vec!["1".to_owned()]),
        ]),
        ..http(at, "/")
    };
    let (status, output) = run(check).await;
    assert_eq!(status, Passing, "{output}");
    assert!(output.ends_with("other.example 1 hello"), "{output}");
}

#[tokio::test]
async fn the_user_of_a_url_is_sent_as_basic_authorization_and_redacted() {
    let scope = Scope::new("test");
    let echo = |headers: HeaderMap| async move {
        let sent = headers.get("authorization");
        sent.map_or("nobody", |sent| sent.to_str().unwrap())
            .to_owned()
    };
    let router = Router::new()
        .route("/", get(echo))
        .route("/moved", get(|| async { Redirect::temporary("/") }));
    let at = serve(&scope, router).await;
    let other = serve(
        &scope,
        Router::new().route(
            "/",
            get(move || async move { Redirect::temporary(&format!("http://{at}/")) }),
        ),
    )
    .await;
    let check = |at: SocketAddr, path: &str| CheckType {
        http: format!("http://user:a%40b@{at}{path}"),
        ..CheckType::default()
    };
    let own = CheckType {
        header: BTreeMap::from([("Authorization".to_owned(), vec!["Bearer x".to_owned()])]),
        ..check(at, "/")
    };
    for (check, sent) in [
        (check(at, "/"), "Basic dXNlcjphQGI="),
        // A relative redirect, and one to another server.
        (check(at, "/moved"), "Basic dXNlcjphQGI="),
        (check(other, "/"), "nobody"),
        (own, "Bearer x"),
    ] {
        let (status, output) = run(check).await;
        assert_eq!(status, Passing, "{output}");
        assert!(output.ends_with(&format!("Output: {sent}")), "{output}");
        assert!(output.contains("http://***@127.0.0.1:"), "{output}");
    }
    let (_, output) = run(check(SocketAddr::from(([127, 0, 0, 1], 1)), "/")).await;
    assert!(!output.contains("a%40b"), "{output}");
}

#[tokio::test]
async fn tcp_passes_with_a_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = CheckType {
        tcp: listener.local_addr().unwrap().to_string(),
        ..CheckType::default()
    };
    assert_eq!(run(tcp.clone()).await.0, Passing);
    drop(listener);
    let (status, output) = run(tcp.clone()).await;
    assert_eq!(status, Critical);
    assert!(output.contains(&tcp.tcp), "{output}");
}

#[tokio::test]
async fn certificates_are_verified_unless_disabled() {
    let scope = Scope::new("test");
    let tls = ServerTls {
        alpn: false,
        ..ServerTls::default()
    };
    let acceptor = TlsAcceptor::from(TestCa::new().server_config(&["localhost"], tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    scope.spawn("web", async move {
        loop {
            let (stream, _) = listener.accept().await?;
            // A client that does not trust the certificate aborts the handshake.
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nfine").await;
                let _ = stream.shutdown().await;
            }
        }
        #[expect(unreachable_code, reason = "says what type an error has")]
        Ok::<_, io::Error>(())
    });
    for check in [
        CheckType {
            http: format!("https://{at}/"),
            ..CheckType::default()
        },
        CheckType {
            tcp: at.to_string(),
            tcp_use_tls: true,
            ..CheckType::default()
        },
    ] {
        let (status, output) = run(check.clone()).await;
        assert_eq!(status, Critical, "{output}");
        assert!(output.contains("certificate"), "{output}");
        let skipping = CheckType {
            tls_skip_verify: true,
            ..check
        };
        let (status, output) = run(skipping).await;
        assert_eq!(status, Passing, "{output}");
    }
}

#[tokio::test]
async fn grpc_queries_the_health_service() {
    let scope = Scope::new("test");
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter
        .set_service_status("db", tonic_health::ServingStatus::NotServing)
        .await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder().add_service(service);
    scope.spawn(
        "gRPC",
        async move { server.serve_with_incoming(incoming).await },
    );
    let grpc = |target: String| CheckType {
        grpc: target,
        timeout: Duration::from_secs(5),
        ..CheckType::default()
    };
    let (status, output) = run(grpc(at.to_string())).await;
    assert_eq!(status, Passing, "{output}");
    let (status, output) = run(grpc(format!("{at}/db"))).await;
    assert!(
        status == Critical && output.contains("NOT_SERVING"),
        "{output}"
    );
    let (status, output) = run(grpc(format!("{at}/nobody"))).await;
    assert!(
        status == Critical && output.contains("NotFound"),
        "{output}"
    );
}

#[tokio::test]
async fn unresponsive_targets_are_critical_within_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    for check in [
        http(at, "/"),
        CheckType {
            grpc: at.to_string(),
            ..CheckType::default()
        },
        CheckType {
            tcp: at.to_string(),
            tcp_use_tls: true,
            tls_skip_verify: true,
            ..CheckType::default()
        },
    ] {
        let limited = CheckType {
            timeout: Duration::from_millis(50),
            ..check
        };
        let (status, output) = run(limited).await;
        assert_eq!(
            (status, output.as_str()),
            (Critical, "no answer within 50ms")
        );
    }
}

#[tokio::test]
async fn udp_passes_unless_refused() {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let udp = CheckType {
        udp: socket.local_addr().unwrap().to_string(),
        timeout: Duration::from_millis(200),
        ..CheckType::default()
    };
    // No response, and a response.
    assert_eq!(run(udp.clone()).await.0, Passing);
    let answer = async {
        let (_, from) = socket.recv_from(&mut [0; 1]).await.unwrap();
        // The first datagram is from the previous run, whose socket is closed.
        let _ = socket.send_to(b"x", from).await;
        let (_, from) = socket.recv_from(&mut [0; 1]).await.unwrap();
        socket.send_to(b"x", from).await.unwrap();
    };
    let patient = CheckType {
        timeout: Duration::from_secs(20),
        ..udp.clone()
    };
    let ((status, output), ()) = tokio::join!(run(patient), answer);
    assert_eq!(status, Passing, "{output}");
    assert_eq!(output, format!("UDP connect {}: Success", udp.udp));
    drop(socket);
    let (status, output) = run(udp).await;
    assert_eq!(status, Critical, "{output}");
}

#[tokio::test]
async fn h2ping_requires_a_ping_acknowledgement() {
    let scope = Scope::new("test");
    let tls = ServerTls::default();
    let acceptor = TlsAcceptor::from(TestCa::new().server_config(&["localhost"], tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain_at = plain.local_addr().unwrap();
    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S) {
        if let Ok(mut connection) = h2::server::handshake(stream).await {
            while connection.accept().await.is_some() {}
        }
    }
    scope.spawn("h2", async move {
        loop {
            let (stream, _) = listener.accept().await?;
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream).await;
            }
        }
        #[expect(unreachable_code, reason = "says what type an error has")]
        Ok::<_, io::Error>(())
    });
    scope.spawn("h2c", async move {
        loop {
            serve(plain.accept().await?.0).await;
        }
        #[expect(unreachable_code, reason = "says what type an error has")]
        Ok::<_, io::Error>(())
    });
    let ping = |at: SocketAddr, tls: Option<bool>| CheckType {
        h2ping: at.to_string(),
        h2ping_use_tls: tls,
        tls_skip_verify: true,
        timeout: Duration::from_secs(5),
        ..CheckType::default()
    };
    for check in [ping(at, None), ping(plain_at, Some(false))] {
        let (status, output) = run(check).await;
        assert_eq!(
            (status, output.as_str()),
            (Passing, "HTTP2 ping was successful")
        );
    }
    // TLS is the default.
    assert_eq!(run(ping(plain_at, None)).await.0, Critical);
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let (status, output) = run(ping(nobody, Some(false))).await;
    assert!(
        status == Critical && output.starts_with("Failed to dial to"),
        "{output}"
    );
}

fn script(arguments: &[&str]) -> CheckType {
    CheckType {
        script_args: arguments.iter().map(|&one| one.to_owned()).collect(),
        ..CheckType::default()
    }
}

#[tokio::test]
async fn the_exit_code_of_a_program_is_the_status() {
    for (code, expected) in [(0, Passing), (1, Warning), (2, Critical)] {
        let command = format!("echo out; echo err >&2; exit {code}");
        let (status, output) = run(script(&["sh", "-c", &command])).await;
        assert_eq!(status, expected, "{output}");
        assert!(output.contains("out") && output.contains("err"), "{output}");
    }
    let (status, output) = run(script(&["/no/such/program"])).await;
    assert!(
        status == Critical && output.contains("/no/such/program"),
        "{output}"
    );
    let small = CheckType {
        output_max_size: 4,
        ..script(&["sh", "-c", "printf 0123456789"])
    };
    let (_, output) = run(small).await;
    assert_eq!(output, "Captured 4 of 10 bytes\n...\n6789");
}

#[tokio::test]
async fn a_timeout_kills_a_program_and_its_children() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("alive");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // The inner process holds the pipe open as long as it runs.
    let command = format!("echo begun; sleep 600 >{} & sleep 600", fifo.display());
    let check = CheckType {
        timeout: Duration::from_millis(300),
        ..script(&["sh", "-c", &command])
    };
    let mut end = Vec::new();
    let reading = async {
        let mut pipe = tokio::fs::File::open(&fifo).await.unwrap();
        pipe.read_to_end(&mut end).await.unwrap();
    };
    let ((status, output), ()) = tokio::join!(run(check), reading);
    assert_eq!(status, Critical);
    assert_eq!(output, "Timed out (300ms) running check\n\nbegun");
}
