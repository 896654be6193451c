//! Instances come and go without a failed request.

use legate_tests::load::Load;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, eventually};

use crate::{API, WEB};

const SECOND: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "api-2",
    protocol: "http",
    upstreams: &[],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_added_and_removed_moves_traffic() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = mesh.add(&API).await;
    let mut web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;
    let load = Load::start(mesh.upstream("web", 0));

    // A new instance fails its check until its sidecar is ready, and gets no requests before.
    mesh.register_critical(&SECOND).await;
    let flags = mesh.flags(SECOND.instance);
    let mut second = mesh.sidecar(SECOND.instance, &flags);
    second.ready().await;
    mesh.check(SECOND.instance, "passing").await;
    eventually(
        "both instances answer",
        || async { load.seen() },
        |seen| seen.answers.len() == 2,
    )
    .await;

    // The old one is removed from the catalog first and then stopped.
    mesh.deregister(API.instance).await;
    eventually(
        "the Envoy of web forgets it",
        || web.endpoints(),
        |endpoints| endpoints.len() == 1,
    )
    .await;
    assert!(api.stop().await.success());
    let before = load.seen();
    eventually(
        "requests go on",
        || async { load.seen() },
        |seen| seen.of(SECOND.instance) > before.of(SECOND.instance) + 20,
    )
    .await;

    let seen = load.finish().await;
    assert_eq!(
        seen.failures,
        Vec::<String>::new(),
        "answers: {:?}",
        seen.answers
    );
    assert!(web.stop().await.success() && second.stop().await.success());
    mesh.stop().await;
}
