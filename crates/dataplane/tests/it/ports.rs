//! The built binary with misbehaving peers: on its HTTP ports, and at the other end of its standard
//! output and error.

use std::fs::{self, File};
use std::io::{PipeReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_api::json::to_struct;
use legate_testkit::fake_server::FakeServer;
use legate_testkit::network::free_port;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::envoy_side::PATIENCE;
use crate::run::page;

/// Number of half-open requests on each port: more than the default limit of open files.
const FLOOD: usize = 1_100;

struct Dataplane {
    child: Child,
    _server: FakeServer,
    folder: TempDir,
    admin: SocketAddr,
    lifecycle: SocketAddr,
    merged: SocketAddr,
}

struct Start<'a> {
    /// Shell commands before the start.
    limits: &'a str,
    flags: &'a [String],
    stdout: Stdio,
    stderr: Stdio,
}

impl Default for Start<'_> {
    fn default() -> Self {
        Self {
            limits: "",
            flags: &[],
            stdout: Stdio::null(),
            stderr: Stdio::inherit(),
        }
    }
}

impl Start<'_> {
    async fn start(self) -> Dataplane {
        let server = FakeServer::plaintext().await;
        let config = json!({"envoy_prometheus_bind_addr": "127.0.0.1:9102"});
        let params = GetEnvoyBootstrapParamsResponse {
            config: Some(to_struct(config.as_object().unwrap())),
            ..GetEnvoyBootstrapParamsResponse::default()
        };
        server.script().bootstrap_params(params);
        let folder = tempfile::tempdir().unwrap();
        let envoy = folder.path().join("envoy");
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *'--mode validate') exit 0;; esac\n\
             ulimit -Sn > {0}/files\necho $$ >> {0}/pids\nexec sleep 1000\n",
            folder.path().display()
        );
        fs::write(&envoy, script).unwrap();
        fs::set_permissions(&envoy, fs::Permissions::from_mode(0o755)).unwrap();
        let on_loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let [admin, lifecycle, merged] = [(); 3].map(|()| on_loopback(free_port()));
        let child = Command::new("sh")
            .arg("-c")
            .arg(format!("{} exec \"$0\" \"$@\"", self.limits))
            .arg(env!("CARGO_BIN_EXE_legate-dataplane"))
            .arg(format!("-addresses={}", server.address().ip()))
            .arg(format!("-grpc-port={}", server.address().port()))
            .args(["-tls-disabled", "-server-watch-disabled", "-proxy-id=web"])
            .arg(format!("-envoy-executable-path={}", envoy.display()))
            .arg(format!("-envoy-admin-bind-port={}", admin.port()))
            .arg(format!("-graceful-port={}", lifecycle.port()))
            .arg(format!("-telemetry-prom-merge-port={}", merged.port()))
            .args(self.flags)
            .stdin(Stdio::null())
            .stdout(self.stdout)
            .stderr(self.stderr)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Dataplane {
            child,
            _server: server,
            folder,
            admin,
            lifecycle,
            merged,
        }
    }
}

impl Dataplane {
    async fn page(&self, path: &str, words: &str) -> String {
        timeout(PATIENCE, page(self.lifecycle, path, words))
            .await
            .unwrap_or_else(|_| panic!("no {words:?} at {path}"))
    }

