//! The time from the creation of a pod to its readiness, stage by stage.
//!
//! The watch of the API server shows the writes of scheduler and kubelet. The kubelet checks its
//! containers once a second, so its status is up to a second late; the next container starts after that.
//! The sidecar logs its own stages, with times relative to its start.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use futures_util::{Stream, TryStreamExt};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, LogParams, PostParams, WatchEvent, WatchParams};
use tokio::time::{Instant, timeout};

use super::api::Api;
use super::figures::{self, Sample};
use crate::cluster::Cluster;
use crate::namespace::Namespace;
use crate::workload::App;

/// The deadline for one pod.
const LIMIT: Duration = Duration::from_secs(90);

const SERVICE: &str = "started";

/// The stages in order, with the source of each time.
const STAGES: [(&str, &str); 12] = [
    ("created", "admitted and created: the API server's answer"),
    ("scheduled", "scheduled"),
    (
        "redirected",
        "redirection written: container ended (kubelet)",
    ),
    ("started", "sidecar: program started (log)"),
    ("registered", "sidecar registered (servers' catalog)"),
    ("connect", "sidecar: connected and logged in (log)"),
    ("bootstrap", "sidecar: has its bootstrap parameters (log)"),
    ("envoy", "sidecar: Envoy started (log)"),
    ("ready", "sidecar: Envoy configured and serving (log)"),
    ("probed", "sidecar: startup probe passed (kubelet)"),
    ("application", "application started (kubelet)"),
    ("pod", "pod ready"),
];

/// Milliseconds since the request.
type Times = BTreeMap<&'static str, f64>;

/// Starts pods one after the other and prints the table.
pub(super) async fn measure(cluster: &Cluster, api: &Api, starts: u32) -> anyhow::Result<()> {
    let space = Namespace::create(cluster, "bench-start")?;
    let app = App::new(SERVICE);
    app.apply_without_pods(&space)?;
    let measured = all(api, &space, &app, starts).await;
    let measured = measured.map_err(|error| error.context(space.describe()));
    let removed = space.delete();
    let samples = measured?;
    removed?;
    let title = format!("{starts} pods, ms from the request that creates it");
    figures::head(&title, &["median", "least", "most"]);
    for (stage, label) in STAGES {
        let sample = samples.get(stage).cloned().unwrap_or_default();
        let values = [sample.median(), sample.least(), sample.most()];
        figures::row(label, &values, 0);
    }
    Ok(())
}

async fn all(
    api: &Api,
    space: &Namespace<'_>,
    app: &App,
    starts: u32,
) -> anyhow::Result<BTreeMap<&'static str, Sample>> {
    let mut samples: BTreeMap<&'static str, Sample> = BTreeMap::new();
    // The first start warms up caches and is not counted.
    for number in 0..=starts {
        let times = timeout(LIMIT, one(api, space, app, number)).await;
        let times = times.context("a pod was not ready in time")??;
        for (stage, time) in times.into_iter().filter(|_| number > 0) {
            samples.entry(stage).or_default().add(time);
        }
    }
    Ok(samples)
}

async fn one(api: &Api, space: &Namespace<'_>, app: &App, number: u32) -> anyhow::Result<Times> {
    let name = format!("{SERVICE}-{number}");
    let pods = api.pods(&space.name);
    let pod: Pod = serde_json::from_value(app.pod(&name))?;
    let version = pods.list(&ListParams::default().limit(1)).await?;
    let version = version.metadata.resource_version.unwrap_or_default();
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let events = pods.watch(&only, &version).await?;
    let sidecar = format!("{name}-{SERVICE}-sidecar-proxy");

    let (wall, began) = (SystemTime::now(), Instant::now());
    let create = async {
        pods.create(&PostParams::default(), &pod).await?;
        Ok::<_, anyhow::Error>(began.elapsed())
    };
    let path = format!("catalog/service/{SERVICE}-sidecar-proxy");
    let registered = api.catalog_shows(&path, |instances| {
        let mut instances = instances.as_array().into_iter().flatten();
        instances.any(|instance| instance["ServiceID"] == sidecar.as_str())
    });
    let (created, mut times, registered) =
        tokio::try_join!(create, follow(events, began), registered)?;
    times.insert("created", milliseconds(created));
    times.insert("registered", milliseconds(registered - began));
    let params = LogParams {
        container: Some("consul-dataplane".to_owned()),
        timestamps: true,
        ..LogParams::default()
    };
    times.extend(own_stages(&pods.logs(&name, &params).await?, wall)?);
    pods.delete(&name, &DeleteParams::default().grace_period(1))
        .await?;
    api.ended(&space.name, &name).await?;
    Ok(times)
}

