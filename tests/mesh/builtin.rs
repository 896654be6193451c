//! The built-in proxy: what it serves, with another one or an Envoy at the other end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use legate_ca::CaConfig;
use legate_runtime::Scope;
use legate_tests::client::line;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use serde_json::json;
use socket2::SockRef;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::terminating::outside;

const DB: ServiceSpec = ServiceSpec::tcp("db", &[]);
const SHOP: ServiceSpec = ServiceSpec::tcp("shop", &["db"]);

/// The proxies of the caller and of the called service.
const PAIRS: [(&str, &str); 3] = [
    ("builtin", "builtin"),
    ("builtin", "envoy"),
    ("envoy", "builtin"),
];

/// How long an exchange may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts the sidecar of a registered service with this kind of proxy.
async fn join(mesh: &mut Mesh, spec: &ServiceSpec, kind: &'static str) -> Sidecar {
    mesh.use_proxy(kind);
    mesh.join(spec).await
}

async fn add(mesh: &mut Mesh, spec: &ServiceSpec, kind: &'static str) -> Sidecar {
    mesh.register(spec).await;
    join(mesh, spec, kind).await
}

async fn hello(upstream: SocketAddr, expected: &str) {
    let reply = eventually(
        "a line comes back",
        || line(upstream, "hello"),
        |reply| reply == expected,
    )
    .await;
    assert_eq!(reply, expected);
}

async fn refused(upstream: SocketAddr) {
    eventually(
        "a line does not come back",
        || line(upstream, "hello"),
        String::is_empty,
    )
    .await;
}

/// Ends sidecars and their mesh.
pub(crate) async fn stop<const N: usize>(mesh: Mesh, sidecars: [&mut Sidecar; N]) {
    for sidecar in sidecars {
        assert!(
            sidecar.stop().await.success(),
            "SIGTERM is a clean end:\n{}",
            sidecar.log()
        );
    }
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_with_mutual_tls_and_intentions() {
    for (caller, called) in PAIRS {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        mesh.intend("shop", "db", "allow").await;
        let mut db = add(&mut mesh, &DB, called).await;
        let mut shop = add(&mut mesh, &SHOP, caller).await;
        let upstream = mesh.upstream("shop", 0);
        hello(upstream, "db: hello\n").await;
        // A TLS alert is all that comes back.
        let reply = line(mesh.public("db"), "hello").await;
        assert!(
            !reply.contains("db"),
            "the public listener answers without TLS: {reply:?}"
        );
        mesh.intend("shop", "db", "deny").await;
        refused(upstream).await;
        mesh.intend("shop", "db", "allow").await;
        hello(upstream, "db: hello\n").await;
        stop(mesh, [&mut shop, &mut db]).await;
    }
}

/// An application whose first line says what it does with a connection.
#[derive(Clone, Default)]
struct App {
    accepted: Arc<AtomicUsize>,
    /// Bytes that it has received after it ended its own direction.
    late: Arc<AtomicUsize>,
}

impl App {
    async fn start(&self, address: SocketAddr, scope: &Scope) {
        let listener = TcpListener::bind(address)
            .await
            .expect("the address is free");
        let (app, spawner) = (self.clone(), scope.spawner());
        scope.spawner().spawn_until_stop("application", async move {
            while let Ok((stream, _)) = listener.accept().await {
                app.accepted.fetch_add(1, Ordering::SeqCst);
                let app = app.clone();
                spawner.spawn_until_stop("connection", async move {
                    // A scenario sees what is missing.
                    let _ = app.serve(stream).await;
                });
            }
        });
    }

    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut command = String::new();
        stream.read_line(&mut command).await?;
        match command.trim() {
            "echo" => {
                let (mut reader, mut writer) = tokio::io::split(stream);
                tokio::io::copy(&mut reader, &mut writer).await?;
                writer.write_all(b"bye").await?;
                writer.shutdown().await
            }
            "end-first" => {
                stream.write_all(b"over").await?;
                stream.shutdown().await?;
                let mut rest = Vec::new();
                let count = stream.read_to_end(&mut rest).await?;
                self.late.fetch_add(count, Ordering::SeqCst);
                Ok(())
            }
            "reset" => {
                let stream = stream.into_inner();
                SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                Ok(())
            }
            other => {
                stream
                    .write_all(format!("db: {other}\n").as_bytes())
                    .await?;
                Ok(())
            }
        }
    }
}

