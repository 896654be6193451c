//! `-envoy-state-dir`: which Envoys a dataplane adopts, and what happens to others.

use std::path::{Path, PathBuf};

use legate_tests::load::Load;
use legate_tests::{Mesh, MeshOptions, Sidecar, SidecarFlags, client, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::process::alive;
use crate::refusals::refused;
use crate::{API, WEB};

/// A sidecar of `api` whose Envoy outlives it.
fn outliving(mesh: &mut Mesh) -> (SidecarFlags, PathBuf) {
    let folder = mesh.file("state");
    let flags = mesh
        .flags(API.instance)
        .with(
            "xds-bind-addr",
            format!("unix://{}", mesh.file("xds.sock").display()),
        )
        .with("envoy-drain-time-seconds", "1")
        .with("envoy-state-dir", folder.display().to_string());
    (flags, folder)
}

/// The epochs from `/status`.
async fn epochs(sidecar: &Sidecar) -> Vec<Value> {
    let status = sidecar.status().await;
    status["envoy"]["epochs"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

/// The process id of the only epoch.
async fn envoy(sidecar: &Sidecar) -> Pid {
    let epochs = epochs(sidecar).await;
    assert_eq!(epochs.len(), 1, "{epochs:?}");
    let pid = epochs[0]["pid"]
        .as_i64()
        .and_then(|pid| pid.try_into().ok());
    Pid::from_raw(pid.expect("a process id"))
}

/// Waits until the state file records that Envoy serves and supports hot restart.
async fn noted(folder: &Path) {
    eventually(
        "the snapshot tells that Envoy serves",
        || async { std::fs::read_to_string(folder.join("snapshot.json")).unwrap_or_default() },
        |snapshot| snapshot.contains("serving") && !snapshot.contains("\"base_id\": null"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adopted_envoy_is_replaced_without_a_failed_request() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut web = mesh.add(&WEB).await;
    mesh.register(&API).await;
    let (flags, folder) = outliving(&mut mesh);
    let mut first = mesh.sidecar("first", &flags);
    first.ready().await;
    mesh.settle("web", 200).await;
    noted(&folder).await;
    let load = Load::start(mesh.upstream("web", 0));
    first.signal(Signal::SIGUSR2);
    assert!(first.exit().await.success(), "{}", first.log());

    // The next dataplane has different settings, like one of another version.
    let flags = flags.with("envoy-concurrency", "3");
    let mut second = mesh.sidecar("second", &flags);
    second.ready().await;
    eventually(
        "another epoch serves alone",
        || epochs(&second),
        |epochs| {
            matches!(epochs.as_slice(), [only] if only["epoch"] == 1 && only["adopted"] != true)
        },
    )
    .await;
    let before = load.seen().of(API.instance);
    eventually(
        "requests go on",
        || async { load.seen() },
        |seen| seen.of(API.instance) > before + 100,
    )
    .await;
    let seen = load.finish().await;
    assert_eq!(seen.failures, Vec::<String>::new(), "{}", second.log());
    assert!(second.stop().await.success(), "{}", second.log());
    assert!(web.stop().await.success());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adopted_envoy_without_hot_restart_stays_until_a_request() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&API).await;
    let (flags, folder) = outliving(&mut mesh);
    let mut first = mesh.sidecar("first", &flags);
    first.ready().await;
    noted(&folder).await;
    let pid = envoy(&first).await;
    first.signal(Signal::SIGUSR2);
    assert!(first.exit().await.success(), "{}", first.log());

    let flags = flags
        .with("envoy-concurrency", "3")
        .with("envoy-hot-restart", "false");
    let mut second = mesh.sidecar("second", &flags);
    second.ready().await;
    eventually(
        "the log tells what waits",
        || async { second.log() },
        |log| log.contains("envoy runs on as it is"),
    )
    .await;
    assert_eq!(envoy(&second).await, pid);
    assert!(alive(pid));
    let (status, text) = second.restart().await;
    assert!(status.is_success(), "{status}: {text}");
    assert_ne!(envoy(&second).await, pid);
    assert!(second.stop().await.success(), "{}", second.log());
    let log = second.log();
    assert_eq!(log.matches("envoy runs on as it is").count(), 1, "{log}");
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_belongs_to_one_dataplane_and_to_one_proxy() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&API).await;
    mesh.register(&WEB).await;
    let (flags, folder) = outliving(&mut mesh);
    let name = folder.display().to_string();
    let mut first = mesh.sidecar("first", &flags);
    first.ready().await;
    noted(&folder).await;
    let pid = envoy(&first).await;

    // Another proxy's sidecar with addresses of its own, and the same folder by mistake.
    let socket = mesh.file("other.sock");
    let other = mesh
        .flags(WEB.instance)
        .with("xds-bind-addr", format!("unix://{}", socket.display()))
        .with("envoy-state-dir", name.clone());
    let holder = first.pid().to_string();
    let words = [name.as_str(), "-envoy-state-dir", &holder, "api"];
    refused(mesh.sidecar("second", &other), &words).await;
    // A second sidecar of the same proxy is refused, too.
    let socket = mesh.file("again.sock");
    let again = flags
        .clone()
        .with("xds-bind-addr", format!("unix://{}", socket.display()))
        .with("graceful-port", "20399");
    refused(mesh.sidecar("third", &again), &words).await;
    assert_eq!(envoy(&first).await, pid);

    // The folder is free as soon as its dataplane has ended, although Envoy lives; but another
    // proxy may not adopt that Envoy.
    first.signal(Signal::SIGKILL);
    first.exit().await;
    let number = pid.to_string();
    let words = [name.as_str(), "-envoy-state-dir", &number, "api"];
    refused(mesh.sidecar("fourth", &other), &words).await;
    assert!(alive(pid), "it was left alone");
    let mut next = mesh.sidecar("next", &flags);
    next.ready().await;
    assert_eq!(envoy(&next).await, pid);
    assert_eq!(epochs(&next).await[0]["adopted"], true);
    next.signal(Signal::SIGUSR2);
    assert!(next.exit().await.success(), "{}", next.log());

    // Without a living Envoy any sidecar may use the folder.
    kill(pid, Signal::SIGKILL).expect("Envoy lives");
    eventually("Envoy is gone", || async { alive(pid) }, |alive| !alive).await;
    let mut next = mesh.sidecar("next", &other);
    next.ready().await;
    assert!(next.stop().await.success(), "{}", next.log());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_admin_port_ends_the_start_with_one_line() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&API).await;
    let flags = mesh.flags(API.instance);
    let taken = tokio::net::TcpListener::bind((flags.address, 19000))
        .await
        .expect("it is free");
    let address = taken.local_addr().expect("bound").to_string();
    let words = [address.as_str(), "-envoy-admin-bind-port", "in use"];
    refused(mesh.sidecar("api", &flags), &words).await;
    assert!(client::get(mesh.public("api"), "/").await.is_err());
    mesh.stop().await;
}
