//! Requests of the binary to a running dataplane: real ones and fake servers.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};
use std::time::Duration;

use legate_runtime::Scope;
use legate_testkit::fake_server::FakeServer;
use legate_testkit::network::free_port;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::envoy_side::PATIENCE;

/// Polling interval for conditions without an event.
const POLL: Duration = Duration::from_millis(20);

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_legate-dataplane"));
    command.env_clear().kill_on_drop(true);
    command
}

async fn dataplane(arguments: &[&str]) -> Output {
    let output = binary().args(arguments).output();
    timeout(PATIENCE, output).await.expect("it ends").unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A running dataplane, and its lifecycle port.
pub(crate) struct Running {
    pub(crate) port: u16,
    _child: Child,
    _folder: TempDir,
}

impl Running {
    /// Starts one with a shell script as its Envoy.
    pub(crate) fn start(server: SocketAddr, more: &[&str]) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let envoy = folder.path().join("envoy");
        fs::write(&envoy, "#!/bin/sh\nexec sleep 1000\n").unwrap();
        fs::set_permissions(&envoy, fs::Permissions::from_mode(0o755)).unwrap();
        let port = free_port();
        let child = binary()
            .arg(format!("-addresses={}", server.ip()))
            .arg(format!("-grpc-port={}", server.port()))
            .args(["-server-watch-disabled", "-proxy-id=web"])
            .arg(format!("-envoy-executable-path={}", envoy.display()))
            .arg(format!("-envoy-admin-bind-port={}", free_port()))
            .arg(format!("-graceful-port={port}"))
            .args(more)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Running {
            port,
            _child: child,
            _folder: folder,
        }
    }

    /// The flag for its lifecycle port.
    fn flag(&self) -> String {
        format!("-graceful-port={}", self.port)
    }

    /// Repeats the request until the output contains `words`.
    async fn status(&self, words: &str) -> Output {
        let mut last = None;
        let asked = async {
            loop {
                let output = dataplane(&["-status", &self.flag()]).await;
                if stdout(&output).contains(words) {
                    return output;
                }
                last = Some(output);
                tokio::time::sleep(POLL).await;
            }
        };
        let found = timeout(PATIENCE, asked).await;
        found.unwrap_or_else(|_| panic!("no {words:?}: {last:?}"))
    }
}

#[tokio::test]
async fn a_ready_dataplane_reports_it() {
    let server = FakeServer::plaintext().await;
    let running = Running::start(
        server.address(),
        &[
            "-tls-disabled",
            "-mode=dns-proxy",
            "-consul-dns-bind-port=0",
        ],
    );
    let output = running.status("is ready").await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    assert!(text.contains(&server.address().to_string()), "{text}");
    assert!(!text.contains("\nenvoy\n"), "there is none: {text}");

    let output = dataplane(&["-status", "-log-json", &running.flag()]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["ready"], true);
    assert!(
        stdout(&output).lines().count() > 10,
        "it is formatted for humans"
    );
}

#[tokio::test]
async fn an_unready_dataplane_reports_the_reason() {
    let server = FakeServer::plaintext().await;
    let running = Running::start(server.address(), &["-tls-disabled"]);
    let output = running.status("does not answer that it is live").await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = stdout(&output);
    for words in ["is NOT READY", "\nenvoy\n", "\nrelay\n", "  id  web\n"] {
        assert!(text.contains(words), "{words:?}: {text}");
    }
    assert_eq!(stderr(&output), "");
}

/// A fake server with one response.
struct Pretender {
    /// The flag for its port.
    port: String,
    question: oneshot::Receiver<String>,
    _scope: Scope,
}

impl Pretender {
    async fn start(answer: &'static str) -> Pretender {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asked, question) = oneshot::channel();
        let scope = Scope::new("pretender");
        scope.spawn("answer", async move {
            let (mut stream, _) = listener.accept().await?;
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut request).await? > 0);
            }
            stream.write_all(answer.as_bytes()).await?;
            let _ = asked.send(String::from_utf8(request).unwrap());
            Ok::<_, std::io::Error>(())
        });
        Pretender {
            port: format!("-graceful-port={port}"),
            question,
            _scope: scope,
        }
    }

    async fn question(self) -> String {
        let question = timeout(PATIENCE, self.question).await;
        question.expect("a request arrives").unwrap()
    }
}

#[tokio::test]
async fn without_an_answer_the_settings_are_named() {
    let port = free_port().to_string();
    let output = dataplane(&["-status", "-graceful-port", &port]).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(stdout(&output), "");
    let error = stderr(&output);
    let address = format!("http://127.0.0.1:{port}/status");
    for words in [&address, "-graceful-addr", "-graceful-port", "-config-file"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    for answer in [
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n<html>",
        "HTTP/1.1 200 OK\r\n\r\n[]",
        "SSH-2.0-OpenSSH\r\n",
    ] {
        let pretender = Pretender::start(answer).await;
        let output = dataplane(&["-status", &pretender.port]).await;
        assert_eq!(output.status.code(), Some(2), "{answer}: {output:?}");
        assert!(stderr(&output).contains("is not a dataplane"), "{output:?}");
        let question = pretender.question().await;
        assert!(question.starts_with("GET /status HTTP/1.1\r\n"));
    }
}

#[tokio::test]
async fn a_dataplane_of_another_version_is_understood() {
    let pretender = Pretender::start(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
         f\r\n{\"ready\":true,\"\r\n9\r\nnews\":42}\r\n0\r\n\r\n",
    )
    .await;
    let output = dataplane(&["-status", &pretender.port]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(stdout(&output), "legate-dataplane is ready\n  news  42\n");
}

#[tokio::test]
async fn a_new_envoy_is_requested() {
    for (answer, code, out, err) in [
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 27\r\n\r\nepoch 1 takes over from 0.\n",
            0,
            "epoch 1 takes over from 0.\n",
            "",
        ),
        (
            "HTTP/1.1 409 Conflict\r\n\r\na restart is under way\n",
            1,
            "",
            "a restart is under way\n",
        ),
        (
            "HTTP/1.1 503 Service Unavailable\r\n\r\nEnvoy was not started\nyet",
            1,
            "",
            "Envoy was not started yet\n",
        ),
        ("HTTP/1.1 404 Not Found\r\n\r\n", 1, "", "too old"),
        ("HTTP/1.1 500 Oh\r\n\r\n", 1, "", "HTTP status 500"),
        ("SSH-2.0-OpenSSH\r\n", 2, "", "is not a dataplane"),
    ] {
        let pretender = Pretender::start(answer).await;
        let output = dataplane(&["-restart", &pretender.port]).await;
        assert_eq!(output.status.code(), Some(code), "{answer}: {output:?}");
        assert_eq!(stdout(&output), out);
        assert!(stderr(&output).contains(err), "{answer}: {output:?}");
        let question = pretender.question().await;
        assert!(question.starts_with("POST /restart HTTP/1.1\r\n"));
    }
    let port = format!("-graceful-port={}", free_port());
    let output = dataplane(&["-restart", &port]).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("/restart"), "{output:?}");
}
