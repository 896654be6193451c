//! Envoy's counters, as Prometheus reads them, while one Envoy hands over to the next.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use legate_tests::wait::eventually_within;
use legate_tests::{Mesh, MeshOptions, Sidecar, client};
use serde_json::json;
use tokio::time::sleep;

use crate::API;

const LISTENER: u16 = 20200;
/// A parent has to be gone before the next hand-over.
const ALONE: Duration = Duration::from_secs(60);

/// The values of everything that only counts, by name and labels.
pub(crate) fn counts(page: &str) -> HashMap<&str, f64> {
    let mut kinds = HashMap::new();
    let mut counts = HashMap::new();
    for line in page.lines() {
        kinds.extend(
            line.strip_prefix("# TYPE ")
                .and_then(|text| text.split_once(' ')),
        );
        let Some((series, value)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let name = series.split('{').next().unwrap_or_default();
        let suffixes = ["_bucket", "_sum", "_count", ""];
        let kind = suffixes
            .iter()
            .find_map(|suffix| kinds.get(name.strip_suffix(suffix)?));
        if matches!(kind.copied(), Some("counter" | "histogram")) && name.starts_with("envoy_") {
            counts.insert(series, value.parse().expect("a number"));
        }
    }
    counts
}

/// Reads again and again. Runs for ever.
pub(crate) async fn watch(metrics: SocketAddr, highest: &mut HashMap<String, f64>) {
    loop {
        // While the listener changes hands a connection may be cut.
        if let Ok((_, page)) = client::get(metrics, "/metrics").await {
            for (series, value) in counts(&page) {
                let last = highest.entry(series.to_owned()).or_default();
                assert!(*last <= value, "{series} went back from {last} to {value}");
                *last = value;
            }
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
async fn no_counter_goes_back_on_the_prometheus_listener() {
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
    let mut highest = HashMap::new();
    tokio::select! {
        () = watch(metrics, &mut highest) => unreachable!(),
        () = async {
            restart_hot(&api, 1).await;
            restart_hot(&api, 2).await;
        } => {}
    }
    let requests = highest.iter().filter(|(series, _)| {
        series.starts_with("envoy_http_downstream_rq_total{") && series.contains("prometheus")
    });
    assert!(
        requests.map(|(_, value)| value).sum::<f64>() > 50.0,
        "{highest:?}"
    );
    let (_, page) = client::get(metrics, "/metrics").await.expect("metrics");
    assert!(
        page.contains("envoy_restarts_total{kind=\"hot\"} 2\n"),
        "{page}"
    );
    assert!(api.stop().await.success(), "{}", api.log());
    mesh.stop().await;
}
