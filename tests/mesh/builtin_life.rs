//! The built-in proxy through changes and failures around it: sockets of other kinds, also with Envoy, servers that go,
//! descriptors that end.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use legate_runtime::Scope;
use legate_tests::client::line;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::builtin::stop;

const DB: ServiceSpec = ServiceSpec::tcp("db", &[]);
const SHOP: ServiceSpec = ServiceSpec::tcp("shop", &["db"]);

const KINDS: [&str; 2] = ["builtin", "envoy"];

/// How long an application may take to end.
const LIMIT: Duration = Duration::from_secs(5);

/// Answers each line with a name before it.
async fn echo(name: &'static str, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut stream = BufReader::new(stream);
    let mut text = String::new();
    while stream
        .read_line(&mut text)
        .await
        .is_ok_and(|count| count > 0)
    {
        let answer = format!("{name}: {text}");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        text.clear();
    }
}

/// A line there and back, on a connection that is open.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let mut stream = BufReader::new(stream);
    let mut answer = String::new();
    // Nothing came back if it fails.
    let _ = stream.write_all(b"hello\n").await;
    let _ = stream.read_line(&mut answer).await;
    answer
}

async fn until(address: SocketAddr, expected: &str) {
    let is_expected = |reply: &String| reply == expected;
    eventually("a line comes back", || line(address, "hello"), is_expected).await;
}

/// A caller and a called service, with these fields of the application in the called one's proxy and these of the
/// upstream in the caller's.
async fn with_sockets(mesh: &mut Mesh, application: Value, mut upstream: Value) -> [Sidecar; 2] {
    mesh.intend("shop", "db", "allow").await;
    mesh.register_dead(&DB).await;
    mesh.configure(&DB, application).await;
    mesh.register(&SHOP).await;
    upstream["DestinationName"] = json!("db");
    mesh.configure(&SHOP, json!({"Upstreams": [upstream]}))
        .await;
    [mesh.join(&DB).await, mesh.join(&SHOP).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_sockets_on_both_sides() {
    for kind in KINDS {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        mesh.use_proxy(kind);
        let (app, upstream) = (mesh.file("app.sock"), mesh.file("upstream.sock"));
        let listener = UnixListener::bind(&app).expect("the path is free");
        let scope = Scope::new("application");
        let spawner = scope.spawner();
        scope.spawner().spawn_until_stop("application", async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawner.spawn_until_stop("connection", echo("unix", stream));
            }
        });
        let local = json!({"LocalServiceSocketPath": app, "LocalServicePort": 0, "LocalServiceAddress": ""});
        let socket = json!({"LocalBindSocketPath": upstream, "LocalBindSocketMode": "0700"});
        let [mut db, mut shop] = with_sockets(&mut mesh, local, socket).await;
        let ask = async || match UnixStream::connect(&upstream).await {
            Ok(stream) => answer(stream).await,
            Err(_) => String::new(),
        };
        eventually("a line comes back", ask, |reply| reply == "unix: hello\n").await;
        stop(mesh, [&mut shop, &mut db]).await;
        scope.stop(LIMIT).await.expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipv6_on_both_sides() {
    for kind in KINDS {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        mesh.use_proxy(kind);
        let listener = TcpListener::bind("[::1]:0").await.expect("IPv6");
        let app = listener.local_addr().expect("an address");
        // Free, and most likely so until the sidecar binds it.
        let free = TcpListener::bind("[::1]:0").await.expect("IPv6");
        let upstream = free.local_addr().expect("an address");
        drop(free);
        let scope = Scope::new("application");
        let spawner = scope.spawner();
        scope.spawner().spawn_until_stop("application", async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawner.spawn_until_stop("connection", echo("six", stream));
            }
        });
        let local = json!({"LocalServiceAddress": "::1", "LocalServicePort": app.port()});
        let socket = json!({"LocalBindAddress": "::1", "LocalBindPort": upstream.port()});
        let [mut db, mut shop] = with_sockets(&mut mesh, local, socket).await;
        until(upstream, "six: hello\n").await;
        stop(mesh, [&mut shop, &mut db]).await;
        scope.stop(LIMIT).await.expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_serves_on_without_servers_and_follows_them_again() {
    let mut mesh = Mesh::start(MeshOptions {
        durable: true,
        ..MeshOptions::default()
    })
    .await;
    mesh.use_proxy("builtin");
    mesh.intend("shop", "db", "allow").await;
    let mut db = mesh.add(&DB).await;
    let mut shop = mesh.add(&SHOP).await;
    let upstream = mesh.upstream("shop", 0);
    until(upstream, "db: hello\n").await;
    mesh.stop_server().await;
    for _ in 0..20 {
        assert_eq!(line(upstream, "hello").await, "db: hello\n");
    }
    mesh.start_server().await;
    mesh.intend("shop", "db", "deny").await;
    until(upstream, "").await;
    mesh.intend("shop", "db", "allow").await;
    until(upstream, "db: hello\n").await;
    stop(mesh, [&mut shop, &mut db]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_is_removed_and_added_again() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.use_proxy("builtin");
    mesh.intend("shop", "db", "allow").await;
    let mut db = mesh.add(&DB).await;
    let mut shop = mesh.add(&SHOP).await;
    let upstream = mesh.upstream("shop", 0);
    until(upstream, "db: hello\n").await;
    for _ in 0..2 {
        mesh.configure(&SHOP, json!({"Upstreams": []})).await;
        let connects = async || TcpStream::connect(upstream).await.is_ok();
        eventually("nothing listens", connects, |connects| !connects).await;
        mesh.configure(&SHOP, json!({})).await;
        until(upstream, "db: hello\n").await;
    }
    stop(mesh, [&mut shop, &mut db]).await;
}

/// Descriptors that are left to the sidecar of the called service, of which it has some dozens by itself.
const DESCRIPTORS: usize = 128;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_runs_out_of_descriptors_and_recovers() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.use_proxy("builtin");
    mesh.intend("shop", "db", "allow").await;
    let mut db = mesh.add(&DB).await;
    let mut shop = mesh.add(&SHOP).await;
    let upstream = mesh.upstream("shop", 0);
    until(upstream, "db: hello\n").await;
    let limited = Command::new("prlimit")
        .args(["--pid", &db.pid().to_string()])
        .arg(format!("--nofile={DESCRIPTORS}"))
        .status();
    assert!(limited.expect("prlimit of util-linux runs").success());
    let mut open = Vec::new();
    for _ in 0..DESCRIPTORS {
        let mut stream = TcpStream::connect(upstream)
            .await
            .expect("the caller's sidecar has room");
        stream.write_all(b"hello\n").await.expect("it takes a line");
        open.push(stream);
    }
    let log = async || db.log();
    eventually("it says that it cannot accept", log, |log| {
        log.contains("cannot accept a connection")
    })
    .await;
    let first = answer(&mut open[0]).await;
    assert!(first.starts_with("db: hello"), "open ones go on: {first:?}");
    drop(open);
    until(upstream, "db: hello\n").await;
    stop(mesh, [&mut shop, &mut db]).await;
}
