//! Replacement of running Envoys: on request, after a changed input, and by a dataplane that adopts
//! them.

use std::path::Path;
use std::time::Duration;

use http::Method;
use legate_tests::load::Load;
use legate_tests::wait::eventually_within;
use legate_tests::{Mesh, MeshOptions, Sidecar, client, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::metrics::watch;
use crate::process::alive;
use crate::{API, WEB};

/// A new bootstrap is requested every ten seconds at most, and a changed file is checked twice.
const BY_ITSELF: Duration = Duration::from_secs(60);

/// Port of the Prometheus listener.
const METRICS: u16 = 20200;

/// Number and process id of the newest epoch, if it serves.
fn newest(status: &Value) -> Option<(u64, i32)> {
    let epoch = status["envoy"]["epochs"].as_array()?.last()?;
    let serves = ["serving", "healthy"].contains(&epoch["state"].as_str()?);
    let pid = i32::try_from(epoch["pid"].as_i64()?).ok()?;
    Some((epoch["epoch"].as_u64()?, pid)).filter(|_| serves)
}

/// Waits until the epoch with this number serves.
async fn epoch(sidecar: &Sidecar, number: u64) {
    eventually_within(
        BY_ITSELF,
        &format!("epoch {number} serves"),
        || sidecar.status(),
        |status| newest(status).is_some_and(|(epoch, _)| epoch == number),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_restarts_without_any_server_fail_no_request_and_lose_no_configuration() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut sidecars = Vec::new();
    for spec in [&API, &WEB] {
        mesh.register(spec).await;
        let flags = mesh
            .flags(spec.instance)
            .with("envoy-drain-time-seconds", "1");
        // The first sidecar has no such listener.
        let bind = format!("{}:{METRICS}", flags.address);
        if !sidecars.is_empty() {
            proxy_defaults(&mesh, json!({"envoy_prometheus_bind_addr": bind})).await;
        }
        let mut sidecar = mesh.sidecar(spec.instance, &flags);
        sidecar.ready().await;
        sidecars.push(sidecar);
    }
    mesh.settle("web", 200).await;
    mesh.stop_server().await;
    let load = Load::start(mesh.upstream("web", 0));
    let metrics = (sidecars[1].address, METRICS).into();
    let mut pages = 0;
    tokio::select! {
        () = watch(metrics, &mut pages) => unreachable!("it never ends"),
        () = restart_twice(&sidecars) => {}
    }
    let before = load.seen().of(API.instance);
    eventually(
        "requests go on",
        || async { load.seen() },
        |seen| seen.of(API.instance) > before + 100,
    )
    .await;
    let seen = load.finish().await;
    assert_eq!(seen.failures, Vec::<String>::new());
    let page = client::get(metrics, "/metrics").await.expect("metrics").1;
    assert!(pages > 20, "{pages}");
    assert!(
        page.contains("consul_dataplane_envoy_restarts_total{kind=\"hot\"} 2"),
        "{page}"
    );
    for mut sidecar in sidecars {
        let document = sidecar.status().await;
        assert_eq!(document["envoy"]["starts"], 3, "{document:#}");
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
        let log = sidecar.log();
        assert!(!log.contains("PRIVATE KEY"), "a key is in the log:\n{log}");
    }
    mesh.stop().await;
}

/// Restarts once by request and once by signal, each after the previous Envoys have exited: Envoy has
/// only one parent at a time.
async fn restart_twice(sidecars: &[Sidecar]) {
    for sidecar in sidecars {
        let (status, text) = sidecar.restart().await;
        assert!(status.is_success(), "{status}: {text}");
        assert!(
            text.contains("epoch 1") && text.contains("epoch 0"),
            "{text}"
        );
        // All of it comes from the relay's cache, for the new epoch as for the old one.
        let document = sidecar.status().await;
        assert_eq!(document["ready"], true, "{document:#}");
        assert_eq!(document["relay"]["envoy_streams"], 2, "{document:#}");
        // Unknown while the kernel is slow or an Envoy is ending.
        eventually(
            "the connections of all Envoys are counted",
            || sidecar.status(),
            |document| {
                let epochs = document["envoy"]["epochs"].as_array().expect("epochs");
                epochs.iter().all(|epoch| epoch["connections"].is_u64())
            },
        )
        .await;
    }
    for sidecar in sidecars {
        sidecar.signal(Signal::SIGHUP);
    }
    for sidecar in sidecars {
        epoch(sidecar, 2).await;
    }
}

async fn proxy_defaults(mesh: &Mesh, config: Value) {
    let entry = json!({"Kind": "proxy-defaults", "Name": "global", "Config": config});
    mesh.api(Method::PUT, "/v1/config", Some(entry)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_bootstrap_takes_over_and_one_that_envoy_refuses_does_not() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&API).await;
    let flags = mesh
        .flags(API.instance)
        .with("envoy-drain-time-seconds", "1")
        .with("telemetry-prom-merge-port", "20900")
        .with("envoy-bootstrap-refresh-interval", "10s");
    let mut api = mesh.sidecar("api", &flags);
    api.ready().await;
    let metrics = (api.address, 20200).into();
    assert!(client::get(metrics, "/metrics").await.is_err());
    let listener = json!({"envoy_prometheus_bind_addr": format!("{}:20200", api.address)});
    proxy_defaults(&mesh, listener.clone()).await;
    epoch(&api, 1).await;
    let (status, page) = client::get(metrics, "/metrics").await.expect("metrics");
    assert!(
        status.is_success() && page.contains("envoy_server_live"),
        "{page}"
    );
    // The parent must exit first: only one at a time.
    let mut refused = listener;
    refused["envoy_extra_static_clusters_json"] = json!(r#"{"name": "x", "no_such_field": 1}"#);
    proxy_defaults(&mesh, refused).await;
    let status = eventually_within(
        BY_ITSELF,
        "the refusal is reported",
        || api.status(),
        |status| status["envoy"]["refusal"].is_string(),
    )
    .await;
    let refusal = status["envoy"]["refusal"].as_str().unwrap_or_default();
    assert!(refusal.contains("no_such_field"), "{refusal}");
    assert_eq!(
        newest(&status).map(|(epoch, _)| epoch),
        Some(1),
        "{status:#}"
    );
    let (answer, text) = api.restart().await;
    assert_eq!(
        (answer.as_u16(), text.contains("no_such_field")),
        (409, true),
        "{text}"
    );
    assert!(
        client::get(api.lifecycle(), "/ready")
            .await
            .expect("an answer")
            .0
            .is_success()
    );
    assert!(api.stop().await.success(), "{}", api.log());
    mesh.stop().await;
}

/// Replaces `program` by another file with the same content, like a package upgrade.
fn upgrade(program: &Path) {
    let new = program.with_extension("new");
    std::fs::copy(program, &new).expect("there is room");
    std::fs::rename(&new, program).expect("it can be replaced");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_envoy_program_in_the_same_place_takes_over() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&API).await;
    let program = mesh.file("envoy");
    std::fs::copy(legate_testkit::envoy::binary(), &program).expect("there is room");
    let flags = mesh
        .flags(API.instance)
        .with("envoy-executable-path", program.display().to_string());
    let mut api = mesh.sidecar("api", &flags);
    api.ready().await;
    upgrade(&program);
    epoch(&api, 1).await;
    assert!(api.log().contains("the program"), "{}", api.log());
    assert!(api.stop().await.success(), "{}", api.log());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_that_outlives_its_dataplane_is_adopted_by_the_next() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut web = mesh.add(&WEB).await;
    mesh.register(&API).await;
    let socket = format!("unix://{}", mesh.file("xds.sock").display());
    let folder = mesh.file("state");
    let flags = mesh
        .flags(API.instance)
        .with("xds-bind-addr", socket)
        .with("envoy-state-dir", folder.display().to_string());
    let mut first = mesh.sidecar("first", &flags);
    first.ready().await;
    mesh.settle("web", 200).await;
    let (_, pid) = newest(&first.status().await).expect("Envoy serves");
    let load = Load::start(mesh.upstream("web", 0));
    eventually(
        "the snapshot tells that it serves",
        || async { std::fs::read_to_string(folder.join("snapshot.json")).unwrap_or_default() },
        |snapshot| snapshot.contains("serving"),
    )
    .await;

    // Any end of the dataplane that is not meant to stop Envoy.
    first.signal(Signal::SIGKILL);
    first.exit().await;
    let mut second = mesh.sidecar("second", &flags);
    second.ready().await;
    assert_adopted(&second, pid).await;
    second.signal(Signal::SIGUSR2);
    assert!(second.exit().await.success(), "{}", second.log());
    let mut third = mesh.sidecar("third", &flags);
    third.ready().await;
    assert_adopted(&third, pid).await;
    let seen = load.finish().await;
    assert_eq!(seen.failures, Vec::<String>::new());

    // The new dataplane configures it and stops it.
    mesh.intend("web", "api", "deny").await;
    mesh.settle("web", 403).await;
    let log = std::fs::read_to_string(folder.join("envoy.log")).expect("Envoy's log");
    assert!(log.contains("envoy."), "{log}");
    assert!(third.stop().await.success(), "{}", third.log());
    assert!(!alive(Pid::from_raw(pid)), "Envoy is still there");
    assert!(!folder.join("snapshot.json").exists());
    assert!(web.stop().await.success());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_not_adopted_yet_ends_with_its_dataplane() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&API).await;
    let socket = format!("unix://{}", mesh.file("xds.sock").display());
    let folder = mesh.file("state");
    let flags = mesh
        .flags(API.instance)
        .with("xds-bind-addr", socket)
        .with("envoy-state-dir", folder.display().to_string());
    let mut first = mesh.sidecar("first", &flags);
    first.ready().await;
    let (_, pid) = newest(&first.status().await).expect("Envoy serves");
    // The state file lists it from its start on.
    first.signal(Signal::SIGKILL);
    first.exit().await;
    mesh.stop_server().await;

    // Without a server its configuration is unknown, so it keeps running unchanged.
    for (signal, lives) in [(Signal::SIGUSR2, true), (Signal::SIGTERM, false)] {
        let mut next = mesh.sidecar("next", &flags);
        eventually(
            "the dataplane looks for a server",
            || async { next.log() },
            |log| log.contains("cannot connect"),
        )
        .await;
        let (status, text) = next.restart().await;
        assert_eq!(status, 503, "{text}");
        assert!(text.contains("not been started yet"), "{text}");
        next.signal(signal);
        assert!(next.exit().await.success(), "{}", next.log());
        assert_eq!(alive(Pid::from_raw(pid)), lives, "{}", next.log());
        assert_eq!(folder.join("snapshot.json").exists(), lives);
    }
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_restart_drains_while_clients_are_connected() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&API).await;
    let flags = mesh
        .flags(API.instance)
        .with("envoy-hot-restart", "false")
        .with("shutdown-drain-listeners", "true")
        .with("shutdown-end-when-idle", "true")
        .with("shutdown-grace-period-seconds", "600");
    let mut api = mesh.sidecar("api", &flags);
    api.ready().await;
    let before = api.envoy();
    let connection = tokio::net::TcpStream::connect(mesh.public("api"))
        .await
        .expect("Envoy listens");
    let drained = async {
        eventually(
            "the old Envoy drains",
            || api.status(),
            |status| status["envoy"]["epochs"][0]["state"] == "draining",
        )
        .await;
        assert!(alive(before));
        drop(connection);
    };
    let ((status, text), ()) = tokio::join!(api.restart(), drained);
    assert!(status.is_success(), "{status}: {text}");
    assert_ne!(api.envoy(), before);
    api.signal(Signal::SIGTERM);
    api.exit().await;
    mesh.stop().await;
}

