//! A real Envoy under the supervisor.

use std::time::Duration;

use legate_envoy::admin::{AdminClient, AdminError};
use legate_envoy::bootstrap::{
    BootstrapInputs, NodeInputs, PrometheusInputs, ProxyConfig, XdsAddress, build,
};
use legate_envoy::process::{DrainStrategy, EnvoyLog, ExitReason, Launch, LogLevel, SpawnError};
use legate_envoy::supervisor::{self, Exit, Handle, State, SupervisorConfig};
use legate_testkit::network::free_port;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Would end a string, a YAML scalar or a template somewhere.
const HOSTILE_ID: &str = "web\"proxy\n\\ äöü \u{1F600} \t{{end}} ': # \u{85}";

/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn launch(document: &Value) -> Launch {
    Launch {
        executable: legate_testkit::envoy::binary(),
        bootstrap: document.to_string(),
        log: EnvoyLog {
            level: LogLevel::Error,
            json: false,
        },
        concurrency: 1,
        drain_time: Duration::from_secs(1),
        drain_strategy: DrainStrategy::Immediate,
        extra_args: Vec::new(),
        secret_variables: Vec::new(),
    }
}

/// A document with an admin interface only, which makes Envoy ready by itself.
fn admin_only(admin: u16, cluster: &str) -> Value {
    json!({
        "admin": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": admin } } },
        "node": { "id": "web-proxy", "cluster": cluster },
    })
}

fn client(port: u16) -> AdminClient {
    AdminClient::new(([127, 0, 0, 1], port).into())
}

async fn until(handle: &mut Handle, wanted: State) {
    while handle.state() != wanted {
        assert!(handle.changed().await.is_some(), "ended before {wanted:?}");
    }
}

/// Runs Envoy with `document`; `wishes` acts once it has started.
async fn supervise<F: Future<Output = ()>>(
    document: &Value,
    port: u16,
    grace: Duration,
    wishes: impl FnOnce(Handle, u32) -> F,
) -> Exit {
    let process = launch(document).spawn().unwrap();
    let config = SupervisorConfig {
        drain: true,
        grace,
        kill_after: Duration::from_secs(30),
    };
    let (handle, controls) = supervisor::handle();
    let wishes = wishes(handle, process.pid());
    let run = supervisor::run(process, client(port), config, controls);
    let (exit, ()) = timeout(PATIENCE, async { tokio::join!(run, wishes) })
        .await
        .expect("Envoy ended in time");
    exit
}

#[tokio::test]
async fn drain_and_quit_end_with_code_0() {
    let port = free_port();
    let grace = Duration::from_millis(300);
    let exit = supervise(
        &admin_only(port, "web"),
        port,
        grace,
        |mut handle, _| async move {
            until(&mut handle, State::Running).await;
            assert!(client(port).ready().await.unwrap());
            handle.shut_down();
            until(&mut handle, State::Draining).await;
            // A drain must not end Envoy: the application may still call out.
            assert!(client(port).get("/server_info").await.is_ok());
            until(&mut handle, State::Exited).await;
        },
    )
    .await;
    assert!(exit.graceful(), "{exit:?}");
}

#[tokio::test]
async fn a_killed_envoy_is_told_with_its_signal() {
    let port = free_port();
    let document = admin_only(port, "web");
    let exit = supervise(
        &document,
        port,
        Duration::ZERO,
        |mut handle, pid| async move {
            until(&mut handle, State::Running).await;
            kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
        },
    )
    .await;
    assert!(!exit.requested && !exit.forced);
    assert!(
        matches!(exit.reason, ExitReason::Signal { signal: 9, .. }),
        "{exit:?}"
    );
    assert!(
        exit.reason.to_string().starts_with("killed by SIGKILL"),
        "{}",
        exit.reason
    );
}

