//! No Envoy is left behind, and its exit is reported with the reason.

use std::process::Command;
use std::time::Duration;

use legate_testkit::envoy::workspace_binary;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, client, eventually};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::{API, WEB};

/// Whether a process exists and is not a zombie.
pub(crate) fn alive(pid: Pid) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let zombie = state
        .rsplit(") ")
        .next()
        .is_some_and(|rest| rest.starts_with('Z'));
    kill(pid, None) != Err(Errno::ESRCH) && !zombie
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_envoy_is_reported_and_restarted() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let mut api = mesh.add(&API).await;
    let envoy = api.envoy();
    kill(envoy, Signal::SIGKILL).expect("Envoy runs");
    let admin = (api.address, 19000).into();
    eventually(
        "another Envoy is ready",
        || async {
            let answer = client::get(admin, "/ready").await;
            !alive(envoy) && answer.is_ok_and(|(status, _)| status.is_success())
        },
        |again| *again,
    )
    .await;
    let log = api.log();
    assert!(
        log.lines()
            .any(|line| line.contains("unexpectedly") && line.contains("SIGKILL")),
        "{log}"
    );
    let again = api.envoy();
    assert_ne!(again, envoy);
    let status = api.stop().await;
    assert_eq!(status.code(), Some(0), "{}", api.log());
    assert!(!alive(again), "Envoy is still there");
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoys_killed_during_an_outage_get_their_configuration_back() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = mesh.add(&API).await;
    let mut web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;
    mesh.stop_server().await;

    let envoys = [web.envoy(), api.envoy()];
    for envoy in envoys {
        kill(envoy, Signal::SIGKILL).expect("Envoy runs");
    }
    eventually(
        "both Envoys are gone",
        || async { envoys.map(alive) },
        |alive| *alive == [false, false],
    )
    .await;
    // Listeners, routes, clusters, endpoints and certificates of both, without a server.
    mesh.settle("web", 200).await;
    assert!(client::get(mesh.public("api"), "/").await.is_err());

    assert!(web.stop().await.success() && api.stop().await.success());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_exits_with_a_killed_dataplane() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let mut api = mesh.add(&API).await;
    let envoy = api.envoy();
    api.signal(Signal::SIGKILL);
    api.exit().await;
    eventually(
        "Envoy ends with its parent",
        || async { alive(envoy) },
        |alive| !alive,
    )
    .await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains_and_exits_with_status_0() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let spec = API;
    mesh.register(&spec).await;
    let flags = mesh
        .flags(spec.instance)
        .with("shutdown-drain-listeners", "true")
        .with("shutdown-grace-period-seconds", "1");
    let mut api = mesh.sidecar("api", &flags);
    api.ready().await;
    let envoy = api.envoy();
    let status = api.stop().await;
    assert_eq!(status.code(), Some(0), "{}", api.log());
    assert!(!alive(envoy), "Envoy is still there");
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grace_period_ends_early_only_if_configured() {
    const BATCH: ServiceSpec = ServiceSpec {
        service: "batch",
        instance: "batch",
        protocol: "http",
        upstreams: &[],
    };
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = mesh.add(&API).await;
    let mut idle = Vec::new();
    for (spec, early) in [(&WEB, "false"), (&BATCH, "true")] {
        mesh.register(spec).await;
        let flags = mesh
            .flags(spec.instance)
            .with("shutdown-drain-listeners", "true")
            // Far longer than the test.
            .with("shutdown-grace-period-seconds", "600")
            .with("shutdown-end-when-idle", early);
        let mut sidecar = mesh.sidecar(spec.instance, &flags);
        sidecar.ready().await;
        idle.push(sidecar);
    }
    mesh.settle("web", 200).await;
    let [web, batch] = &mut idle[..] else {
        unreachable!("two were started")
    };

    // Neither has connections. The one that has to wait is signalled first.
    web.signal(Signal::SIGTERM);
    eventually(
        "web begins to stop",
        || async { web.log() },
        |log| log.contains("initiating shutdown"),
    )
    .await;
    let status = batch.stop().await;
    assert_eq!(status.code(), Some(0), "{}", batch.log());

    // An upstream of the application that stops at the same time is still reachable.
    mesh.settle("web", 200).await;
    web.signal(Signal::SIGTERM);
    let status = web.exit().await;
    assert_eq!(status.code(), Some(0), "{}", web.log());
    assert!(api.stop().await.success());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_native_sidecar_of_a_job_ends_within_a_second() {
    const JOBS: [&str; 3] = ["job-1", "job-2", "job-3"];
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = mesh.add(&API).await;
    let mut took = Vec::new();
    for instance in JOBS {
        mesh.register(&ServiceSpec { instance, ..WEB }).await;
        // As injected into pods.
        let flags = mesh
            .flags(instance)
            .with("shutdown-drain-listeners", "true")
            .with("shutdown-end-when-idle", "true")
            .with("shutdown-grace-period-seconds", "20");
        let mut job = mesh.sidecar(instance, &flags);
        job.ready().await;
        mesh.settle(instance, 200).await;
        let call = TcpStream::connect(mesh.upstream(instance, 0)).await;

        // The application ends; the kubelet calls the hook, and then sends the signal.
        let ended = Instant::now();
        drop(call.expect("Envoy listens"));
        let mut hook = Command::new(workspace_binary("legate-dataplane"));
        hook.arg("-drain=1s");
        hook.arg(format!("-graceful-addr={}", job.address));
        let hook = hook.status().expect("the hook can be started");
        assert!(hook.success(), "{hook}: {}", job.log());
        let status = job.stop().await;
        took.push(ended.elapsed());
        assert_eq!(status.code(), Some(0), "{}", job.log());
    }
    // One of them may be slow because of other tests.
    let fastest = took.iter().min().expect("there were some");
    assert!(*fastest < Duration::from_secs(1), "{took:?}");
    assert!(api.stop().await.success());
    mesh.stop().await;
}
