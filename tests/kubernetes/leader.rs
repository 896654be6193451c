//! Several operators, of which one is the leader.

use std::time::Duration;

use legate_store::Store;
use legate_tests::eventually;

use crate::cluster::{Cluster, server};

const STOP: Duration = Duration::from_secs(10);

fn holder(cluster: &Cluster) -> String {
    let leases = cluster.kubernetes.objects("Lease");
    let holder = leases
        .first()
        .and_then(|lease| lease["spec"]["holderIdentity"].as_str());
    holder.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn one_leads_and_releases_the_lease_when_it_stops() {
    let server = server(None, &Store::new()).await;
    let cluster = Cluster::new(server.http_addr().unwrap()).await;
    let first = cluster.operator("a");
    cluster.pod("web-0", "u0", true);
    cluster.shows("web", &[("web-0", true)]).await;
    assert_eq!(holder(&cluster), "a");
    let second = cluster.operator("b");
    let looked = || async { cluster.kubernetes.requests("GET leases") };
    let seen = looked().await;
    eventually("the second one looks", looked, |now| *now > seen + 20).await;
    assert_eq!(
        cluster.kubernetes.requests("WATCH pods"),
        1,
        "the second only looks"
    );
    first.stop(STOP).await.unwrap();
    eventually(
        "b leads",
        || async { holder(&cluster) },
        |holder| holder == "b",
    )
    .await;
    cluster.pod("web-0", "u0", false);
    cluster.shows("web", &[("web-0", false)]).await;
    let lease = &cluster.kubernetes.objects("Lease")[0];
    assert_eq!(lease["spec"]["leaseTransitions"], 2);
    second.stop(STOP).await.unwrap();
    assert_eq!(holder(&cluster), "");
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_leader_that_cannot_renew_stops_writing_and_starts_over() {
    let server = server(None, &Store::new()).await;
    let cluster = Cluster::new(server.http_addr().unwrap()).await;
    let operator = cluster.operator("a");
    cluster.pod("web-0", "u0", true);
    cluster.shows("web", &[("web-0", true)]).await;
    cluster.kubernetes.go_away();
    // Longer than it may lead without a renewal.
    tokio::time::sleep(crate::cluster::TIMES.renew_within * 2).await;
    let lists = cluster.kubernetes.requests("GET pods");
    cluster.kubernetes.come_back().await;
    cluster.pod("web-0", "u0", false);
    cluster.shows("web", &[("web-0", false)]).await;
    assert!(
        cluster.kubernetes.requests("GET pods") > lists,
        "it began anew"
    );
    operator.stop(STOP).await.unwrap();
    server.stop(STOP).await.unwrap();
}
