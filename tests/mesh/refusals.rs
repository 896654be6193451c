//! Invalid configurations end with one clear error that names the setting.

use legate_testkit::certs::TestCa;
use legate_tests::wait::eventually;
use legate_tests::{Mesh, MeshOptions, Sidecar};

use crate::{API, WEB};

/// The process exits with status 1, and exactly one error line contains all of `words`.
pub(crate) async fn refused(mut sidecar: Sidecar, words: &[&str]) {
    let status = sidecar.exit().await;
    let log = sidecar.log();
    assert_eq!(status.code(), Some(1), "{log}");
    let fatal = log.lines().last().unwrap_or_default();
    assert!(
        words.iter().all(|word| fatal.contains(word)),
        "{words:?} are not in the last line of:\n{log}"
    );
    let errors = log.lines().filter(|line| line.contains("[ERROR]")).count();
    assert!(errors <= 1, "{errors} errors instead of one:\n{log}");
}

/// The process keeps running, because the registration may follow, and logs what it waits for in one
/// line with all of `words`.
async fn awaited(sidecar: &Sidecar, words: &[&str]) {
    let says = |log: &String| {
        let mut lines = log.lines();
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    let log = || std::future::ready(sidecar.log());
    eventually("it says what it waits for", log, says).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_token() {
    let mut mesh = Mesh::start(MeshOptions {
        acl: true,
        ..MeshOptions::default()
    })
    .await;
    mesh.register(&WEB).await;
    let flags = mesh
        .flags(WEB.instance)
        .with("credential-type", "static")
        .with("static-token", "no-such-token");
    refused(mesh.sidecar("web", &flags), &["-static-token"]).await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_token() {
    let mut mesh = Mesh::start(MeshOptions {
        acl: true,
        ..MeshOptions::default()
    })
    .await;
    mesh.register(&WEB).await;
    let flags = mesh.flags(WEB.instance);
    refused(mesh.sidecar("web", &flags), &["-credential-type"]).await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_proxy() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&API).await;
    let flags = mesh.flags(WEB.instance);
    let mut sidecar = mesh.sidecar("web", &flags);
    awaited(&sidecar, &["[WARN]", WEB.instance, "proxy-id"]).await;
    mesh.register(&WEB).await;
    sidecar.ready().await;
    sidecar.stop().await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_node() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&WEB).await;
    let flags = mesh.flags(WEB.instance).with("proxy-node-name", "nowhere");
    let mut sidecar = mesh.sidecar("web", &flags);
    awaited(&sidecar, &["[WARN]", "nowhere", "proxy-node-name"]).await;
    sidecar.stop().await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untrusted_server() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&WEB).await;
    let other = TestCa::new();
    let flags = mesh
        .flags(WEB.instance)
        .with("ca-certs", other.ca_file().display().to_string());
    refused(mesh.sidecar("web", &flags), &["-ca-certs"]).await;
    mesh.stop().await;
}