async fn open(upstream: SocketAddr, command: &str) -> TcpStream {
    let mut stream = TcpStream::connect(upstream).await.expect("it listens");
    let command = format!("{command}\n");
    stream
        .write_all(command.as_bytes())
        .await
        .expect("it is sent");
    stream
}

/// Either side ends its direction first, and the other one goes on.
async fn half_closed(upstream: SocketAddr, app: &App) {
    let mut stream = open(upstream, "echo").await;
    stream.write_all(b"hello").await.expect("it is sent");
    stream.shutdown().await.expect("one direction ends");
    let mut reply = String::new();
    stream
        .read_to_string(&mut reply)
        .await
        .expect("the other goes on");
    assert_eq!(reply, "hellobye");

    let late = app.late.load(Ordering::SeqCst);
    let mut stream = open(upstream, "end-first").await;
    let mut reply = String::new();
    stream
        .read_to_string(&mut reply)
        .await
        .expect("one direction ends");
    assert_eq!(reply, "over");
    stream
        .write_all(&[7; 100_000])
        .await
        .expect("the other goes on");
    stream.shutdown().await.expect("it ends, too");
    eventually(
        "the application has got everything",
        || async { app.late.load(Ordering::SeqCst) },
        |now| *now == late + 100_000,
    )
    .await;
}

/// A side that resets its connection ends the other one.
async fn resets(upstream: SocketAddr) {
    let mut stream = open(upstream, "reset").await;
    let mut rest = Vec::new();
    // It may be an end or a reset.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    let stream = open(upstream, "echo").await;
    SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .expect("a socket option");
}

/// A block of bytes that are sent again and again, a multiple of their period.
const BLOCK: usize = 7 * 256 * 36;
const GIBIBYTE: usize = 1024 * 1024 * 1024;

