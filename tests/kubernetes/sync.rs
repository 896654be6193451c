//! The catalog follows the pods across outages and restarts.

use std::time::Duration;

use legate_runtime::Scope;
use legate_server::Server;
use legate_store::Store;
use legate_tests::eventually;
use serde_json::json;
use tokio::net::TcpListener;

use crate::cluster::{Cluster, pod, server};

const STOP: Duration = Duration::from_secs(10);

/// A control plane, and a cluster with an operator.
struct Mesh {
    server: Server,
    cluster: Cluster,
    operator: Scope,
}

impl Mesh {
    async fn start(store: &Store) -> Mesh {
        let server = server(None, store).await;
        let cluster = Cluster::new(server.http_addr().unwrap()).await;
        let operator = cluster.operator("a");
        Mesh {
            server,
            cluster,
            operator,
        }
    }

    async fn stop(self) {
        self.operator.stop(STOP).await.unwrap();
        self.server.stop(STOP).await.unwrap();
    }
}

#[tokio::test]
async fn pods_are_registered_follow_their_readiness_and_go() {
    let mesh = Mesh::start(&Store::new()).await;
    let cluster = &mesh.cluster;
    cluster.pod("web-0", "u0", false);
    cluster.shows("web", &[("web-0", false)]).await;
    cluster.pod("web-0", "u0", true);
    cluster.pod("web-1", "u1", true);
    cluster
        .shows("web", &[("web-0", true), ("web-1", true)])
        .await;
    // A StatefulSet's pod is recreated with the same name.
    cluster.pod("web-0", "u9", false);
    cluster
        .shows("web", &[("web-0", false), ("web-1", true)])
        .await;
    let node = cluster.get("/v1/catalog/node/n1-virtual").await;
    let service = &node["Services"]["web-0-web"];
    assert_eq!(service["Meta"]["pod-uid"], "u9");
    assert_eq!(
        service["TaggedAddresses"]["virtual"],
        json!({"Address": "10.96.0.7", "Port": 80})
    );
    assert_eq!(node["Node"]["Meta"]["team"], "a");
    for name in ["web-0", "web-1"] {
        cluster.delete_pod(name);
    }
    cluster.shows("web", &[]).await;
    let nodes = || cluster.get("/v1/catalog/node/n1-virtual");
    eventually("the empty node is removed", nodes, |node| node.is_null()).await;
    mesh.stop().await;
}

#[tokio::test]
async fn ended_watches_and_expired_versions_lose_nothing() {
    let mesh = Mesh::start(&Store::new()).await;
    let cluster = &mesh.cluster;
    cluster.pod("web-0", "u0", true);
    cluster.shows("web", &[("web-0", true)]).await;
    cluster.kubernetes.end_watches();
    cluster.pod("web-1", "u1", true);
    cluster
        .shows("web", &[("web-0", true), ("web-1", true)])
        .await;
    // The deletion of this pod is missed by the watch.
    cluster.kubernetes.go_away();
    cluster.delete_pod("web-0");
    cluster.kubernetes.forget();
    cluster.pod("web-2", "u2", true);
    let before = cluster.proxies("web").await;
    assert_eq!(
        before.len(),
        2,
        "nothing is done while nobody knows: {before:?}"
    );
    cluster.kubernetes.come_back().await;
    cluster
        .shows("web", &[("web-1", true), ("web-2", true)])
        .await;
    mesh.stop().await;
}

#[tokio::test]
async fn changes_during_an_outage_of_the_servers_are_caught_up() {
    let store = Store::new();
    let mut mesh = Mesh::start(&store).await;
    mesh.cluster.with_pods(&["web-0", "web-1"]).await;
    mesh.server.stop(STOP).await.unwrap();
    let http = mesh.cluster.http;
    let nobody = TcpListener::bind(http).await.unwrap();
    mesh.cluster.pod("web-0", "web-0", false);
    mesh.cluster.delete_pod("web-1");
    mesh.cluster.pod("web-2", "web-2", true);
    // The operator retries.
    for _ in 0..2 {
        drop(nobody.accept().await.unwrap());
    }
    drop(nobody);
    mesh.server = server(Some(http), &store).await;
    mesh.cluster
        .shows("web", &[("web-0", false), ("web-2", true)])
        .await;
    mesh.stop().await;
}

#[tokio::test]
async fn a_new_operator_removes_only_stale_instances() {
    let Mesh {
        server,
        cluster,
        operator,
    } = Mesh::start(&Store::new()).await;
    cluster.with_pods(&["web-0", "web-1"]).await;
    operator.stop(STOP).await.unwrap();
    cluster.delete_pod("web-1");
    // Instances of another cluster on the same servers, of consul-k8s, and of an agent.
    let foreign = [
        json!({"pod-name": "x", "k8s-namespace": "default", "pod-uid": "x", "k8s-cluster-uid": "other",
            "managed-by": "consul-k8s-endpoints-controller"}),
        json!({"pod-name": "y", "k8s-namespace": "default", "pod-uid": "y",
            "managed-by": "consul-k8s-endpoints-controller"}),
        json!({}),
    ];
    for (i, meta) in foreign.iter().enumerate() {
        let body = json!({
            "Node": "n1-virtual", "SkipNodeUpdate": true,
            "Service": {"Service": "foreign", "ID": format!("foreign-{i}"), "Port": 1, "Meta": meta},
        });
        cluster.put("/v1/catalog/register", &body).await;
    }
    let operator = cluster.operator("b");
    cluster.shows("web", &[("web-0", true)]).await;
    // A pod's service is removed after its proxy.
    let services = || cluster.get("/v1/catalog/service/web");
    eventually("the service of web-1 is gone", services, |found| {
        found.as_array().is_some_and(|found| found.len() == 1)
    })
    .await;
    let index = server.store().state().index();
    cluster.pod("web-0", "web-0", false);
    cluster.shows("web", &[("web-0", false)]).await;
    assert_eq!(
        cluster
            .get("/v1/catalog/service/foreign")
            .await
            .as_array()
            .unwrap()
            .len(),
        3
    );
    // Existing instances were not written again: the one write is the readiness.
    assert_eq!(server.store().state().index(), index + 1);
    operator.stop(STOP).await.unwrap();
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_refused_registration_is_an_event_on_its_pod() {
    let mesh = Mesh::start(&Store::new()).await;
    let cluster = &mesh.cluster;
    let mut refused = pod("web-0", "u0", true);
    refused["metadata"]["annotations"]["consul.hashicorp.com/service-meta-bad key"] = json!("x");
    cluster.kubernetes.apply(refused);
    cluster.pod("web-1", "u1", true);
    cluster.shows("web", &[("web-1", true)]).await;
    let events = || async { cluster.kubernetes.objects("Event") };
    let events = eventually("an event", events, |events| !events.is_empty()).await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["type"], "Warning");
    assert_eq!(events[0]["reason"], "RegistrationRefused");
    assert_eq!(events[0]["regarding"]["name"], "web-0");
    let note = events[0]["note"].as_str().unwrap();
    assert!(note.contains("bad key"), "{note}");
    cluster.pod("web-0", "u0", true);
    cluster
        .shows("web", &[("web-0", true), ("web-1", true)])
        .await;
    mesh.stop().await;
}
