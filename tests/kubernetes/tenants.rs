//! Pods of clusters whose namespaces are mapped to namespaces of the mesh.

use std::time::Duration;

use legate_kubernetes::tenancy::{TenancyFlags, Tenants};
use legate_server::ServerConfig;
use legate_store::Store;
use legate_tests::eventually;
use serde_json::{Value, json};

use crate::cluster::{Cluster, pod, server};

const STOP: Duration = Duration::from_secs(10);

/// A pod of this namespace.
fn pod_of(namespace: &str, name: &str, uid: &str) -> Value {
    let mut pod = pod(name, uid, true);
    pod["metadata"]["namespace"] = json!(namespace);
    pod
}

/// The ids of a service's proxies, with a query such as `ns=shop`.
async fn proxies(cluster: &Cluster, query: &str) -> Vec<String> {
    let rows = cluster
        .get(&format!("/v1/health/connect/web?{query}"))
        .await;
    let rows = rows.as_array().cloned().unwrap_or_default();
    let id = |row: &Value| row["Service"]["ID"].as_str().map(str::to_owned);
    rows.iter().filter_map(id).collect()
}

/// Waits until a service has these proxies.
async fn shows(cluster: &Cluster, query: &str, wanted: &[&str]) {
    let what = format!("{query} has {wanted:?}");
    eventually(&what, || proxies(cluster, query), |found| *found == wanted).await;
}

/// The nodes of the default partition, without the server's own.
async fn nodes(cluster: &Cluster) -> Vec<String> {
    let rows = cluster.get("/v1/catalog/nodes").await;
    let rows = rows.as_array().cloned().unwrap_or_default();
    let name = |row: &Value| row["Node"].as_str().map(str::to_owned);
    let own = ServerConfig::default().node_name;
    rows.iter()
        .filter_map(name)
        .filter(|name| *name != own)
        .collect()
}

#[tokio::test]
async fn pods_of_one_name_in_two_namespaces_are_two() {
    let server = server(None, &Store::new()).await;
    let mut cluster = Cluster::new(server.http_addr().unwrap()).await;
    cluster.tenants = Tenants::of(&TenancyFlags {
        mirror_namespaces: Some("k8s-".to_owned()),
        ..TenancyFlags::default()
    });
    let operator = cluster.operator("a");
    for (namespace, uid) in [("shop", "u1"), ("stock", "u2")] {
        cluster.kubernetes.apply(pod_of(namespace, "web-0", uid));
    }
    let own = ["web-0-web-sidecar-proxy"];
    shows(&cluster, "ns=k8s-shop", &own).await;
    shows(&cluster, "ns=k8s-stock", &own).await;
    assert!(proxies(&cluster, "ns=default").await.is_empty());

    // Another operator finds the existing instances and removes stale ones.
    operator.stop(STOP).await.unwrap();
    cluster.kubernetes.delete("Pod", "shop", "web-0");
    let operator = cluster.operator("b");
    shows(&cluster, "ns=k8s-shop", &[]).await;
    shows(&cluster, "ns=k8s-stock", &own).await;
    cluster.kubernetes.delete("Pod", "stock", "web-0");
    eventually("no node is left", || nodes(&cluster), Vec::is_empty).await;
    operator.stop(STOP).await.unwrap();
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_cluster_can_be_a_partition() {
    let server = server(None, &Store::new()).await;
    let mut cluster = Cluster::new(server.http_addr().unwrap()).await;
    cluster.put("/v1/partition", &json!({"Name": "east"})).await;
    cluster.tenants = Tenants::of(&TenancyFlags {
        partition: Some("east".parse().unwrap()),
        destination_namespace: Some("apps".parse().unwrap()),
        ..TenancyFlags::default()
    });
    let operator = cluster.operator("a");
    cluster.kubernetes.apply(pod_of("shop", "web-0", "u1"));
    let own = ["web-0-web-sidecar-proxy"];
    shows(&cluster, "partition=east&ns=apps", &own).await;
    assert!(proxies(&cluster, "ns=default").await.is_empty());
    assert!(nodes(&cluster).await.is_empty());
    operator.stop(STOP).await.unwrap();
    server.stop(STOP).await.unwrap();
}