/// Single bytes, and much at once in both directions.
async fn amounts(upstream: SocketAddr, blocks: usize) {
    let mut stream = open(upstream, "echo").await;
    for byte in 0..=255 {
        stream.write_u8(byte).await.expect("it is sent");
        assert_eq!(stream.read_u8().await.expect("it comes back"), byte);
    }
    let block: Vec<u8> = (0..BLOCK).map(|at| (at / 7) as u8).collect();
    let (mut reader, mut writer) = stream.into_split();
    let write = async {
        for _ in 0..blocks {
            writer.write_all(&block).await.expect("it is sent");
        }
        writer.shutdown().await.expect("it ends");
    };
    let read = async {
        // What is not read yet has to wait somewhere, within limits.
        reader.readable().await.expect("something is there");
        let mut received = vec![0; BLOCK];
        for number in 0..blocks {
            let read = reader.read_exact(&mut received).await;
            read.expect("it comes back");
            assert!(received == block, "block {number}");
        }
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).await.expect("it ends");
        assert_eq!(rest.len(), 3);
    };
    tokio::join!(write, read);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_end_and_carry_as_applications_expect() {
    for (caller, called) in PAIRS {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        let scope = Scope::new("applications");
        mesh.intend("shop", "db", "allow").await;
        mesh.register_dead(&DB).await;
        let app = App::default();
        app.start(mesh.application("db"), &scope).await;
        let mut db = join(&mut mesh, &DB, called).await;
        let mut shop = add(&mut mesh, &SHOP, caller).await;
        let upstream = mesh.upstream("shop", 0);
        hello(upstream, "db: hello\n").await;
        let all = async {
            half_closed(upstream, &app).await;
            resets(upstream).await;
            let blocks = match (caller, called) {
                ("builtin", "builtin") => GIBIBYTE / BLOCK,
                _ => 500,
            };
            amounts(upstream, blocks).await;
        };
        let done = timeout(LIMIT, all).await;
        assert!(
            done.is_ok(),
            "{caller} to {called}:\n{}\n{}",
            shop.log(),
            db.log()
        );
        stop(mesh, [&mut shop, &mut db]).await;
        scope.stop(LIMIT).await.expect("applications end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_caller_never_reaches_the_application() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let scope = Scope::new("applications");
    mesh.intend("shop", "db", "deny").await;
    mesh.register_dead(&DB).await;
    let app = App::default();
    app.start(mesh.application("db"), &scope).await;
    let mut db = join(&mut mesh, &DB, "builtin").await;
    let mut shop = add(&mut mesh, &SHOP, "builtin").await;
    let upstream = mesh.upstream("shop", 0);
    eventually(
        "a caller is denied",
        || async {
            let _ = line(upstream, "hello").await;
            db.stat("connect_authz.rbac.denied").await
        },
        |denied| *denied > 0,
    )
    .await;
    assert_eq!(app.accepted.load(Ordering::SeqCst), 0);

    // An open connection ends with its permission.
    mesh.intend("shop", "db", "allow").await;
    hello(upstream, "db: hello\n").await;
    let mut stream = open(upstream, "echo").await;
    stream.write_all(b"x").await.expect("it is sent");
    assert_eq!(stream.read_u8().await.expect("it comes back"), b'x');
    mesh.intend("shop", "db", "deny").await;
    let mut rest = Vec::new();
    let ended = timeout(LIMIT, stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection stays open");
    stop(mesh, [&mut shop, &mut db]).await;
    scope.stop(LIMIT).await.expect("applications end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_turn_to_another_instance_and_back() {
    const SECOND: ServiceSpec = ServiceSpec {
        instance: "db-2",
        ..DB
    };
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("shop", "db", "allow").await;
    let mut first = add(&mut mesh, &DB, "builtin").await;
    let mut second = add(&mut mesh, &SECOND, "envoy").await;
    let mut shop = add(&mut mesh, &SHOP, "builtin").await;
    let upstream = mesh.upstream("shop", 0);
    hello(upstream, "db: hello\n").await;
    hello(upstream, "db-2: hello\n").await;
    // Nothing answers at its address any more: every connection gets to the other one.
    first.signal(nix::sys::signal::Signal::SIGKILL);
    first.exit().await;
    for _ in 0..20 {
        assert_eq!(line(upstream, "hello").await, "db-2: hello\n");
    }
    let mut first = join(&mut mesh, &DB, "builtin").await;
    hello(upstream, "db: hello\n").await;
    stop(mesh, [&mut shop, &mut second, &mut first]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_connections_holds_and_ends() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let scope = Scope::new("applications");
    mesh.intend("shop", "db", "allow").await;
    mesh.register_dead(&DB).await;
    App::default().start(mesh.application("db"), &scope).await;
    let mut db = join(&mut mesh, &DB, "builtin").await;
    mesh.register(&SHOP).await;
    mesh.entry(json!({
        "Kind": "service-defaults", "Name": "shop", "Protocol": "tcp",
        "UpstreamConfig": {"Overrides": [{"Name": "db", "Limits": {"MaxConnections": 2}}]},
    }))
    .await;
    let mut shop = join(&mut mesh, &SHOP, "builtin").await;
    let upstream = mesh.upstream("shop", 0);
    hello(upstream, "db: hello\n").await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = open(upstream, "echo").await;
        stream.write_all(b"x").await.expect("it is sent");
        stream.read_u8().await.expect("it comes back");
        held.push(stream);
    }
    assert_eq!(line(upstream, "hello").await, "");
    held.pop();
    hello(upstream, "db: hello\n").await;
    drop(held);
    stop(mesh, [&mut shop, &mut db]).await;
    scope.stop(LIMIT).await.expect("applications end");
}

/// What needs Envoy is refused by name, and nothing that was served is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_needs_envoy_is_refused_by_name() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("shop", "db", "allow").await;
    let mut db = add(&mut mesh, &DB, "builtin").await;
    let mut shop = add(&mut mesh, &SHOP, "builtin").await;
    let upstream = mesh.upstream("shop", 0);
    hello(upstream, "db: hello\n").await;
    mesh.entry(json!({"Kind": "service-defaults", "Name": "db", "Protocol": "http"}))
        .await;
    eventually(
        "the refusal is logged",
        || async { db.log() },
        |log| log.contains("needs Envoy") && log.contains("HttpConnectionManager"),
    )
    .await;
    let status = db.status().await;
    assert!(status.to_string().contains("needs Envoy"), "{status}");
    mesh.entry(json!({"Kind": "service-defaults", "Name": "db", "Protocol": "tcp"}))
        .await;
    hello(upstream, "db: hello\n").await;
    stop(mesh, [&mut shop, &mut db]).await;

    // A setting that only Envoy has ends the process.
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&DB).await;
    let tracing = json!({"Config": {"envoy_tracing_json": "{\"http\": {}}"}});
    mesh.configure(&DB, tracing).await;
    mesh.use_proxy("builtin");
    let flags = mesh.flags(DB.instance);
    let mut sidecar = mesh.sidecar(DB.instance, &flags);
    assert!(!sidecar.exit().await.success());
    assert!(
        sidecar.log().contains("envoy_tracing_json needs Envoy"),
        "{}",
        sidecar.log()
    );
    mesh.stop().await;
}

/// The pages that operators and `legate proxy` read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_people_look_at() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("shop", "db", "allow").await;
    let mut db = add(&mut mesh, &DB, "builtin").await;
    let mut shop = add(&mut mesh, &SHOP, "builtin").await;
    hello(mesh.upstream("shop", 0), "db: hello\n").await;
    let (_, clusters) = client::get(shop.admin(), "/clusters")
        .await
        .expect("an answer");
    assert!(clusters.contains("::hostname::"), "{clusters}");
    assert_eq!(shop.endpoints().await.len(), 1);
    assert!(shop.leaf_serial().await.is_some());
    let (_, metrics) = client::get(db.admin(), "/stats/prometheus")
        .await
        .expect("an answer");
    let handshakes = "envoy_listener_ssl_handshake{";
    assert!(metrics.contains(handshakes), "{metrics}");
    let (_, dump) = client::get(db.admin(), "/config_dump?include_eds")
        .await
        .expect("an answer");
    assert!(dump.contains("public_listener"), "{dump}");
    assert!(!dump.contains("PRIVATE KEY"), "a key is shown");
    // The first of these connections is verified, the second one resumes its session.
    hello(mesh.upstream("shop", 0), "db: hello\n").await;
    let public = mesh.public("db");
    let reused = format!(
        "listener.{}_{}.ssl.session_reused",
        public.ip(),
        public.port()
    );
    assert!(db.stat(&reused).await > 0, "{metrics}");
    let path = "/logging?level=debug";
    let (_, loggers) = client::send(Method::POST, db.admin(), path, None, None)
        .await
        .expect("an answer");
    assert!(loggers.contains("legate-dataplane: debug"), "{loggers}");
    let log = async || {
        // It is no TLS.
        let _ = client::get(public, "/").await;
        db.log()
    };
    let debug = |log: &String| log.contains("a TLS handshake failed");
    eventually("it logs details", log, debug).await;
    stop(mesh, [&mut shop, &mut db]).await;
}

/// Certificates are renewed every few seconds, and a connection stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_certificates_close_nothing() {
    let ca = CaConfig {
        leaf_ttl: Duration::from_secs(16),
        ..CaConfig::default()
    };
    let mut mesh = Mesh::start(MeshOptions {
        ca,
        ..MeshOptions::default()
    })
    .await;
    let scope = Scope::new("applications");
    mesh.intend("shop", "db", "allow").await;
    mesh.register_dead(&DB).await;
    App::default().start(mesh.application("db"), &scope).await;
    let mut db = join(&mut mesh, &DB, "builtin").await;
    let mut shop = add(&mut mesh, &SHOP, "builtin").await;
    let upstream = mesh.upstream("shop", 0);
    hello(upstream, "db: hello\n").await;
    let mut held = open(upstream, "echo").await;
    for sidecar in [&shop, &db] {
        let serial = sidecar.leaf_serial().await;
        eventually(
            "the certificate is renewed",
            || sidecar.leaf_serial(),
            |now| *now != serial,
        )
        .await;
    }
    held.write_all(b"x").await.expect("it is sent");
    assert_eq!(held.read_u8().await.expect("it comes back"), b'x');
    hello(upstream, "db: hello\n").await;
    stop(mesh, [&mut shop, &mut db]).await;
    scope.stop(LIMIT).await.expect("applications end");
}

