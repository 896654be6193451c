//! The operator's metrics.

use std::time::Duration;

use legate_runtime::metrics::{Registry, encode};
use legate_store::Store;
use legate_tests::eventually;

use crate::cluster::{Cluster, pod, server};

const STOP: Duration = Duration::from_secs(10);

/// The value of a series, such as `calls_total{call="register"}`.
fn value(registry: &Registry, series: &str) -> f64 {
    let text = encode(registry);
    let found = text.lines().find_map(|line| {
        let value = line
            .strip_prefix("legate_k8s_sync_")?
            .strip_prefix(series)?;
        value.strip_prefix(' ')
    });
    found
        .unwrap_or_else(|| panic!("{series}:\n{text}"))
        .parse()
        .unwrap()
}

/// Waits until a series has this value.
async fn shows(registry: &Registry, series: &str, wanted: f64) {
    let found = || async { value(registry, series) };
    eventually(series, found, |found| *found >= wanted).await;
    assert!(value(registry, series) <= wanted, "{series}");
}

fn calls(call: &str, result: &str) -> String {
    format!("calls_total{{call=\"{call}\",result=\"{result}\"}}")
}

#[tokio::test]
async fn metrics_follow_the_synchronized_objects() {
    let store = Store::new();
    let first = server(None, &store).await;
    let http = first.http_addr().unwrap();
    let cluster = Cluster::new(http).await;
    let registry = Registry::new();
    let operator = cluster.operator_with("a", &registry);
    cluster.pod("web-0", "u0", true);
    cluster.shows("web", &[("web-0", true)]).await;
    shows(&registry, "objects{kind=\"instances\"}", 2.0).await;
    shows(&registry, "objects{kind=\"pods\"}", 1.0).await;
    shows(&registry, "objects{kind=\"nodes\"}", 2.0).await;
    shows(&registry, &calls("register", "done"), 2.0).await;
    shows(&registry, "lag_seconds_count", 1.0).await;
    assert!(value(&registry, "last_full_comparison_timestamp_seconds") > 1.0e9);
    cluster.pod("web-0", "u0", false);
    cluster.shows("web", &[("web-0", false)]).await;
    shows(&registry, &calls("checks", "done"), 1.0).await;
    shows(&registry, "lag_seconds_count", 2.0).await;

    // A registration that the servers refuse.
    let mut refused = pod("bad", "u1", true);
    refused["metadata"]["annotations"]["consul.hashicorp.com/service-meta-bad key"] = "x".into();
    cluster.kubernetes.apply(refused);
    shows(&registry, "failing_pods", 1.0).await;
    assert!(value(&registry, &calls("register", "refused")) >= 1.0);
    cluster.delete_pod("bad");
    let failing = || async { value(&registry, "failing_pods") };
    eventually("nothing fails", failing, |failing| *failing == 0.0).await;

    // An outage of the servers.
    first.stop(STOP).await.unwrap();
    cluster.delete_pod("web-0");
    let unavailable = || async { value(&registry, &calls("deregister", "unavailable")) };
    eventually("no server answers", unavailable, |count| *count >= 1.0).await;
    let second = server(Some(http), &store).await;
    shows(&registry, &calls("deregister", "done"), 2.0).await;
    shows(&registry, "lag_seconds_count", 3.0).await;
    shows(&registry, "queue_length", 0.0).await;

    // An outage of the API server, and thereby of the Lease.
    cluster.kubernetes.go_away();
    let failures = || async { value(&registry, "watch_failures_total{kind=\"pods\"}") };
    eventually("a watch fails", failures, |count| *count >= 1.0).await;
    cluster.kubernetes.come_back().await;
    operator.stop(STOP).await.unwrap();
    let nodes = value(&registry, "objects{kind=\"nodes\"}");
    assert!(
        nodes == 0.0,
        "who does not lead keeps nothing in step: {nodes}"
    );
    second.stop(STOP).await.unwrap();
}
