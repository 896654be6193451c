//! Durability: the state of a server after a kill, and snapshots restored to another server.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use http::StatusCode;
use legate_runtime::Scope;
use legate_server::{Parts, Server, ServerConfig, StoreConfig};
use legate_store::Store;
use legate_testkit::state::State;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::http_client::{Client, start};
use crate::running::store_config;

const STOP: Duration = Duration::from_secs(5);

/// Far above the duration of a response.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts `legate-server` with this state.
async fn run(state: &State) -> (Child, Client) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_legate-server"))
        .args(["--http-port=0", "--grpc-port=-1"])
        .args(["--grpc-tls-port=-1", "--dns-port=-1"])
        .args(state.flags())
        .env_remove("LEGATE_INITIAL_MANAGEMENT_TOKEN")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
    let started = loop {
        let line = log.next_line().await.unwrap().expect("it starts");
        if line.contains("started") {
            break line;
        }
    };
    let (_, rest) = started.split_once("http=").unwrap();
    let address: SocketAddr = rest.split(' ').next().unwrap().parse().unwrap();
    let token = String::new();
    (process, Client { address, token })
}

fn web() -> Value {
    json!({"Node": "n1", "Address": "10.0.0.1", "Service": {"Service": "web", "Port": 80}})
}

/// The mesh's roots, the instances of `web`, and its intentions.
async fn seen(client: &Client) -> [Value; 3] {
    [
        client.get("/v1/connect/ca/roots").await.json(),
        client.get("/v1/health/service/web").await.json(),
        client.get("/v1/connect/intentions").await.json(),
    ]
}

async fn fill(client: &Client) {
    client.put("/v1/catalog/register", &web()).await.json();
    let path = "/v1/connect/intentions/exact?source=api&destination=web";
    client.put(path, &json!({"Action": "allow"})).await.json();
}

#[tokio::test]
async fn a_killed_server_has_everything_when_it_is_started_again() {
    let state = State::durable().await;
    let (mut first, client) = run(&state).await;
    fill(&client).await;
    let before = seen(&client).await;
    assert_eq!(before[1].as_array().unwrap().len(), 1);
    first.kill().await.unwrap();

    let (_second, client) = run(&state).await;
    assert_eq!(seen(&client).await, before);
}

#[tokio::test]
async fn servers_that_start_at_once_make_one_mesh() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Scope::new("storage");
    let disk = StoreConfig::Disk {
        directory: folder.path().join("data"),
        key_file: None,
    };
    let store = Store::open(disk, &storage.spawner()).await.unwrap();
    // Both use the default node name.
    let server = || {
        let config = ServerConfig {
            http: None,
            grpc: None,
            grpc_tls: None,
            dns: None,
            ..ServerConfig::default()
        };
        let store = Some(store.clone());
        Server::start(
            config,
            Parts {
                store,
                ..Parts::default()
            },
        )
    };
    let (first, second, third) = tokio::join!(server(), server(), server());
    let servers = [first, second, third].map(|server| server.expect("it starts"));
    let domains = servers.each_ref().map(|server| server.ca().trust_domain());
    assert_eq!(domains[1..], [domains[0].clone(), domains[0].clone()]);
    assert_eq!(store.state().read().nodes().len(), 1);
    for server in servers {
        server.stop(STOP).await.unwrap();
    }
    drop(store);
    storage.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_snapshot_is_taken_over_by_another_server() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "0123456789abcdef".repeat(4)).unwrap();
    let states = [State::durable().await, State::durable().await];
    let [keep, other] = states.each_ref().map(|state| match store_config(state) {
        StoreConfig::Disk { directory, .. } => StoreConfig::Disk {
            directory,
            key_file: Some(key.clone()),
        },
        // The encryption key is the same already.
        shared => shared,
    });
    let (first, old) = start(|config| config.store = keep).await;
    fill(&old).await;
    let snapshot = old.get("/v1/snapshot").await;
    assert_eq!(snapshot.status, StatusCode::OK);

    let (second, new) = start(|config| config.store = other).await;
    assert_ne!(seen(&new).await[0], seen(&old).await[0]);
    let index = new.get("/v1/catalog/nodes").await.index();
    let damaged = new.send_bytes("/v1/snapshot", &snapshot.body[1..]).await;
    assert_eq!(
        damaged.status,
        StatusCode::BAD_REQUEST,
        "{}",
        damaged.text()
    );
    let restored = new.send_bytes("/v1/snapshot", &snapshot.body).await;
    assert_eq!(restored.status, StatusCode::OK, "{}", restored.text());
    assert_eq!(seen(&new).await, seen(&old).await);
    assert_eq!(first.ca().trust_domain(), second.ca().trust_domain());
    assert!(new.get("/v1/catalog/nodes").await.index() > index);
    // New writes are persisted as before.
    new.put("/v1/catalog/register", &web()).await.json();
    first.stop(STOP).await.unwrap();
    second.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_client_that_sends_a_snapshot_slowly_holds_up_no_other_client() {
    let state = State::durable().await;
    let (server, client) = start(|config| config.store = store_config(&state)).await;
    let mut slow = TcpStream::connect(server.http_addr().unwrap())
        .await
        .unwrap();
    let head = b"PUT /v1/snapshot HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\
        Expect: 100-continue\r\n\r\n";
    slow.write_all(head).await.unwrap();
    // `100 Continue`: the server has started to read the body.
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    let saved = timeout(PATIENCE, client.get("/v1/snapshot")).await.unwrap();
    assert_eq!(saved.status, StatusCode::OK);
    drop(slow);
    server.stop(STOP).await.unwrap();
}