/// Follows the pod's status until it is ready.
async fn follow(
    events: impl Stream<Item = kube::Result<WatchEvent<Pod>>>,
    began: Instant,
) -> anyhow::Result<Times> {
    let mut times = Times::new();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.try_next().await? {
        let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else {
            continue;
        };
        let now = milliseconds(began.elapsed());
        for stage in reached(&pod) {
            times.entry(stage).or_insert(now);
        }
        if times.contains_key("pod") {
            return Ok(times);
        }
    }
    anyhow::bail!("the watch ended before the pod was ready: {times:?}")
}

/// The stages reached according to the pod's status.
fn reached(pod: &Pod) -> Vec<&'static str> {
    let status = pod.status.clone().unwrap_or_default();
    let holds = |name: &str| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|condition| condition.type_ == name && condition.status == "True")
    };
    let container = |name: &str, is: fn(&ContainerStatus) -> bool| {
        let init = status.init_container_statuses.iter().flatten();
        let mut all = init.chain(status.container_statuses.iter().flatten());
        all.any(|container| container.name == name && is(container))
    };
    let ended = |one: &ContainerStatus| {
        let state = one.state.as_ref();
        state.is_some_and(|state| state.terminated.is_some())
    };
    let runs = |one: &ContainerStatus| {
        let state = one.state.as_ref();
        state.is_some_and(|state| state.running.is_some())
    };
    let stages = [
        ("scheduled", holds("PodScheduled")),
        ("redirected", container("mesh-redirect", ended)),
        (
            "probed",
            container("consul-dataplane", |one| one.started == Some(true)),
        ),
        ("application", container("app", runs)),
        ("pod", holds("Ready")),
    ];
    let reached = stages.into_iter().filter(|(_, reached)| *reached);
    reached.map(|(stage, _)| stage).collect()
}

/// Parses `2026-01-02T03:04:05.6Z … ready: listen 2 ms, connect 34 ms, …`: the time of the line, and the
/// stages relative to the start of the program.
fn own_stages(log: &str, began: SystemTime) -> anyhow::Result<Times> {
    let line = log.lines().find(|line| line.contains("ready: listen "));
    let line = line.context("the sidecar's log does not say that it is ready")?;
    let written = line.split_whitespace().next().unwrap_or_default();
    let written: Timestamp = written.parse().context("the time of a line of the log")?;
    let written = SystemTime::from(written).duration_since(began)?;
    let (_, stages) = line.split_once("ready: ").context("stages")?;
    let mut own = BTreeMap::new();
    for stage in stages.split(',') {
        let mut words = stage.split_whitespace();
        let (name, time) = (words.next(), words.next());
        let time = time.and_then(|time| time.parse::<f64>().ok());
        own.insert(name.unwrap_or_default(), time.context(stage.to_owned())?);
    }
    let ready = *own.get("ready").context("the time of `ready`")?;
    let started = milliseconds(written) - ready;
    let mut times = Times::from([("started", started)]);
    for stage in ["connect", "bootstrap", "envoy", "ready"] {
        let time = own.get(stage).with_context(|| line.to_owned())?;
        times.insert(stage, started + time);
    }
    ensure!(times.len() == 5, "{line}");
    Ok(times)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
