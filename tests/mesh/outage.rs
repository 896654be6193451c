//! During an outage of the control plane traffic continues, and sidecars catch up afterwards.

use legate_tests::load::Load;
use legate_tests::{Mesh, MeshOptions, eventually};

use crate::{API, WEB};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_survives_a_control_plane_outage() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = mesh.add(&API).await;
    let mut web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;
    let load = Load::start(mesh.upstream("web", 0));
    let streams = web.stat("cluster.consul-dataplane.upstream_rq_total").await;

    mesh.stop_server().await;
    let before = load.seen().of(API.instance);
    eventually(
        "requests go on",
        || async { load.seen() },
        |seen| seen.of(API.instance) > before + 100,
    )
    .await;
    assert_eq!(
        web.stat("control_plane.connected_state").await,
        1,
        "Envoy lost its stream:\n{}",
        web.log()
    );
    let during = load.finish().await;
    assert_eq!(during.failures, Vec::<String>::new());

    // Changes during the outage arrive when the server is back.
    mesh.start_server().await;
    mesh.intend("web", "api", "deny").await;
    mesh.settle("web", 403).await;
    mesh.intend("web", "api", "allow").await;
    mesh.settle("web", 200).await;
    let after = web.stat("cluster.consul-dataplane.upstream_rq_total").await;
    assert_eq!(after, streams, "Envoy had to open its stream again");

    assert!(web.stop().await.success() && api.stop().await.success());
    mesh.stop().await;
}
