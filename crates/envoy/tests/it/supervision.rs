//! A single real Envoy: its start, its admin interface, and its end.

use std::time::Duration;

use legate_envoy::admin::AdminClient;
use legate_envoy::bootstrap::{
    BootstrapInputs, NodeInputs, PrometheusInputs, ProxyConfig, XdsAddress, build,
};
use legate_envoy::process::{DrainStrategy, EnvoyLog, ExitReason, Launch};
use legate_envoy::supervision::{
    self, Ended, EnvoyConfig, EnvoyHost, EpochState, Handle, Options, Outcome, Policy, Report,
};
use legate_runtime::logging::Level;
use legate_testkit::network::free_port;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Contains characters that are special in a string, in YAML or in a template.
const HOSTILE_ID: &str = "web\"proxy\n\\ äöü \u{1F600} \t{{end}} ': # \u{85}";

/// Far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn launch(document: &Value) -> Launch {
    Launch {
        executable: legate_testkit::envoy::binary(),
        bootstrap: document.to_string(),
        log: EnvoyLog {
            level: Level::Error,
            json: false,
        },
        concurrency: 1,
        drain_time: Duration::from_secs(1),
        drain_strategy: DrainStrategy::Immediate,
        extra_args: Vec::new(),
    }
}

/// A document with only an admin interface. Envoy becomes ready with it.
fn admin_only(admin: u16, cluster: &str) -> Value {
    json!({
        "admin": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": admin } } },
        "node": { "id": "web-proxy", "cluster": cluster },
    })
}

fn client(port: u16) -> AdminClient {
    AdminClient::new(([127, 0, 0, 1], port).into())
}

async fn until(handle: &Handle<EnvoyConfig>, wanted: impl FnMut(&Report) -> bool) -> Report {
    let mut seen = handle.watch();
    let report = seen.wait_for(wanted).await;
    report.expect("the supervisor runs").clone()
}

/// Runs Envoy with `document`, without hot restart; `requests` must end it.
async fn supervise<F: Future<Output = ()>>(
    document: &Value,
    port: u16,
    grace: Duration,
    requests: impl FnOnce(Handle<EnvoyConfig>) -> F,
) -> Ended {
    supervise_launch(launch(document), port, grace, requests).await
}

async fn supervise_launch<F: Future<Output = ()>>(
    launch: Launch,
    port: u16,
    grace: Duration,
    requests: impl FnOnce(Handle<EnvoyConfig>) -> F,
) -> Ended {
    let options = Options {
        policy: Policy {
            drain: true,
            grace,
            kill_after: Duration::from_secs(30),
            ..Policy::default()
        },
        ..Options::default()
    };
    let host = EnvoyHost::new(client(port), None, None);
    let (handle, controls) = supervision::handle();
    let requests = requests(handle);
    let run = supervision::run(host, EnvoyConfig::new(launch), options, controls);
    let (ended, ()) = timeout(PATIENCE, async { tokio::join!(run, requests) })
        .await
        .expect("Envoy ended in time");
    ended.unwrap()
}

fn graceful(ended: &Ended) -> bool {
    let clean = ended
        .last
        .as_ref()
        .is_some_and(|exit| exit.reason.success());
    clean && ended.outcome == Outcome::Stopped { forced: false }
}

#[tokio::test]
async fn drain_and_quit_end_with_code_0() {
    let port = free_port();
    let grace = Duration::from_millis(300);
    let document = admin_only(port, "web");
    let ended = supervise(&document, port, grace, async |handle| {
        until(&handle, Report::ready).await;
        assert!(client(port).server_info().await.unwrap().live());
        handle.stop();
        let drains = |report: &Report| report.epochs[0].state == EpochState::Draining;
        until(&handle, drains).await;
        // A drain must not end Envoy: the application may still call others.
        assert!(client(port).get("/server_info").await.is_ok());
    })
    .await;
    assert!(graceful(&ended), "{ended:?}");
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
        deprecated_tags: false,
        proxy_config: ProxyConfig::default(),
    };
    let document = build(&inputs).unwrap().document;
    let ended = supervise(&document, port, Duration::from_secs(3600), async |handle| {
        // Not ready, because no server provides clusters and listeners.
        loop {
            match client(port).server_info().await {
                Ok(info) => break assert!(!info.live()),
                Err(_) => tokio::task::yield_now().await,
            }
        }
        let report = handle.report();
        assert_eq!(report.epochs[0].state, EpochState::Starting);
        let info = client(port).get("/server_info").await.unwrap();
        let info: Value = serde_json::from_slice(&info).unwrap();
        assert_eq!(info["node"]["id"], HOSTILE_ID);
        handle.stop();
    })
    .await;
    assert!(graceful(&ended), "{ended:?}");
}

