//! The usage of an operator with many pods: memory, CPU time, and the time until all are registered
//! in the catalog and until callers no longer find any.

use std::time::Duration;

use anyhow::{bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::api::{Api, Usage};
use super::{figures, simulated};
use crate::cluster::Cluster;
use crate::namespace::Namespace;
use crate::workload::App;

/// The number of the pods' Services.
const SERVICES: u32 = 20;
/// The number of concurrent requests to the API server.
const AT_A_TIME: usize = 16;
/// The deadline for all pods.
const LIMIT: Duration = Duration::from_secs(180);
/// The polling interval of the catalog, which is the precision of times.
const LOOK: Duration = Duration::from_millis(250);
/// The idle time before an operator's memory is read.
const QUIET: Duration = Duration::from_secs(5);

/// The usage of operators: the leader and another one.
pub(super) struct Operators {
    leader: Usage,
    other: Option<Usage>,
}

/// The measurements with all pods.
struct Times {
    created: Duration,
    /// Since the first status was written.
    written: Duration,
    registered: Duration,
    removed: Duration,
    /// CPU seconds of the leader, from the first pod until all are registered.
    processor: f64,
    with_all: Operators,
    afterwards: Operators,
}

/// The usage of operators without any pod.
pub(super) async fn idle(api: &Api) -> anyhow::Result<Operators> {
    sleep(QUIET).await;
    operators(api).await
}

async fn operators(api: &Api) -> anyhow::Result<Operators> {
    let (leader, others) = api.operators().await?;
    Ok(Operators {
        leader: api.usage(&leader).await?,
        other: match others.first() {
            Some(other) => Some(api.usage(other).await?),
            None => None,
        },
    })
}

/// Simulates this many pods, and prints the table; `idle` is the usage without pods.
pub(super) async fn measure(
    cluster: &Cluster,
    api: &Api,
    idle: Operators,
    pods: u32,
) -> anyhow::Result<()> {
    let space = Namespace::create(cluster, "bench-scale")?;
    let times = all(api, &space, pods).await;
    // On failure only the operators' logs are relevant, because the pods have no containers.
    let removed = simulated::remove_pods(&api.pods(&space.name)).await;
    let removed = removed.and_then(|()| space.delete());
    let times = times?;
    removed?;
    let title = format!("{pods} pods of {SERVICES} Services");
    let rows = [
        ("created, s", Some(times.created.as_secs_f64()), 1),
        ("status written, s", Some(times.written.as_secs_f64()), 1),
        (
            "registered, s after the first status",
            Some(times.registered.as_secs_f64()),
            1,
        ),
        (
            "none takes calls, s after the request that deletes them",
            Some(times.removed.as_secs_f64()),
            1,
        ),
        (
            "CPU s of the operator until all were registered",
            Some(times.processor),
            2,
        ),
    ];
    figures::head(&title, &["value"]);
    for (label, value, decimals) in rows {
        figures::row(label, &[value], decimals);
    }
    figures::head("Resident, MiB", &["operator that writes", "another one"]);
    for (label, one) in [
        ("without pods", &idle),
        (&*format!("with {pods} pods"), &times.with_all),
        ("after they are gone", &times.afterwards),
    ] {
        let other = one.other.map(|usage| usage.resident);
        figures::row(label, &[Some(one.leader.resident), other], 1);
    }
    Ok(())
}

async fn all(api: &Api, space: &Namespace<'_>, count: u32) -> anyhow::Result<Times> {
    let apps: Vec<App> = (0..SERVICES)
        .map(|number| App::new(&format!("many-{number}")))
        .collect();
    let objects = apps.iter().flat_map(|app| {
        let manifests = app.manifests();
        [manifests["items"][0].clone(), manifests["items"][1].clone()]
    });
    let objects: Vec<Value> = objects.collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    space.apply(&list.to_string())?;
    let (leader, _) = api.operators().await?;
    let before = api.usage(&leader).await?;
    let pods = api.pods(&space.name);

    let start = Instant::now();
    // Numbers start at 1, because the first address is used otherwise.
    let requests = stream::iter(1..=count).map(|number| {
        let app = &apps[(number % SERVICES) as usize];
        let pods = &pods;
        async move {
            let pod = simulated::pod(app, &name(number))?;
            pods.create(&PostParams::default(), &pod).await?;
            Ok::<_, anyhow::Error>(())
        }
    });
    requests
        .buffer_unordered(AT_A_TIME)
        .try_collect::<()>()
        .await?;
    let created = start.elapsed();

    let start = Instant::now();
    let write = async {
        let requests = stream::iter(1..=count).map(|number| {
            let pods = &pods;
            async move {
                let status = simulated::running(&simulated::address(number));
                simulated::set_status(pods, &name(number), &status).await
            }
        });
        requests
            .buffer_unordered(AT_A_TIME)
            .try_collect::<()>()
            .await?;
        Ok(start.elapsed())
    };
    // Each has a service and a sidecar.
    let registered = instances(api, 2 * count as usize, start);
    let (written, registered) = tokio::try_join!(write, registered)?;
    let processor = api.usage(&leader).await?.processor - before.processor;
    sleep(QUIET).await;
    let with_all = operators(api).await?;

    let start = Instant::now();
    simulated::remove_pods(&pods).await?;
    let removed = instances(api, 0, start).await?;
    sleep(QUIET).await;
    let (same, _) = api.operators().await?;
    ensure!(same == leader, "another operator leads by now: {same}");
    Ok(Times {
        created,
        written,
        registered,
        removed,
        processor,
        with_all,
        afterwards: operators(api).await?,
    })
}

fn name(number: u32) -> String {
    format!("many-{number}")
}

/// The time from `start` until this many instances on the simulated node are passing.
async fn instances(api: &Api, wanted: usize, start: Instant) -> anyhow::Result<Duration> {
    let path = format!("health/node/{}-virtual", simulated::NODE);
    let mut count = 0;
    while start.elapsed() < LIMIT {
        let (checks, _) = api.catalog(&path, None).await?;
        let checks = checks.as_array().into_iter().flatten();
        count = checks.filter(|check| check["Status"] == "passing").count();
        if count == wanted {
            return Ok(start.elapsed());
        }
        sleep(LOOK).await;
    }
    bail!(
        "{count} instead of {wanted} instances after {} s",
        LIMIT.as_secs()
    )
}