async fn assert_adopted(sidecar: &Sidecar, pid: i32) {
    let status = sidecar.status().await;
    assert_eq!(newest(&status), Some((0, pid)), "{status:#}");
    assert_eq!(status["envoy"]["starts"], 0, "{status:#}");
    assert_eq!(status["envoy"]["epochs"][0]["adopted"], true, "{status:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_with_the_pid_of_a_dead_envoy_is_left_alone() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&API).await;
    let folder = mesh.file("state");
    let flags = mesh
        .flags(API.instance)
        .with(
            "xds-bind-addr",
            format!("unix://{}", mesh.file("xds.sock").display()),
        )
        .with("envoy-state-dir", folder.display().to_string());
    let mut first = mesh.sidecar("first", &flags);
    first.ready().await;
    let (_, pid) = newest(&first.status().await).expect("Envoy serves");
    let snapshot = folder.join("snapshot.json");
    eventually(
        "the snapshot tells that it serves",
        || async { std::fs::read_to_string(&snapshot).unwrap_or_default() },
        |snapshot| snapshot.contains("serving"),
    )
    .await;
    first.signal(Signal::SIGKILL);
    first.exit().await;
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("Envoy lives on");
    let mut stranger = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .expect("sleep");
    let text = std::fs::read_to_string(&snapshot).expect("it is there");
    let reused = text.replace(
        &format!("\"pid\": {pid}"),
        &format!("\"pid\": {}", stranger.id()),
    );
    assert_ne!(text, reused);
    std::fs::write(&snapshot, reused).expect("it can be written");
    let mut second = mesh.sidecar("second", &flags);
    second.ready().await;
    let status = second.status().await;
    assert_eq!(status["envoy"]["starts"], 1, "{status:#}");
    assert!(second.log().contains("is not adopted"), "{}", second.log());
    assert!(second.stop().await.success(), "{}", second.log());
    assert!(
        stranger.try_wait().expect("a child").is_none(),
        "the stranger lives"
    );
    stranger.kill().expect("it can be killed");
    stranger.wait().expect("it ends");
    mesh.stop().await;
}
