//! Replaces `consul-dataplane` by `legate-dataplane` with the same flags, one sidecar after the other.

use legate_tests::interop::Pair;
use legate_tests::{Mesh, MeshOptions, SidecarFlags};

use crate::{API, WEB};

async fn one_after_the_other(pair: &Pair) {
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut old_api = pair.add(&mut mesh, &API).await;
    let mut old_web = pair.add(&mut mesh, &WEB).await;
    mesh.settle("web", 200).await;

    assert!(old_api.stop().await.success(), "{}", old_api.log());
    let flags = ours(pair, &mut mesh, API.instance);
    let mut new_api = mesh.sidecar("new-api", &flags);
    new_api.ready().await;
    // An old caller and a new destination.
    both_ways(&mesh).await;

    assert!(old_web.stop().await.success(), "{}", old_web.log());
    let flags = ours(pair, &mut mesh, WEB.instance);
    let mut new_web = mesh.sidecar("new-web", &flags);
    new_web.ready().await;
    both_ways(&mesh).await;

    assert!(new_web.stop().await.success(), "{}", new_web.log());
    assert!(new_api.stop().await.success(), "{}", new_api.log());
    mesh.stop().await;
}

/// The same flags for our program.
fn ours(pair: &Pair, mesh: &mut Mesh, instance: &'static str) -> SidecarFlags {
    SidecarFlags {
        program: None,
        ..pair.flags(mesh, instance)
    }
}

async fn both_ways(mesh: &Mesh) {
    for (action, status) in [("allow", 200), ("deny", 403), ("allow", 200)] {
        mesh.intend("web", "api", action).await;
        mesh.settle("web", status).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_real_mesh() {
    if let Some(pair) = Pair::original() {
        one_after_the_other(&pair).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_legates_server() {
    if let Some(pair) = Pair::legate_server(true) {
        one_after_the_other(&pair).await;
    }
}
