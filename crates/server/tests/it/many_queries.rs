//! Ten thousand concurrent blocking queries, and slow readers.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use legate_runtime::file_limit;
use legate_testkit::state::State;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::http_client::{Client, start};

const QUERIES: usize = 10_000;

/// Maximum memory of the server for all queries, in KiB.
const MEMORY: u64 = 200 * 1024;

/// Generous timeout for operations that must succeed, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// File descriptors of a process other than its connections.
const OTHER_FILES: usize = 1_000;

struct Program {
    process: Child,
    _state: State,
    http: SocketAddr,
}

impl Program {
    async fn start(connections: usize) -> Self {
        let state = State::new().await;
        let mut process = Command::new(env!("CARGO_BIN_EXE_legate-server"))
            .args([
                "--http-port=0",
                "--grpc-port=0",
                "--grpc-tls-port=-1",
                "--dns-port=-1",
            ])
            .args(["--grpc-max-connections=16", "--dns-max-connections=16"])
            .arg(format!("--http-max-connections={connections}"))
            .arg(format!("--http-max-connections-per-address={connections}"))
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
        Self {
            process,
            _state: state,
            http: rest.split(' ').next().unwrap().parse().unwrap(),
        }
    }

    /// A value from the kernel's memory statistics, in KiB.
    fn memory(&self, line: &str) -> u64 {
        let path = format!("/proc/{}/status", self.process.id().unwrap());
        let status = std::fs::read_to_string(path).unwrap();
        let found = status
            .lines()
            .find_map(|own| own.strip_prefix(line))
            .unwrap();
        found.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Waits until the memory usage is stable.
    async fn settle(&self) {
        let (mut seen, mut same) = (0, 0);
        while same < 10 {
            sleep(Duration::from_millis(50)).await;
            let now = self.memory("VmRSS:");
            same = if now == seen { same + 1 } else { 0 };
            seen = now;
        }
    }
}

fn web(port: u16) -> Value {
    json!({
        "Node": "n1", "Address": "10.0.0.1",
        "Service": { "Service": "web", "Port": port },
    })
}

/// The number of such connections that this process can open.
fn affordable() -> usize {
    let files = usize::try_from(file_limit::raise().unwrap()).unwrap();
    QUERIES.min(files.saturating_sub(OTHER_FILES))
}

#[tokio::test]
async fn ten_thousand_queries_wait_in_little_memory() {
    let count = affordable();
    let program = Program::start(count + 100).await;
    let client = Client {
        address: program.http,
        token: String::new(),
    };
    client.write("/v1/catalog/register", &web(1)).await;
    let index = client.get("/v1/health/service/web").await.index();
    let query =
        format!("GET /v1/health/service/web?index={index}&wait=10m HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut waiting = Vec::with_capacity(count);
    while waiting.len() < count {
        let some = 100.min(count - waiting.len());
        let connect = (0..some).map(async |_| {
            let mut stream = TcpStream::connect(program.http).await.unwrap();
            stream.write_all(query.as_bytes()).await.unwrap();
            stream
        });
        waiting.extend(join_all(connect).await);
    }
    timeout(PATIENCE, program.settle())
        .await
        .expect("it settles");
    let resident = program.memory("VmRSS:");
    assert!(resident < MEMORY, "{count} queries take {resident} KiB");

    // Other requests are served meanwhile, and a change wakes all queries.
    client.write("/v1/catalog/register", &web(2)).await;
    let answers = waiting.into_iter().map(async |mut stream| {
        let mut answer = vec![0; 4096];
        let mut length = 0;
        while !answer[..length]
            .windows(9)
            .any(|part| part == b"\"Port\":2,")
        {
            let read = stream.read(&mut answer[length..]).await.unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer[..length]));
            length += read;
        }
    });
    let answered = timeout(PATIENCE, join_all(answers)).await;
    assert_eq!(answered.expect("all are answered").len(), count);
    let peak = program.memory("VmHWM:");
    assert!(
        peak < MEMORY,
        "{count} queries and their answers take {peak} KiB"
    );
}

// On one thread the answers would also delay the server's lease in etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_delays_no_others() {
    let (_server, client) = start(|_| {}).await;
    // More than the socket buffers hold.
    let note = "x".repeat(100_000);
    for i in 0..100 {
        let node = json!({ "Node": format!("n{i}"), "Address": "10.0.0.1",
            "Check": { "Name": "alive", "Notes": note, "Status": "passing" } });
        client.write("/v1/catalog/register", &node).await;
    }
    let query = b"GET /v1/health/state/passing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(client.address).await.unwrap();
        stream.write_all(query).await.unwrap();
        // The response has started.
        stream.readable().await.unwrap();
        slow.push(stream);
    }
    let others = async {
        for port in 1..=20 {
            let index = client.get("/v1/catalog/service/web").await.index();
            let path = format!("/v1/catalog/service/web?index={index}&wait=60s");
            let (news, _) = tokio::join!(
                client.get(&path),
                client.write("/v1/catalog/register", &web(port))
            );
            assert_eq!(news.json()[0]["ServicePort"], port);
        }
    };
    timeout(PATIENCE, others).await.expect("others are served");
    for mut stream in slow {
        let mut answer = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        let length = read.expect("it comes").unwrap();
        assert!(length > 100 * note.len(), "{length}");
        // The state at the time of the request.
        let body = answer
            .windows(4)
            .position(|part| part == b"\r\n\r\n")
            .unwrap();
        let list: Value = serde_json::from_slice(&answer[body + 4..]).unwrap();
        assert_eq!(list.as_array().unwrap().len(), 100);
    }
}