/// The most memory that a process has used, in bytes.
fn peak(process: &Child) -> u64 {
    let path = format!("/proc/{}/status", process.id().unwrap());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn an_uploaded_snapshot_is_not_held_in_memory_before_it_was_checked() {
    const SIZE: usize = 256 << 20;
    let state = State::durable().await;
    let (process, client) = run(&state).await;
    fill(&client).await;
    let before = (seen(&client).await, peak(&process));
    let mut upload = TcpStream::connect(client.address).await.unwrap();
    let head = format!("PUT /v1/snapshot HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\n\r\n");
    upload.write_all(head.as_bytes()).await.unwrap();
    // It starts as a snapshot does.
    let saved = client.get("/v1/snapshot").await.body;
    upload.write_all(&saved[..saved.len() - 32]).await.unwrap();
    let chunk = vec![7; 1 << 20];
    let mut left = SIZE - (saved.len() - 32);
    while left > 0 {
        let next = left.min(chunk.len());
        upload.write_all(&chunk[..next]).await.unwrap();
        left -= next;
    }
    let mut answer = [0; 12];
    timeout(PATIENCE, upload.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");
    let used = peak(&process) - before.1;
    assert!(used < SIZE as u64 / 4, "{} MiB", used >> 20);
    assert_eq!(seen(&client).await, before.0);
}

#[tokio::test]
async fn a_snapshot_that_is_too_large_is_refused() {
    let state = State::durable().await;
    let (server, client) = start(|config| config.store = store_config(&state)).await;
    let mut upload = TcpStream::connect(client.address).await.unwrap();
    let head = "PUT /v1/snapshot HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000000\r\n\r\n";
    upload.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    timeout(PATIENCE, upload.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn snapshots_require_management_permission() {
    let (server, client) = start(|config| {
        config.acl.enabled = true;
        config.acl.initial_management = Some("6d2b7b1c-0c43-4a39-9c9a-4c1f4f7e2f10".into());
    })
    .await;
    let refused = client.get("/v1/snapshot").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let refused = client.send_bytes("/v1/snapshot", b"anything").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let manager = Client {
        token: "6d2b7b1c-0c43-4a39-9c9a-4c1f4f7e2f10".to_owned(),
        ..client
    };
    let saved = manager.get("/v1/snapshot").await;
    assert_eq!(saved.status, StatusCode::OK);
    let restored = manager.send_bytes("/v1/snapshot", &saved.body).await;
    assert_eq!(restored.status, StatusCode::OK, "{}", restored.text());
    server.stop(STOP).await.unwrap();
}
