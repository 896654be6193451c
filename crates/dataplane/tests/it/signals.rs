//! Signals to the binary: their effect and the exit code.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_testkit::fake_server::FakeServer;
use legate_testkit::network::free_port;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::{sleep, timeout};

use crate::envoy_side::PATIENCE;

/// A running binary, with a shell script as its Envoy.
struct Dataplane {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    seen: String,
    _folder: TempDir,
}

impl Dataplane {
    fn start(server: SocketAddr, envoy: &str) -> Dataplane {
        let address = server.ip().to_string();
        Dataplane::with(&address, server.port(), envoy, &[])
    }

    fn with(host: &str, port: u16, envoy: &str, variables: &[(&str, &Path)]) -> Dataplane {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("envoy");
        fs::write(&program, format!("#!/bin/sh\n{envoy}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_legate-dataplane"))
            .envs(variables.iter().copied())
            .arg(format!("-addresses={host}"))
            .arg(format!("-grpc-port={port}"))
            .args(["-tls-disabled", "-server-watch-disabled", "-proxy-id=web"])
            .args(["-shutdown-grace-period-seconds=3600"])
            .arg(format!("-envoy-executable-path={}", program.display()))
            .arg(format!("-envoy-admin-bind-port={}", free_port()))
            .arg(format!("-graceful-port={}", free_port()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Dataplane {
            child,
            log,
            seen: String::new(),
            _folder: folder,
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("it runs");
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
    }

    /// Reads the log, including Envoy's output, up to a line that contains `text`.
    async fn until(&mut self, text: &str) {
        loop {
            let line = timeout(PATIENCE, self.log.next_line()).await;
            let line = line.unwrap_or_else(|_| panic!("no {text:?} in time:\n{}", self.seen));
            let line = line.unwrap();
            let line = line.unwrap_or_else(|| panic!("no {text:?} before the end:\n{}", self.seen));
            self.seen.push_str(&line);
            self.seen.push('\n');
            if line.contains(text) {
                return;
            }
        }
    }

    /// Waits for the end of the process and of the log, which Envoy writes to as well.
    async fn end(mut self) -> (ExitStatus, String) {
        let rest = async {
            while let Some(line) = self.log.next_line().await.unwrap() {
                self.seen.push_str(&line);
                self.seen.push('\n');
            }
            self.child.wait().await.unwrap()
        };
        let status = timeout(PATIENCE, rest).await.expect("it ends in time");
        (status, self.seen)
    }
}

#[tokio::test]
async fn a_signal_before_there_is_a_server_ends_it_in_order() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let nobody = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut dataplane = Dataplane::start(nobody, "exit 9");
        dataplane.until("trying to connect").await;
        dataplane.signal(signal);
        let (status, log) = dataplane.end().await;
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains(signal.as_str()), "{log}");
    }
}

#[tokio::test]
async fn a_name_that_is_being_looked_up_does_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    // The C library reads host aliases from this pipe, and blocks forever.
    let aliases = folder.path().join("aliases");
    mkfifo(&aliases, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let variables = [("HOSTALIASES", &*aliases)];
    let dataplane = Dataplane::with("server", 8502, "exit 9", &variables);
    let looked_up = async {
        loop {
            let mut pipe = fs::OpenOptions::new();
            pipe.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
            // The pipe cannot be opened for writing before it has a reader.
            match pipe.open(&aliases) {
                Ok(pipe) => return pipe,
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let _never_answers = timeout(PATIENCE, looked_up).await.expect("it looks it up");
    dataplane.signal(Signal::SIGTERM);
    let (status, log) = dataplane.end().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test]
async fn the_second_signal_kills_an_envoy_that_takes_its_time() {
    let server = FakeServer::plaintext().await;
    // Logs a line at its start and ignores SIGTERM.
    let envoy = "trap '' TERM\necho envoy-runs >&2\nexec sleep 1000";
    let mut dataplane = Dataplane::start(server.address(), envoy);
    dataplane.until("envoy-runs").await;
    dataplane.signal(Signal::SIGTERM);
    dataplane.until("immediate=false").await;
    dataplane.signal(Signal::SIGINT);
    dataplane.until("immediate=true").await;
    // The pipe ends only when Envoy has exited, too.
    let (status, log) = dataplane.end().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("killing envoy"), "{log}");
}

#[tokio::test]
async fn envoys_configuration_is_written_before_it_ends() {
    let server = FakeServer::plaintext().await;
    let params = GetEnvoyBootstrapParamsResponse {
        identity: "web".to_owned(),
        ..GetEnvoyBootstrapParamsResponse::default()
    };
    server.script().bootstrap_params(params);
    let (host, port) = (server.address().ip().to_string(), server.address().port());
    let envoy = legate_testkit::envoy::binary();
    let envoy = format!("exec {} \"$@\"", envoy.display());
    let variables = [("DP_DUMP_ENVOY_CONFIG_ON_EXIT", Path::new("true"))];
    let mut dataplane = Dataplane::with(&host, port, &envoy, &variables);
    let mut output = dataplane.child.stdout.take().unwrap();
    dataplane.until("starting main dispatch loop").await;
    dataplane.signal(Signal::SIGTERM);
    dataplane.until("writing Envoy's configuration").await;
    let mut text = Vec::new();
    let written = async {
        loop {
            let read = output.read_buf(&mut text).await.unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&text));
            if let Ok(dump) = serde_json::from_slice::<Value>(&text) {
                return dump;
            }
        }
    };
    let dump = timeout(PATIENCE, written).await.expect("it is written");
    let bootstrap = &dump["configs"][0]["bootstrap"];
    assert_eq!(bootstrap["node"]["id"], "web");
    // Without a ready Envoy there is no grace period.
    dataplane.signal(Signal::SIGTERM);
    let (status, log) = dataplane.end().await;
    assert_eq!(status.code(), Some(0), "{log}");
}
