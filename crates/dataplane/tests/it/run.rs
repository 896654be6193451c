//! The whole life of the process, with a shell script in Envoy's place.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_api::json::to_struct;
use legate_api::type_url::CLUSTER;
use legate_dataplane::run::run;
use legate_dataplane::settings::{self, Environment, Invocation, Mode, Settings};
use legate_dataplane::signals::{self, StopSender, Urgency};
use legate_envoy::process::Identity;
use legate_runtime::Scope;
use legate_testkit::fake_server::{Call, FakeServer};
use legate_testkit::network::{free_port, until_free};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tonic::Status;

use crate::envoy_side::{EnvoyStream, PATIENCE};

/// Polling interval for conditions without an event.
const POLL: Duration = Duration::from_millis(10);

struct Setup {
    server: FakeServer,
    settings: Settings,
    xds: SocketAddr,
    folder: TempDir,
}

/// A dataplane that logs in, with a shell script as its Envoy that accepts every configuration.
async fn setup(script: &str) -> Setup {
    setup_checking(script, "exit 0").await
}

/// The same with another script for the validation of configurations.
async fn setup_checking(script: &str, check: &str) -> Setup {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("method", "bearer");
    let folder = tempfile::tempdir().unwrap();
    let envoy = folder.path().join("envoy");
    fs::write(
        &envoy,
        format!(
            "#!/bin/sh\ncase \"$*\" in *'--mode validate') {check};; esac\necho $$ > {}/pid\n{script}\n",
            folder.path().display()
        ),
    )
    .unwrap();
    fs::set_permissions(&envoy, fs::Permissions::from_mode(0o755)).unwrap();
    let xds = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let settings = load(&flags(&server, &envoy, xds));
    Setup {
        server,
        settings,
        xds,
        folder,
    }
}

fn flags(server: &FakeServer, envoy: &Path, xds: SocketAddr) -> Vec<String> {
    let address = server.address();
    vec![
        format!("-addresses={}", address.ip()),
        format!("-grpc-port={}", address.port()),
        "-tls-disabled".to_owned(),
        "-server-watch-disabled".to_owned(),
        "-credential-type=login".to_owned(),
        "-login-auth-method=method".to_owned(),
        "-login-bearer-token=bearer".to_owned(),
        "-proxy-id=web-proxy".to_owned(),
        "-proxy-node-name=n1".to_owned(),
        format!("-envoy-executable-path={}", envoy.display()),
        format!("-envoy-admin-bind-port={}", free_port()),
        format!("-graceful-port={}", free_port()),
        format!("-xds-bind-port={}", xds.port()),
    ]
}

/// The settings that flags make.
pub(crate) fn load(flags: &[impl AsRef<str>]) -> Settings {
    let arguments = flags.iter().map(|flag| OsString::from(flag.as_ref()));
    match settings::load(arguments, Environment::new([])).unwrap() {
        Invocation::Run { settings, .. } => *settings,
        other => panic!("{other:?}"),
    }
}

