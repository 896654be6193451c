//! The operator with a real Consul server: the catalog follows the pods, as with Legate's.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use legate_tests::eventually;
use legate_tests::interop::Pair;
use serde_json::json;
use tokio::process::{Child, Command};

use crate::cluster::Cluster;

const STOP: Duration = Duration::from_secs(10);

/// A Consul with in-memory state on an address of its own, because all ports are fixed. It is stopped
/// on drop. `settings` are in HCL.
pub(crate) async fn consul(
    binary: &std::path::Path,
    address: &str,
    settings: &str,
) -> (Child, SocketAddr) {
    let child = Command::new(binary)
        .args(["agent", "-dev", "-bind", address, "-client", address])
        .args(["-hcl", settings])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let http: SocketAddr = format!("{address}:8500").parse().expect("an address");
    let leader = || async {
        let answer = legate_tests::client::get(http, "/v1/status/leader").await;
        answer.map(|(_, body)| body).unwrap_or_default()
    };
    eventually("Consul has a leader", leader, |leader| leader.len() > 4).await;
    (child.expect("Consul can be started"), http)
}

#[tokio::test]
async fn the_catalog_follows_the_pods() {
    let Some(binary) = Pair::legate_dataplane().and_then(|pair| pair.consul) else {
        return;
    };
    let (mut consul, http) = consul(&binary, "127.0.77.1", "").await;
    let cluster = Cluster::new(http).await;
    let operator = cluster.operator("a");
    cluster.pod("web-0", "u0", false);
    cluster.pod("web-1", "u1", true);
    cluster
        .shows("web", &[("web-0", false), ("web-1", true)])
        .await;
    cluster.pod("web-0", "u0", true);
    cluster
        .shows("web", &[("web-0", true), ("web-1", true)])
        .await;
    let node = cluster.get("/v1/catalog/node/n1-virtual").await;
    let service = &node["Services"]["web-0-web"];
    let virtual_address = &service["TaggedAddresses"]["virtual"];
    assert_eq!(
        *virtual_address,
        json!({"Address": "10.96.0.7", "Port": 80})
    );
    assert_eq!(service["Locality"], json!({"Region": "r1", "Zone": "z1"}));
    let manual = &service["TaggedAddresses"]["manual:consul-virtual"];
    let answer = cluster.get("/v1/health/connect/web").await;
    let manual_of_proxy = &answer[0]["Service"]["TaggedAddresses"];
    assert!(
        manual_of_proxy.to_string().contains("10.96.0.7"),
        "{manual} {manual_of_proxy}"
    );

    // Another operator finds nothing to change.
    operator.stop(STOP).await.unwrap();
    cluster.delete_pod("web-1");
    let operator = cluster.operator("b");
    cluster.shows("web", &[("web-0", true)]).await;
    let again = cluster.get("/v1/catalog/node/n1-virtual").await;
    for id in ["web-0-web", "web-0-web-sidecar-proxy"] {
        let (before, after) = (&node["Services"][id], &again["Services"][id]);
        assert_eq!(
            before["ModifyIndex"], after["ModifyIndex"],
            "{id}: {before} {after}"
        );
    }
    cluster.delete_pod("web-0");
    cluster.shows("web", &[]).await;
    let nodes = || cluster.get("/v1/catalog/node/n1-virtual");
    eventually("the empty node is removed", nodes, |node| node.is_null()).await;
    operator.stop(STOP).await.unwrap();
    consul.kill().await.unwrap();
}
