//! The Prometheus page during hot restarts of Envoy.

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use legate_testkit::metrics::series;
use legate_tests::wait::eventually_within;
use legate_tests::{Mesh, MeshOptions, Sidecar, client};
use serde_json::json;
use tokio::time::sleep;

use crate::API;

const LISTENER: u16 = 20200;
/// The parent must have exited before the next hot restart.
const ALONE: Duration = Duration::from_secs(60);

/// Scrapes continuously; every page must be valid. Counts pages with Envoy's metrics. Runs forever.
pub(crate) async fn watch(metrics: SocketAddr, pages: &mut u32) {
    loop {
        // A connection may be reset while the listener is handed over.
        if let Ok((_, page)) = client::get(metrics, "/metrics").await
            && series(&page).keys().any(|name| name.starts_with("envoy_"))
        {
            *pages += 1;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn restart_hot(sidecar: &Sidecar, epoch: u64) {
    let (status, text) = sidecar.restart().await;
    assert!(status.is_success(), "{status}: {text}");
    assert!(text.contains(&format!("epoch {epoch} ")), "{text}");
    eventually_within(
        ALONE,
        "its parent is gone",
        || sidecar.status(),
        |status| {
            status["envoy"]["epochs"]
                .as_array()
                .is_some_and(|epochs| epochs.len() == 1)
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_the_prometheus_listener_stay_valid_over_hot_restarts() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let flags = mesh.flags(API.instance);
    let metrics = SocketAddr::from((flags.address, LISTENER));
    let config = json!({ "envoy_prometheus_bind_addr": metrics.to_string() });
    let entry = json!({ "Kind": "proxy-defaults", "Name": "global", "Config": config });
    mesh.api(Method::PUT, "/v1/config", Some(entry)).await;
    mesh.register(&API).await;
    let flags = flags
        .with("envoy-drain-time-seconds", "1")
        .with("telemetry-prom-merge-port", "20900");
    let mut api = mesh.sidecar("api", &flags);
    api.ready().await;
    let mut pages = 0;
    tokio::select! {
        () = watch(metrics, &mut pages) => unreachable!(),
        () = async {
            restart_hot(&api, 1).await;
            restart_hot(&api, 2).await;
        } => {}
    }
    assert!(pages > 20, "{pages}");
    let (_, page) = client::get(metrics, "/metrics").await.expect("metrics");
    assert!(
        page.contains("envoy_restarts_total{kind=\"hot\"} 2\n"),
        "{page}"
    );
    assert!(api.stop().await.success(), "{}", api.log());
    mesh.stop().await;
}
