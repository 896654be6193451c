//! Intentions apply to running Envoys.

use legate_tests::{Mesh, MeshOptions};

use crate::{API, WEB};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deny_and_allow_on_open_envoys() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let mut api = mesh.add(&API).await;
    let mut web = mesh.add(&WEB).await;

    // Nothing is allowed yet: the default is to deny.
    mesh.settle("web", 403).await;
    for (action, status) in [("allow", 200), ("deny", 403), ("allow", 200)] {
        mesh.intend("web", "api", action).await;
        mesh.settle("web", status).await;
    }
    // An exact source takes precedence over a wildcard.
    mesh.intend("*", "api", "deny").await;
    mesh.settle("web", 200).await;

    assert!(web.stop().await.success() && api.stop().await.success());
    mesh.stop().await;
}
