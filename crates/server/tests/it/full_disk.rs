//! A server whose disk is full: no file can be written.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, StatusCode};
use legate_runtime::{BoxError, Scope};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::http_client::Client;

const TOKEN: &str = "5f2a0c2e-93e5-4d0c-9bd5-0a1a3cbb4f10";

/// How long the test waits for something that happens soon.
const PATIENCE: Duration = Duration::from_secs(60);

/// `legate-server` with a limit on the size of files in blocks of 512 bytes.
struct Running {
    process: Child,
    client: Client,
    log: Arc<Mutex<String>>,
    _reader: Scope,
}

impl Running {
    async fn start(data: &Path, limit: &str, flags: &[&str]) -> Self {
        // Without the trap, the kernel kills a process that exceeds its limit.
        let limited = format!("trap '' XFSZ; ulimit -S -f {limit}; exec \"$@\"");
        let mut process = Command::new("sh")
            .args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_legate-server")])
            .args(["--http-port=0", "--grpc-port=-1"])
            .args(["--grpc-tls-port=-1", "--dns-port=-1", "--acl"])
            .arg(format!("--data-dir={}", data.display()))
            .args(flags)
            .env("LEGATE_INITIAL_MANAGEMENT_TOKEN", TOKEN)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let started = loop {
            let line = lines.next_line().await.unwrap();
            let line = line.unwrap_or_else(|| panic!("it starts: {}", log.lock().unwrap()));
            log.lock().unwrap().push_str(&format!("{line}\n"));
            if line.contains("started") {
                break line;
            }
        };
        let kept = Arc::clone(&log);
        let reader = Scope::new("log");
        reader.spawn("log", async move {
            while let Some(line) = lines.next_line().await? {
                kept.lock().unwrap().push_str(&format!("{line}\n"));
            }
            Ok::<(), BoxError>(())
        });
        let (_, rest) = started.split_once("http=").unwrap();
        let address: SocketAddr = rest.split(' ').next().unwrap().parse().unwrap();
        let token = TOKEN.to_owned();
        Self {
            process,
            client: Client { address, token },
            log,
            _reader: reader,
        }
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Ends the limit.
    async fn make_room(&self) {
        let process = self.process.id().unwrap().to_string();
        let mut prlimit = Command::new("prlimit");
        let prlimit = prlimit.args(["--pid", &process, "--fsize=unlimited:unlimited"]);
        assert!(prlimit.status().await.unwrap().success());
    }

    async fn set(&self, value: &str) -> StatusCode {
        let set = self.client.send(Method::PUT, "/v1/kv/key", value).await;
        set.status
    }

    async fn refused_writes(&self) -> String {
        let page = self.client.get("/v1/agent/metrics?format=prometheus").await;
        let name = "legate_store_writes_refused_total ";
        let count = page.text().lines().find_map(|line| line.strip_prefix(name));
        count.expect("the metric").to_owned()
    }
}

#[tokio::test]
async fn a_server_starts_on_a_full_disk_and_reports_refused_writes_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut first = Running::start(&data, "unlimited", &[]).await;
    assert_eq!(first.set("before").await, StatusCode::OK);
    first.process.kill().await.unwrap();

    let full = Running::start(&data, "0", &[]).await;
    assert_eq!(full.client.get("/v1/kv/key?raw").await.text(), "before");
    assert!(
        !full.log().contains("a write was refused"),
        "{}",
        full.log()
    );
    for _ in 0..3 {
        assert_eq!(full.set("after").await, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(full.refused_writes().await, "3");
    assert_eq!(full.client.get("/v1/kv/key?raw").await.text(), "before");
    full.make_room().await;
    assert_eq!(full.set("after").await, StatusCode::OK);
    assert_eq!(full.refused_writes().await, "3");
    let deadline = Instant::now() + PATIENCE;
    while !full.log().contains("writes are stored again") {
        assert!(Instant::now() < deadline, "{}", full.log());
        sleep(Duration::from_millis(20)).await;
    }
    let log = full.log();
    assert_eq!(log.matches("a write was refused").count(), 1, "{log}");
    assert!(log.contains("make room on its disk"), "{log}");
}

#[tokio::test]
async fn changed_settings_are_stored_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut first = Running::start(&data, "unlimited", &[]).await;
    first.process.kill().await.unwrap();

    let full = Running::start(&data, "0", &["--advertise=10.1.2.3"]).await;
    let address = async || -> Value {
        let nodes = full.client.get("/v1/catalog/nodes").await.json();
        nodes[0]["Address"].clone()
    };
    assert_eq!(address().await, json!("127.0.0.1"));
    let log = full.log();
    assert!(
        log.contains("the server starts with what is stored"),
        "{log}"
    );
    full.make_room().await;
    let deadline = Instant::now() + PATIENCE;
    while address().await != json!("10.1.2.3") {
        assert!(Instant::now() < deadline, "{}", full.log());
        sleep(Duration::from_millis(50)).await;
    }
}