/// The ways into and out of the mesh for TCP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingress_and_terminating_gateways() {
    const CALLER: ServiceSpec = ServiceSpec::tcp("web", &["raw"]);
    const PORT: u16 = 8001;
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.use_proxy("builtin");
    let mut db = mesh.add(&DB).await;
    let listeners = json!([{"Port": PORT, "Services": [{"Name": "db"}]}]);
    mesh.entry(json!({"Kind": "ingress-gateway", "Name": "edge", "Listeners": listeners}))
        .await;
    let mut edge = mesh.add_gateway("ingress-gateway", "edge", json!({})).await;
    let port = (edge.address, PORT).into();
    refused(port).await;
    mesh.intend("edge", "db", "allow").await;
    hello(port, "db: hello\n").await;

    let address = mesh.application("raw");
    mesh.outsider("raw", address).await;
    outside(&mesh, "raw", "tcp", address).await;
    mesh.entry(json!({
        "Kind": "terminating-gateway", "Name": "egress", "Services": [{"Name": "raw"}],
    }))
    .await;
    let mut egress = mesh
        .add_gateway("terminating-gateway", "egress", json!({}))
        .await;
    let mut caller = mesh.add(&CALLER).await;
    let upstream = mesh.upstream("web", 0);
    let ask = || async { client::get(upstream, "/").await.is_ok() };
    eventually("the caller is denied", ask, |answered| !answered).await;
    mesh.intend("web", "raw", "allow").await;
    eventually("the service outside answers", ask, |answered| *answered).await;
    mesh.intend("web", "raw", "deny").await;
    eventually("the caller is denied again", ask, |answered| !answered).await;
    stop(mesh, [&mut caller, &mut egress, &mut edge, &mut db]).await;
}

/// Bytes of an open connection are in the statistics while it is open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_count_while_a_connection_is_open() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let scope = Scope::new("applications");
    mesh.intend("shop", "db", "allow").await;
    mesh.register_dead(&DB).await;
    App::default().start(mesh.application("db"), &scope).await;
    let mut db = join(&mut mesh, &DB, "builtin").await;
    let mut shop = add(&mut mesh, &SHOP, "builtin").await;
    let upstream = mesh.upstream("shop", 0);
    hello(upstream, "db: hello\n").await;
    let name = "tcp.public_listener.downstream_cx_rx_bytes_total";
    let before = db.stat(name).await;
    let mut held = open(upstream, "echo").await;
    held.write_all(&[7; 1000]).await.expect("it is sent");
    held.read_exact(&mut [0; 1000])
        .await
        .expect("it comes back");
    let enough = |bytes: &u64| *bytes >= before + 1000;
    eventually("the bytes are counted", || db.stat(name), enough).await;
    drop(held);
    stop(mesh, [&mut shop, &mut db]).await;
    scope.stop(LIMIT).await.expect("applications end");
}
