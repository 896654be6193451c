//! The delay from a readiness change of a pod in the API server to the endpoints of another pod's Envoy.
//!
//! The changed pod is simulated, so that no kubelet writes its status. The observed Envoy is real; its
//! admin port is polled.

use std::time::Duration;

use anyhow::{bail, ensure};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::api::Api;
use super::figures::{self, Sample};
use super::simulated;
use crate::cluster::Cluster;
use crate::forward::Forward;
use crate::namespace::Namespace;
use crate::workload::App;

/// The deadline for a change.
const LIMIT: Duration = Duration::from_secs(20);
/// The polling interval.
const PAUSE: Duration = Duration::from_millis(1);
/// Envoy's admin port in its pod.
const ADMIN: u16 = 19000;

const CHANGED: &str = "changed";
const CALLER: &str = "changed-caller";
/// The pod, and its address.
const POD: &str = "changed-0";
const NUMBER: u32 = 0;

#[derive(Default)]
struct Samples {
    written: Sample,
    catalog: Sample,
    envoy: Sample,
    /// The duration of one poll of Envoy.
    asked: Sample,
}

/// Changes the readiness this many times, and prints the table.
pub(super) async fn measure(cluster: &Cluster, api: &Api, changes: u32) -> anyhow::Result<()> {
    let space = Namespace::create(cluster, "bench-readiness")?;
    let measured = prepare_and_change(api, &space, changes).await;
    let measured = measured.map_err(|error| error.context(space.describe()));
    let removed = simulated::remove_pods(&api.pods(&space.name)).await;
    let removed = removed.and_then(|()| space.delete());
    let samples = measured?;
    removed?;
    let title =
        format!("{changes} changes of a pod's readiness, ms from the request that writes it");
    figures::head(&title, &["p50", "p99", "most"]);
    for (label, sample) in [
        ("the API server has answered", &samples.written),
        ("the servers' catalog has it", &samples.catalog),
        ("the Envoy of a caller has it", &samples.envoy),
        ("(one question to that Envoy)", &samples.asked),
    ] {
        let values = [sample.median(), sample.percentile(99), sample.most()];
        figures::row(label, &values, 1);
    }
    Ok(())
}

async fn prepare_and_change(
    api: &Api,
    space: &Namespace<'_>,
    changes: u32,
) -> anyhow::Result<Samples> {
    let changed = App::new(CHANGED).annotation("transparent-proxy", "false");
    changed.apply_without_pods(space)?;
    let pods = api.pods(&space.name);
    let pod = simulated::pod(&changed, POD)?;
    pods.create(&PostParams::default(), &pod).await?;
    let address = simulated::address(NUMBER);
    simulated::set_status(&pods, POD, &simulated::running(&address)).await?;
    let caller = App::new(CALLER)
        .annotation("transparent-proxy", "false")
        .annotation("connect-service-upstreams", "changed:1234");
    caller.run(space)?;
    let forward = Forward::start(space, &format!("deployment/{CALLER}"), ADMIN)?;
    let mut envoy = Envoy::connect(forward.port, &address).await?;
    envoy.until(true).await?;
    let mut samples = Samples::default();
    for change in 0..changes {
        // At irregular intervals, to avoid synchronization with periodic events.
        sleep(Duration::from_millis(u64::from(250 + change * 37 % 250))).await;
        one(api, &pods, &mut envoy, change % 2 == 1, &mut samples).await?;
    }
    Ok(samples)
}

/// One change, observed at three places concurrently.
async fn one(
    api: &Api,
    pods: &kube::Api<Pod>,
    envoy: &mut Envoy,
    ready: bool,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let status = simulated::readiness(ready);
    let written = async {
        simulated::set_status(pods, POD, &status).await?;
        Ok::<_, anyhow::Error>(Instant::now())
    };
    let wanted = if ready { "passing" } else { "critical" };
    let path = format!("health/service/{CHANGED}-sidecar-proxy");
    let catalog = api.catalog_shows(&path, |instances| {
        let checks = instances[0]["Checks"].as_array().into_iter().flatten();
        checks
            .into_iter()
            .any(|check| check["Type"] == "kubernetes-readiness" && check["Status"] == wanted)
    });
    let (written, catalog, seen) = tokio::try_join!(written, catalog, envoy.until(ready))?;
    let since = |at: Instant| (at - began).as_secs_f64() * 1000.0;
    samples.written.add(since(written));
    samples.catalog.add(since(catalog));
    samples.envoy.add(since(seen));
    let asked = Instant::now();
    envoy.endpoint_is_healthy().await?;
    samples.asked.add(asked.elapsed().as_secs_f64() * 1000.0);
    Ok(())
}

/// The admin port of an Envoy, on one connection.
struct Envoy {
    requests: SendRequest<Empty<Bytes>>,
    connection: std::pin::Pin<Box<dyn Future<Output = hyper::Result<()>>>>,
    endpoint: String,
}

impl Envoy {
    async fn connect(port: u16, endpoint: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let (requests, connection) = handshake(TokioIo::new(stream)).await?;
        Ok(Self {
            requests,
            connection: Box::pin(connection),
            endpoint: format!("::{endpoint}:20000::health_flags::"),
        })
    }

    /// The time at which the endpoint first became healthy or unhealthy.
    async fn until(&mut self, healthy: bool) -> anyhow::Result<Instant> {
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            if self.endpoint_is_healthy().await? == Some(healthy) {
                return Ok(Instant::now());
            }
            sleep(PAUSE).await;
        }
        bail!("Envoy does not see the change within {} s", LIMIT.as_secs())
    }

    /// `None` if Envoy does not have the endpoint.
    async fn endpoint_is_healthy(&mut self) -> anyhow::Result<Option<bool>> {
        let request = Request::get(format!("/clusters?filter={CHANGED}"));
        let request = request.header("Host", "localhost").body(Empty::new())?;
        let ask = async {
            let answer = self.requests.send_request(request).await?;
            ensure!(answer.status().is_success(), "{}", answer.status());
            Ok(answer.into_body().collect().await?.to_bytes())
        };
        let text = tokio::select! {
            answer = ask => answer?,
            ended = &mut self.connection => {
                ended?;
                bail!("Envoy's administration port has closed the connection");
            }
        };
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines();
        let flags = lines.find_map(|line| Some(line.split_once(&self.endpoint)?.1));
        Ok(flags.map(|flags| flags == "healthy"))
    }
}
