//! Traffic between namespaces, and between partitions.

use http::Method;
use legate_tests::{Mesh, MeshOptions, ServiceSpec};
use serde_json::json;

use crate::API;

const WEB: ServiceSpec = ServiceSpec {
    upstreams: &[],
    ..crate::WEB
};

async fn namespace(mesh: &Mesh, name: &str) {
    let body = json!({"Name": name});
    mesh.api(Method::PUT, "/v1/namespace", Some(body)).await;
}

/// A service of the same name in the caller's own namespace is a different service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_of_another_namespace_is_called_by_its_full_name() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    for name in ["team", "front"] {
        namespace(&mesh, name).await;
    }
    let (team, front) = (["default", "team"], ["default", "front"]);
    let mut api = mesh.add_in(&API, team, json!([])).await;
    let upstream = json!([{"DestinationName": "api", "DestinationNamespace": "team"}]);
    let mut web = mesh.add_in(&WEB, front, upstream).await;

    mesh.settle("web", 403).await;
    // The caller is a different service.
    mesh.intend("team/web", "team/api", "allow").await;
    mesh.settle("web", 403).await;
    mesh.intend("front/web", "team/api", "allow").await;
    mesh.settle("web", 200).await;
    mesh.intend("front/web", "team/api", "deny").await;
    mesh.settle("web", 403).await;
    // A wildcard for a namespace, which has lower precedence than an exact source.
    mesh.intend("front/*", "team/api", "allow").await;
    mesh.settle("web", 403).await;
    let exact = "/v1/connect/intentions/exact?source=front/web&destination=team/api";
    mesh.api(Method::DELETE, exact, None).await;
    mesh.settle("web", 200).await;

    assert!(web.stop().await.success() && api.stop().await.success());
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_partition_is_reachable_if_it_exports() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let partition = json!({"Name": "back"});
    mesh.api(Method::PUT, "/v1/partition", Some(partition))
        .await;
    let (back, front) = (["back", "default"], ["default", "default"]);
    let mut api = mesh.add_in(&API, back, json!([])).await;
    let upstream = json!([{"DestinationName": "api", "DestinationPartition": "back"}]);
    let mut web = mesh.add_in(&WEB, front, upstream).await;
    mesh.intend("default/default/web", "back/default/api", "allow")
        .await;

    // Without an export the proxy has no instances.
    mesh.settle("web", 503).await;
    let export = |consumer: &str| {
        json!({
            "Kind": "exported-services", "Name": "back", "Partition": "back",
            "Services": [{"Name": "api", "Consumers": [{"Partition": consumer}]}],
        })
    };
    mesh.entry(export("default")).await;
    mesh.settle("web", 200).await;
    mesh.entry(export("other")).await;
    mesh.settle("web", 503).await;

    assert!(web.stop().await.success() && api.stop().await.success());
    mesh.stop().await;
}