    /// The process ids of Envoys, once `count` have been started.
    async fn envoys(&self, count: usize) -> Vec<i32> {
        let started = async {
            loop {
                let pids = fs::read_to_string(self.folder.path().join("pids")).unwrap_or_default();
                let pids: Vec<_> = pids.lines().map(|pid| pid.parse().unwrap()).collect();
                if pids.len() >= count {
                    return pids;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        let started = timeout(PATIENCE, started).await;
        started.unwrap_or_else(|_| panic!("no {count} Envoys were started"))
    }

    fn pid(&self) -> i32 {
        self.child.id().unwrap().cast_signed()
    }

    async fn stop(mut self) {
        kill(Pid::from_raw(self.pid()), Signal::SIGTERM).unwrap();
        let status = timeout(PATIENCE, self.child.wait()).await;
        assert_eq!(status.expect("it ends").unwrap().code(), Some(0));
    }
}

/// Connections with an incomplete request.
async fn flood(address: SocketAddr) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for _ in 0..FLOOD {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /ready HTTP/1.1\r\n").await.unwrap();
        open.push(stream);
    }
    open
}

#[tokio::test]
async fn half_open_requests_block_neither_probes_nor_a_new_envoy() {
    let start = Start {
        limits: "ulimit -n 256;",
        ..Start::default()
    };
    let dataplane = start.start().await;
    let first = dataplane.envoys(1).await[0];
    timeout(PATIENCE, page(dataplane.merged, "/", "404 Not Found"))
        .await
        .expect("the merged metrics are served");
    let held = [
        flood(dataplane.lifecycle).await,
        flood(dataplane.merged).await,
    ];
    for _ in 0..10 {
        dataplane.page("/live", "alive").await;
    }
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    dataplane.envoys(2).await;
    dataplane.page("/status", "\"starts\":2").await;
    let own = timeout(PATIENCE, page(dataplane.merged, "/", "404 Not Found"));
    own.await.expect("scrapes get through");
    drop(held);
    dataplane.stop().await;
}

#[tokio::test]
async fn the_soft_file_limit_is_raised_to_the_hard_one_for_envoy_too() {
    let start = Start {
        limits: "ulimit -Sn 256;",
        ..Start::default()
    };
    let dataplane = start.start().await;
    dataplane.envoys(1).await;
    let limits = fs::read_to_string(format!("/proc/{}/limits", dataplane.pid())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let files: Vec<_> = files.unwrap().split_whitespace().collect();
    assert_ne!(files[3], "256");
    assert_eq!(files[3], files[4]);
    let envoy = fs::read_to_string(dataplane.folder.path().join("files")).unwrap();
    assert_eq!(envoy.trim(), files[3]);
    dataplane.stop().await;
}

#[tokio::test]
async fn metrics_are_served_on_all_addresses_unless_one_is_set() {
    let dataplane = Start::default().start().await;
    let elsewhere = |port| SocketAddr::from(([127, 0, 0, 9], port));
    let merged = elsewhere(dataplane.merged.port());
    let served = timeout(PATIENCE, page(merged, "/stats/prometheus", "source_up"));
    served
        .await
        .expect("another address than that of Envoy's admin interface");
    dataplane.stop().await;

    let start = Start {
        flags: &["-telemetry-prom-bind-addr=127.0.0.1".to_owned()],
        ..Start::default()
    };
    let dataplane = start.start().await;
    let served = timeout(
        PATIENCE,
        page(dataplane.merged, "/stats/prometheus", "source_up"),
    );
    served.await.expect("the address that was set");
    let elsewhere = elsewhere(dataplane.merged.port());
    assert!(TcpStream::connect(elsewhere).await.is_err());
    dataplane.stop().await;
}

/// A pipe without free capacity.
fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let size = fcntl(&writer, FcntlArg::F_GETPIPE_SZ).unwrap();
    writer
        .write_all(&vec![b'.'; usize::try_from(size).unwrap()])
        .unwrap();
    (reader, writer.into())
}

#[tokio::test]
async fn an_unread_log_blocks_nothing() {
    let (mut log, stderr) = full_pipe();
    let start = Start {
        stderr,
        ..Start::default()
    };
    let dataplane = start.start().await;
    dataplane.envoys(1).await;
    dataplane.page("/live", "alive").await;
    dataplane.stop().await;

    // Output that could not be written is lost with the process.
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    assert!(text.chars().all(|letter| letter == '.'), "{text}");
}

#[tokio::test]
async fn a_log_that_is_read_late_is_complete() {
    let (mut log, stderr) = full_pipe();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let start = Start {
        stderr,
        flags: &[format!("-xds-bind-port={port}")],
        ..Start::default()
    };
    let mut dataplane = start.start().await;
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    });
    let text = timeout(PATIENCE, read).await.unwrap().unwrap();
    let status = dataplane.child.wait().await.unwrap();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("started legate-dataplane process"), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.contains("-xds-bind-port"), "{text}");
    assert_eq!(last.matches("Address already in use").count(), 1, "{text}");
}

/// Responds to every request with a body of this size.
async fn admin(listener: TcpListener, size: usize) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        if matches!(stream.read(&mut request).await, Ok(1..)) {
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n");
            // The client may be gone.
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(&vec![b'x'; size]).await;
        }
    }
}

#[tokio::test]
async fn an_unread_configuration_dump_times_out() {
    let (_reader, stdout) = full_pipe();
    let log = tempfile::NamedTempFile::new().unwrap();
    let start = Start {
        stdout,
        stderr: File::create(log.path()).unwrap().into(),
        flags: &["-dump-envoy-config-on-exit".to_owned()],
        ..Start::default()
    };
    let dataplane = start.start().await;
    // The port has to be free at the start.
    let pid = dataplane.envoys(1).await[0];
    let listener = TcpListener::bind(dataplane.admin).await.unwrap();
    tokio::select! {
        () = admin(listener, 1024 * 1024) => unreachable!(),
        () = dataplane.stop() => {}
    }
    let log = fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("not complete on standard output"), "{log}");
    assert!(
        !fs::exists(format!("/proc/{pid}")).unwrap(),
        "Envoy is still there"
    );
}