/// The body of the response, once it contains `words`.
pub(crate) async fn page(address: SocketAddr, path: &str, words: &str) -> String {
    loop {
        let answer = async {
            let mut stream = TcpStream::connect(address).await?;
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        match answer.await {
            Ok(answer) if answer.contains(words) => return answer,
            // It is still starting.
            _ => tokio::time::sleep(POLL).await,
        }
    }
}

impl Setup {
    /// Runs it to its end, concurrently with `part`.
    async fn run<T>(&self, part: impl AsyncFnOnce(StopSender) -> T) -> (anyhow::Result<()>, T) {
        self.run_in(Scope::new("process"), part).await
    }

    /// The same in a scope that already has tasks.
    async fn run_in<T>(
        &self,
        scope: Scope,
        part: impl AsyncFnOnce(StopSender) -> T,
    ) -> (anyhow::Result<()>, T) {
        let (stop, signals) = signals::channel();
        let settings = self.settings.clone();
        let running = run(settings, Instant::now(), stop.clone(), signals, scope);
        timeout(PATIENCE, async { tokio::join!(running, part(stop)) })
            .await
            .expect("it ends")
    }

    /// Waits until it can listen again.
    async fn ports_are_free(&self) {
        until_free(self.settings.lifecycle.bind).await;
        until_free(self.xds).await;
    }

    /// Waits for Envoy's process.
    async fn envoy(&self) -> i32 {
        let file = self.folder.path().join("pid");
        loop {
            let text = fs::read_to_string(&file).unwrap_or_default();
            if let Some(pid) = text.strip_suffix('\n') {
                return pid.parse().unwrap();
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn logouts(&self) -> usize {
        self.server.script().logouts().len()
    }
}

fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

const WAIT_FOR_EVER: &str = "exec sleep 1000";

#[tokio::test]
async fn a_stop_ends_envoy_and_logs_out() {
    let setup = setup(WAIT_FOR_EVER).await;
    let (outcome, pid) = setup
        .run(async |stop| {
            let pid = setup.envoy().await;
            assert!(exists(pid));
            stop.request(Urgency::Graceful);
            pid
        })
        .await;
    outcome.unwrap();
    assert!(!exists(pid), "Envoy is still there");
    assert_eq!(
        (setup.server.script().logins().len(), setup.logouts()),
        (1, 1)
    );
    assert!(
        TcpStream::connect(setup.xds).await.is_err(),
        "the xDS port is still bound"
    );
}

#[tokio::test]
async fn an_envoy_that_ignores_sigterm_is_killed_by_a_second_request() {
    let setup = setup("trap '' TERM\nwhile :; do sleep 1; done").await;
    let (outcome, pid) = setup
        .run(async |stop| {
            let pid = setup.envoy().await;
            stop.request(Urgency::Graceful);
            stop.request(Urgency::Now);
            pid
        })
        .await;
    outcome.unwrap();
    assert!(!exists(pid), "Envoy is still there");
    assert_eq!(setup.logouts(), 1);
}

#[tokio::test]
async fn an_envoy_that_crashes_is_restarted_and_shown_in_the_status() {
    // Fails twice, then runs.
    let script = "echo x >> ${0}-starts\n[ $(wc -l < ${0}-starts) -gt 2 ] || exit 3";
    let setup = setup(&format!("{script}\n{WAIT_FOR_EVER}")).await;
    let lifecycle = setup.settings.lifecycle.bind;
    let (outcome, status) = setup
        .run(async |stop| {
            let status = page(lifecycle, "/status", "\"starts\":3").await;
            stop.request(Urgency::Graceful);
            status
        })
        .await;
    outcome.unwrap();
    assert_eq!(
        status.matches("\"reason\":\"exited with code 3").count(),
        2,
        "{status}"
    );
    assert_eq!(setup.logouts(), 1);
}

#[tokio::test]
async fn an_envoy_that_refuses_its_first_configuration_ends_the_process_with_its_message() {
    let setup = setup_checking("exit 3", "echo 'no such field: admn' >&2; exit 1").await;
    let (outcome, ()) = setup.run(async |_| ()).await;
    let error = outcome.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("it refuses its configuration"), "{error}");
    assert!(
        error.contains("exited with code 3") && error.contains("no such field: admn"),
        "{error}"
    );
    assert_eq!(setup.logouts(), 1);
}

#[tokio::test]
async fn a_real_envoy_that_refuses_its_first_configuration_ends_the_process_with_its_message() {
    let envoy = legate_testkit::envoy::binary();
    let check = format!("exec {} \"$@\"", envoy.display());
    let setup = setup_checking(&check, &check).await;
    let cluster = r#"{"name": "mine", "no_such_field": 1}"#;
    let config = serde_json::json!({ "envoy_extra_static_clusters_json": cluster });
    setup
        .server
        .script()
        .bootstrap_params(GetEnvoyBootstrapParamsResponse {
            config: Some(to_struct(config.as_object().unwrap())),
            ..GetEnvoyBootstrapParamsResponse::default()
        });
    let (outcome, ()) = setup.run(async |_| ()).await;
    let error = outcome.unwrap_err().to_string();
    assert!(
        error.contains("exited with code 1") && error.contains("no_such_field"),
        "{error}"
    );
    assert_eq!(setup.logouts(), 1);
}

#[tokio::test]
async fn an_envoy_that_was_asked_to_quit_ends_the_process() {
    let done = setup("exit 0").await;
    let (outcome, ()) = done.run(async |_| ()).await;
    outcome.unwrap();
    assert_eq!(done.logouts(), 1);
}

#[tokio::test]
async fn a_refused_proxy_is_one_error_and_no_envoy() {
    let setup = setup(WAIT_FOR_EVER).await;
    setup.server.script().fail_always(
        Call::BootstrapParams,
        Status::permission_denied("not this one"),
    );
    let (outcome, ()) = setup.run(async |_| ()).await;
    let error = outcome.unwrap_err().to_string();
    for word in ["web-proxy", "not this one", "-static-token", "service:read"] {
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(setup.server.script().calls(Call::BootstrapParams).len(), 4);
    assert_eq!(setup.logouts(), 1);
    assert!(
        !setup.folder.path().join("pid").exists(),
        "Envoy was started"
    );
}

#[tokio::test]
async fn requests_for_bootstrap_parameters_are_retried_when_a_server_fails() {
    let setup = setup("exit 0").await;
    let script = setup.server.script();
    script.fail_next(Call::BootstrapParams, Status::internal("starting"));
    script.fail_next(
        Call::BootstrapParams,
        Status::not_found("not replicated yet"),
    );
    let (outcome, ()) = setup.run(async |_| ()).await;
    outcome.unwrap();
    assert_eq!(script.calls(Call::BootstrapParams).len(), 3);
}

#[tokio::test]
async fn a_late_registration_is_awaited() {
    let setup = setup("exit 0").await;
    let script = setup.server.script();
    // More often than a token may be refused.
    for _ in 0..6 {
        script.fail_next(
            Call::BootstrapParams,
            Status::not_found("Service not found"),
        );
    }
    let (outcome, ()) = setup.run(async |_| ()).await;
    outcome.unwrap();
    assert_eq!(script.calls(Call::BootstrapParams).len(), 7);
}

#[tokio::test]
async fn a_token_may_be_late_after_a_late_registration() {
    let setup = setup("exit 0").await;
    let script = setup.server.script();
    for _ in 0..4 {
        let unknown = Status::not_found("Service not found");
        script.fail_next(Call::BootstrapParams, unknown);
    }
    let denied = Status::permission_denied("Permission denied");
    script.fail_next(Call::BootstrapParams, denied);
    let (outcome, ()) = setup.run(async |_| ()).await;
    outcome.unwrap();
    assert_eq!(script.calls(Call::BootstrapParams).len(), 6);
}

#[tokio::test]
async fn a_stop_before_any_server_answers_is_not_an_error() {
    let mut setup = setup(WAIT_FOR_EVER).await;
    setup.server.stop().await;
    let (outcome, ()) = setup
        .run(async |stop| assert!(stop.request(Urgency::Graceful)))
        .await;
    outcome.unwrap();
}

#[tokio::test]
async fn a_relay_that_is_refused_ends_envoy_and_the_process() {
    let setup = setup(WAIT_FOR_EVER).await;
    setup.server.script().fail_always(
        Call::Discovery,
        Status::permission_denied("no service:write"),
    );
    let (outcome, pid) = setup
        .run(async |_| {
            let pid = setup.envoy().await;
            let envoy = EnvoyStream::open(setup.xds).await;
            envoy.subscribe(CLUSTER).await;
            // Held until the relay stops retrying.
            (pid, envoy)
        })
        .await;
    let error = outcome.unwrap_err().to_string();
    assert!(
        error.contains("no service:write") && error.contains("-proxy-id"),
        "{error}"
    );
    assert!(!exists(pid.0), "Envoy is still there");
    assert_eq!(setup.logouts(), 1);
}

#[tokio::test]
async fn a_panic_in_another_task_ends_envoy_and_the_process() {
    let setup = setup(WAIT_FOR_EVER).await;
    let scope = Scope::new("process");
    let sibling = scope.spawner().child("sibling");
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    sibling.spawn("signals", async move {
        gone.await.unwrap();
        panic!("a defect");
        #[expect(unreachable_code, reason = "gives the future its type")]
        Ok::<_, std::convert::Infallible>(())
    });
    let (outcome, pid) = setup
        .run_in(scope, async |_| {
            let pid = setup.envoy().await;
            go.send(()).unwrap();
            pid
        })
        .await;
    let error = outcome.unwrap_err().to_string();
    assert_eq!(error, "sibling: signals panicked: a defect");
    assert!(!exists(pid), "Envoy is still there");
    assert_eq!(setup.logouts(), 1);
}

#[tokio::test]
async fn an_adopted_envoy_that_serves_outlives_a_dataplane_that_is_refused() {
    let mut setup = setup("").await;
    setup.settings.envoy.state_dir = Some(setup.folder.path().join("state"));
    let snapshot = setup.folder.path().join("state/snapshot.json");
    // An Envoy that serves without a configuration from the dataplane.
    let admin = setup.settings.envoy.admin;
    let document = serde_json::json!({ "admin": { "address": { "socket_address":
        { "address": admin.ip().to_string(), "port_value": admin.port() } } } });
    let envoy = setup.folder.path().join("envoy");
    let real = legate_testkit::envoy::binary();
    let script = format!(
        "#!/bin/sh\necho $$ > {}/pid\nexec {} --disable-hot-restart --config-yaml '{document}'\n",
        setup.folder.path().display(),
        real.display()
    );
    fs::write(&envoy, script).unwrap();
    let lifecycle = setup.settings.lifecycle.bind;
    let serves = async || page(lifecycle, "/status", "\"state\":\"serving\"").await;
    let (outcome, ()) = setup
        .run(async |stop| {
            serves().await;
            stop.request(Urgency::Release);
        })
        .await;
    outcome.unwrap();
    let pid = setup.envoy().await;
    let script = setup.server.script();
    let refusal = Status::permission_denied("no service:write");
    script.fail_always(Call::Discovery, refusal);
    setup.ports_are_free().await;
    let (outcome, _) = setup
        .run(async |_| {
            serves().await;
            let envoy = EnvoyStream::open(setup.xds).await;
            envoy.subscribe(CLUSTER).await;
            envoy
        })
        .await;
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("no service:write"), "{error}");
    assert!(exists(pid) && snapshot.exists(), "Envoy serves on");
    // A request to end is honoured.
    script.heal(Call::Discovery);
    setup.ports_are_free().await;
    let (outcome, ()) = setup
        .run(async |stop| {
            serves().await;
            stop.request(Urgency::Graceful);
        })
        .await;
    outcome.unwrap();
    assert!(!snapshot.exists());
    // It is not a child of this process, so it may still be a zombie.
    assert_eq!(
        Identity::of(pid.unsigned_abs()),
        None,
        "Envoy is still there"
    );
}

#[tokio::test]
async fn a_taken_port_is_found_before_the_login() {
    let mut setup = setup(WAIT_FOR_EVER).await;
    setup.settings.envoy.ready = Some((Ipv4Addr::LOCALHOST, free_port()).into());
    let envoy = &setup.settings.envoy;
    for (address, setting) in [
        (setup.xds, "-xds-bind-port"),
        (envoy.admin, "-envoy-admin-bind-port"),
        (envoy.ready.unwrap(), "-envoy-ready-bind-port"),
    ] {
        setup.ports_are_free().await;
        let _taken = tokio::net::TcpListener::bind(address).await.unwrap();
        let (outcome, ()) = setup.run(async |_| ()).await;
        let error = outcome.unwrap_err().to_string();
        let words = [setting, &address.to_string(), "in use"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert_eq!(setup.server.script().logins().len(), 0);
    }
}

#[tokio::test]
async fn metrics_are_merged_if_the_proxy_enables_prometheus() {
    let mut setup = setup(WAIT_FOR_EVER).await;
    let config = serde_json::json!({"envoy_prometheus_bind_addr": "127.0.0.1:9102"});
    setup
        .server
        .script()
        .bootstrap_params(GetEnvoyBootstrapParamsResponse {
            config: Some(to_struct(config.as_object().unwrap())),
            ..GetEnvoyBootstrapParamsResponse::default()
        });
    setup.settings.telemetry.merge_port = free_port();
    let merged = (Ipv4Addr::LOCALHOST, setup.settings.telemetry.merge_port).into();
    let (outcome, text) = setup
        .run(async |stop| {
            let text = page(merged, "/stats/prometheus", "source_up{").await;
            stop.request(Urgency::Graceful);
            text
        })
        .await;
    outcome.unwrap();
    assert!(
        text.contains("consul_dataplane_consul_connected 1"),
        "{text}"
    );
    // No server answers in Envoy's place, but the rest is served.
    assert!(
        text.contains("consul_dataplane_metrics_source_up{source=\"envoy\"} 0"),
        "{text}"
    );
}

#[tokio::test]
async fn a_process_that_only_answers_dns_needs_no_envoy() {
    let mut setup = setup("exit 1").await;
    let lifecycle = setup.settings.lifecycle.bind;
    setup.settings.mode = Mode::DnsProxy;
    setup.settings.dns = Some((Ipv4Addr::LOCALHOST, 0).into());
    setup.settings.envoy.executable = Some("/nowhere".into());
    let (outcome, status) = setup
        .run(async |stop| {
            page(lifecycle, "/readyz", "200 OK").await;
            let status = page(lifecycle, "/status", "200 OK").await;
            page(lifecycle, "/graceful_shutdown", "200 OK").await;
            drop(stop);
            status
        })
        .await;
    outcome.unwrap();
    assert!(status.contains("\"state\":\"connected\""), "{status}");
    assert_eq!(setup.logouts(), 1);
}

#[tokio::test]
async fn dns_is_answered_although_a_sidecar_has_the_lifecycle_port() {
    let mut setup = setup("exit 1").await;
    let _sidecar = tokio::net::TcpListener::bind(setup.settings.lifecycle.bind)
        .await
        .unwrap();
    setup.settings.mode = Mode::DnsProxy;
    setup.settings.dns = Some((Ipv4Addr::LOCALHOST, 0).into());
    let (outcome, ()) = setup
        .run(async |stop| {
            stop.request(Urgency::Graceful);
        })
        .await;
    outcome.unwrap();
}