#[tokio::test]
async fn the_generated_document_waits_for_configuration_and_still_quits() {
    let port = free_port();
    let inputs = BootstrapInputs {
        node: NodeInputs {
            id: HOSTILE_ID.to_owned(),
            cluster: "web".to_owned(),
            ..NodeInputs::default()
        },
        admin: ([127, 0, 0, 1], port).into(),
        access_logs: Vec::new(),
        xds: XdsAddress::Tcp(([127, 0, 0, 1], free_port()).into()),
        ready: None,
        prometheus: PrometheusInputs {
            scrape_path: "/metrics".to_owned(),
            backend: ([127, 0, 0, 1], free_port()).into(),
            tls: None,
        },
        proxy_config: ProxyConfig::default(),
    };
    let document = build(&inputs, &|_| None).unwrap();
    let document: Value = serde_json::from_str(&document.to_json()).unwrap();
    let exit = supervise(
        &document,
        port,
        Duration::from_secs(3600),
        |handle, _| async move {
            // Not ready, because nobody serves it clusters and listeners.
            loop {
                match client(port).ready().await {
                    Ok(ready) => break assert!(!ready),
                    Err(AdminError::Connection { .. } | AdminError::Timeout { .. }) => {
                        tokio::task::yield_now().await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(handle.state(), State::Starting);
            let info = client(port).get("/server_info").await.unwrap();
            let info: Value = serde_json::from_slice(&info).unwrap();
            assert_eq!(info["node"]["id"], HOSTILE_ID);
            handle.shut_down();
        },
    )
    .await;
    assert!(exit.graceful(), "{exit:?}");
}

#[tokio::test]
async fn a_document_too_large_for_an_argument_reaches_envoy() {
    let port = free_port();
    let cluster = "y".repeat(200 * 1024);
    let document = admin_only(port, &cluster);
    let exit = supervise(
        &document,
        port,
        Duration::ZERO,
        |mut handle, _| async move {
            until(&mut handle, State::Running).await;
            let info = client(port).get("/server_info").await.unwrap();
            let info: Value = serde_json::from_slice(&info).unwrap();
            assert_eq!(info["node"]["cluster"], cluster);
            handle.shut_down();
        },
    )
    .await;
    assert!(exit.graceful(), "{exit:?}");
}

#[tokio::test]
async fn a_document_that_envoy_refuses_ends_with_its_code() {
    let document = json!({ "no_such_field": true });
    let exit = supervise(&document, free_port(), Duration::ZERO, |_, _| async {}).await;
    assert_eq!(
        exit,
        Exit {
            reason: ExitReason::Code(1),
            requested: false,
            forced: false
        }
    );
}

#[tokio::test]
async fn a_dropped_process_is_killed() {
    let port = free_port();
    let process = launch(&admin_only(port, "web")).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(process.pid()).unwrap());
    drop(process);
    let gone = async {
        // The runtime collects the dead child in the background.
        while kill(pid, None).is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("the process is gone");
}

#[tokio::test]
async fn programs_that_cannot_start_say_what_to_look_at() {
    let folder = tempfile::tempdir().unwrap();
    for executable in [folder.path().join("none"), folder.path().to_path_buf()] {
        let launch = Launch {
            executable,
            ..launch(&json!({}))
        };
        let error = launch.spawn().unwrap_err();
        assert!(matches!(error, SpawnError::Start { .. }));
        assert!(
            error.to_string().contains("-envoy-executable-path"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn the_admin_client_is_bounded_and_says_what_failed() {
    let refused = client(free_port()).ready().await.unwrap_err();
    assert!(
        matches!(refused, AdminError::Connection { .. }),
        "{refused}"
    );

    // Takes connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let late = AdminClient::new(address).ready().await.unwrap_err();
    assert!(matches!(late, AdminError::Timeout { .. }), "{late}");
    assert!(late.to_string().contains(&address.to_string()), "{late}");

    let wildcard: std::net::SocketAddr = "[::]:19000".parse().unwrap();
    assert_eq!(
        AdminClient::new(wildcard).address(),
        "[::1]:19000".parse().unwrap()
    );
}
