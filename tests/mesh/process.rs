//! No Envoy is ever left behind, and its end is told with its reason.

use legate_tests::{Mesh, MeshOptions, client, eventually};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::API;

/// Whether a process exists and is not a zombie.
fn alive(pid: Pid) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let zombie = state
        .rsplit(") ")
        .next()
        .is_some_and(|rest| rest.starts_with('Z'));
    kill(pid, None) != Err(Errno::ESRCH) && !zombie
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_envoy_is_reported_and_started_again() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let mut api = mesh.add(&API).await;
    let envoy = api.envoy();
    kill(envoy, Signal::SIGKILL).expect("Envoy runs");
    let admin = (api.address, 19000).into();
    eventually(
        "another Envoy is ready",
        || async { !alive(envoy) && client::get(admin, "/ready").await.is_ok() },
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
async fn a_killed_dataplane_takes_envoy_along() {
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
async fn sigterm_drains_and_ends_with_status_0() {
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