#[tokio::test]
async fn a_document_too_large_for_an_argument_reaches_envoy() {
    let port = free_port();
    let cluster = "y".repeat(200 * 1024);
    let document = admin_only(port, &cluster);
    let ended = supervise(&document, port, Duration::ZERO, async |handle| {
        until(&handle, Report::ready).await;
        let info = client(port).get("/server_info").await.unwrap();
        let info: Value = serde_json::from_slice(&info).unwrap();
        assert_eq!(info["node"]["cluster"], cluster);
        handle.stop();
    })
    .await;
    assert!(graceful(&ended), "{ended:?}");
}

#[tokio::test]
async fn a_document_that_envoy_refuses_ends_with_its_code() {
    let document = json!({ "no_such_field": true });
    let ended = supervise(&document, free_port(), Duration::ZERO, async |handle| {
        let report = until(&handle, |report| !report.exits.is_empty()).await;
        assert_eq!(report.exits[0].reason, ExitReason::Code(1));
        assert!(!report.exits[0].expected && !report.ready());
        handle.stop();
    })
    .await;
    assert_eq!(ended.outcome, Outcome::Stopped { forced: false });
    assert!(ended.refusal.unwrap().contains("exited with code 1"));
}

#[tokio::test]
async fn a_first_document_that_envoy_refuses_ends_supervision_with_its_message() {
    for json in [false, true] {
        let document = json!({ "no_such_field": true });
        let mut launch = launch(&document);
        launch.log.json = json;
        let ended = supervise_launch(launch, free_port(), Duration::ZERO, async |_| {}).await;
        assert_eq!(ended.outcome, Outcome::Spent);
        assert!(ended.refused);
        assert_eq!(ended.last.unwrap().reason, ExitReason::Code(1));
        let refusal = ended.refusal.unwrap();
        assert!(
            refusal.contains("no_such_field") && refusal.contains("critical"),
            "{refusal}"
        );
    }
}

#[tokio::test]
async fn an_unknown_argument_ends_supervision_with_envoys_message() {
    let port = free_port();
    let launch = Launch {
        extra_args: vec!["--no-such-option".into()],
        ..launch(&admin_only(port, "web"))
    };
    let ended = supervise_launch(launch, port, Duration::ZERO, async |_| {}).await;
    assert!(ended.refused);
    let refusal = ended.refusal.unwrap();
    assert!(refusal.contains("--no-such-option"), "{refusal}");
}

#[tokio::test]
async fn a_document_that_only_cannot_run_here_is_tried_again() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let document = admin_only(port, "web");
    let ended = supervise(&document, port, Duration::ZERO, async |handle| {
        until(&handle, |report| report.exits.len() == 3).await;
        drop(taken);
        until(&handle, Report::ready).await;
        handle.stop();
    })
    .await;
    assert!(graceful(&ended) && !ended.refused, "{ended:?}");
}

#[tokio::test]
async fn a_dropped_process_is_killed() {
    let port = free_port();
    let process = launch(&admin_only(port, "web")).spawn(None, false).unwrap();
    let pid = Pid::from_raw(i32::try_from(process.pid()).unwrap());
    drop(process);
    let gone = async {
        // The runtime reaps the dead child in the background.
        while kill(pid, None).is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("the process is gone");
}

#[tokio::test]
async fn programs_that_cannot_start_fail_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    for executable in [folder.path().join("none"), folder.path().to_path_buf()] {
        let launch = Launch {
            executable,
            ..launch(&json!({}))
        };
        let error = launch.spawn(None, false).unwrap_err();
        assert!(
            error.to_string().contains("-envoy-executable-path"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn the_admin_client_is_bounded_and_names_the_failure() {
    let refused = client(free_port()).server_info().await.unwrap_err();
    assert!(refused.to_string().contains("refused"), "{refused}");

    // Accepts connections and never responds.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let late = AdminClient::new(address).server_info().await.unwrap_err();
    assert!(late.to_string().contains("timed out"), "{late}");
    assert!(late.to_string().contains(&address.to_string()), "{late}");

    // A wildcard address is not a valid destination.
    let wildcard = AdminClient::new(([0_u16; 8], free_port()).into());
    let error = wildcard.server_info().await.unwrap_err().to_string();
    assert!(error.contains("[::1]:"), "{error}");
}
