//! Secrets do not appear in any output of a running dataplane: its log at the lowest level, its
//! status, its metrics, and the environment of its Envoy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use legate_testkit::fake_server::{Call, FakeServer};
use legate_testkit::network::free_port;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::envoy_side::PATIENCE;

const HUSH: &str = "hush-4711";

/// Polling interval for conditions without an event.
const POLL: Duration = Duration::from_millis(20);

/// A script in Envoy's place that prints its environment and then reports that it runs.
const ENVOY: &str = "#!/bin/sh\n/usr/bin/env >&2\necho envoy-runs >&2\nexec sleep 1000\n";

struct Dataplane {
    child: Child,
    folder: TempDir,
    lifecycle: u16,
}

impl Dataplane {
    fn start(server: &FakeServer, credentials: impl FnOnce(&Path, &mut Command)) -> Dataplane {
        let folder = tempfile::tempdir().unwrap();
        let envoy = folder.path().join("envoy");
        fs::write(&envoy, ENVOY).unwrap();
        fs::set_permissions(&envoy, fs::Permissions::from_mode(0o755)).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let (address, lifecycle) = (server.address(), free_port());
        let mut command = Command::new(env!("CARGO_BIN_EXE_legate-dataplane"));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .arg(format!("-addresses={}", address.ip()))
            .arg(format!("-grpc-port={}", address.port()))
            .args(["-tls-disabled", "-server-watch-disabled", "-proxy-id=web"])
            .arg("-log-level=trace")
            .arg(format!("-envoy-executable-path={}", envoy.display()))
            .arg(format!("-envoy-admin-bind-port={}", free_port()))
            .arg(format!("-graceful-port={lifecycle}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true);
        credentials(folder.path(), &mut command);
        Dataplane {
            child: command.spawn().unwrap(),
            folder,
            lifecycle,
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// All of its output, from start to end.
    async fn shown(mut self) -> String {
        let running = async {
            while !self.log().contains("envoy-runs") {
                tokio::time::sleep(POLL).await;
            }
        };
        if timeout(PATIENCE, running).await.is_err() {
            panic!("Envoy does not run:\n{}", self.log());
        }
        let mut pages = String::new();
        for path in ["/status", "/metrics"] {
            pages.push_str(&self.page(path).await);
        }
        let pid = self.child.id().expect("it runs");
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM).unwrap();
        let status = timeout(PATIENCE, self.child.wait()).await;
        let status = status.expect("it ends in time").unwrap();
        assert_eq!(status.code(), Some(0), "{}", self.log());
        format!("{pages}\n{}", self.log())
    }

    async fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.lifecycle))
            .await
            .unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        page
    }
}

/// Configures the credentials of a dataplane; files are created in the folder.
type Give = fn(&Path, &mut Command);

#[tokio::test]
async fn a_static_token_from_any_source() {
    let in_flag: Give = |_, command| {
        command.args(["-credential-type=static", "-static-token", HUSH]);
    };
    let in_variable: Give = |_, command| {
        command
            .env("DP_CREDENTIAL_TYPE", "static")
            .env("DP_CREDENTIAL_STATIC_TOKEN", HUSH);
    };
    let in_file: Give = |folder, command| {
        let credentials = json!({"type": "static", "static": {"token": HUSH}});
        let config: PathBuf = folder.join("config.json");
        let content = json!({"consul": {"credentials": credentials}});
        fs::write(&config, content.to_string()).unwrap();
        command.arg("-config-file").arg(config);
    };
    for (source, give) in [
        ("flag", in_flag),
        ("variable", in_variable),
        ("file", in_file),
    ] {
        let server = FakeServer::plaintext().await;
        server.script().accept_token(HUSH);
        let shown = Dataplane::start(&server, give).shown().await;
        assert!(!server.script().calls(Call::BootstrapParams).is_empty());
        assert!(!shown.contains(HUSH), "{source}:\n{shown}");
    }
}

#[tokio::test]
async fn the_bearer_token_and_the_token_of_a_login() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("method", HUSH);
    let shown = Dataplane::start(&server, |_, command| {
        command
            .args(["-credential-type=login", "-login-auth-method=method"])
            .env("DP_CREDENTIAL_LOGIN_BEARER_TOKEN", HUSH);
    })
    .shown()
    .await;
    // The logout is for the token that the login created.
    let logouts = server.script().logouts();
    let token = &logouts.first().expect("a logout").token;
    assert!(!token.is_empty());
    assert!(!shown.contains(HUSH) && !shown.contains(token), "{shown}");
}
