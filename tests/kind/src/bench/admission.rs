//! Duration of admission: through the API server with and without the webhook, and at the webhook
//! itself, called from a pod.

use std::time::Duration;

use anyhow::Context;
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, LogParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::api::Api;
use super::figures::{self, Sample};
use crate::cluster::Cluster;
use crate::mesh::RELEASE;
use crate::namespace::Namespace;
use crate::workload::App;

const SERVICE: &str = "admitted";
/// Numbers of concurrent requests, for rows with a rate.
const AT_A_TIME: [u32; 2] = [1, 8];

/// Sends this many pods for each row, and prints the table.
pub(super) async fn measure(cluster: &Cluster, api: &Api, count: u32) -> anyhow::Result<()> {
    let space = Namespace::create(cluster, "bench-admission")?;
    let app = App::new(SERVICE);
    app.apply_without_pods(&space)?;
    let measured = rows(api, &space, &app, count).await;
    let measured = measured.map_err(|error| error.context(space.describe()));
    let removed = space.delete();
    let measured = measured?;
    removed?;
    let title = format!("{count} pods each");
    figures::head(&title, &["p50, ms", "p99, ms", "most, ms", "per second"]);
    for (label, sample, rate) in measured {
        let values = [
            sample.median(),
            sample.percentile(99),
            sample.most(),
            Some(rate),
        ];
        figures::row(&label, &values, 1);
    }
    Ok(())
}

type Row = (String, Sample, f64);

async fn rows(api: &Api, space: &Namespace<'_>, app: &App, count: u32) -> anyhow::Result<Vec<Row>> {
    let mut left = App::new(SERVICE).annotation("connect-inject", "false");
    left.container = app.container.clone();
    let mut rows = Vec::new();
    for at_a_time in AT_A_TIME {
        for (what, app) in [("left as it is", &left), ("injected", app)] {
            let (sample, rate) = dry_run(api, space, app, count, at_a_time).await?;
            let label = format!("dry run by the API server, {what}, {at_a_time} at a time");
            rows.push((label, sample, rate));
        }
    }
    for at_a_time in AT_A_TIME {
        let (sample, rate) = direct(api, space, app, count, at_a_time).await?;
        let label = format!("the webhook alone, injected, {at_a_time} at a time");
        rows.push((label, sample, rate));
    }
    Ok(rows)
}

/// Creates pods as a dry run, in which the API server does everything but store them.
async fn dry_run(
    api: &Api,
    space: &Namespace<'_>,
    app: &App,
    count: u32,
    at_a_time: u32,
) -> anyhow::Result<(Sample, f64)> {
    let pods = api.pods(&space.name);
    let pod: Pod = serde_json::from_value(app.pod("admitted-0"))?;
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let one = || async {
        let began = Instant::now();
        pods.create(&params, &pod).await?;
        Ok::<_, kube::Error>(began.elapsed())
    };
    // Opens the connections.
    one().await?;
    let began = Instant::now();
    let requests = stream::iter(0..count).map(|_| one());
    let times: Vec<Duration> = requests
        .buffer_unordered(at_a_time as usize)
        .try_collect()
        .await?;
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    let times = times.iter().map(|time| time.as_secs_f64() * 1000.0);
    Ok((times.collect(), rate))
}

/// Requests from a pod to the webhook's Service, each on a new connection, as the webhook requires.
async fn direct(
    api: &Api,
    space: &Namespace<'_>,
    app: &App,
    count: u32,
    at_a_time: u32,
) -> anyhow::Result<(Sample, f64)> {
    let name = format!("asker-{at_a_time}");
    let asker = App::new(&name)
        .annotation("connect-inject", "false")
        .arguments(&[
            "admit",
            &format!("{RELEASE}-operator.{RELEASE}.svc"),
            // A PEM begins with dashes, like a flag.
            &format!("--authority={}", authority(api).await?),
            "--review",
            &review(&space.name, app).to_string(),
            "--count",
            &count.to_string(),
            "--at-a-time",
            &at_a_time.to_string(),
        ]);
    let mut pod = asker.pod(&name);
    pod["spec"]["serviceAccountName"] = json!(app.name);
    pod["spec"]["restartPolicy"] = json!("Never");
    let pods = api.pods(&space.name);
    let pod: Pod = serde_json::from_value(pod)?;
    pods.create(&PostParams::default(), &pod).await?;
    api.ended(&space.name, &name).await?;
    let log = pods.logs(&name, &LogParams::default()).await?;
    pods.delete(&name, &DeleteParams::default()).await?;
    let seen: Value = serde_json::from_str(&log).with_context(|| log.clone())?;
    let times = seen["milliseconds"].as_array().context("times")?;
    let sample = times.iter().filter_map(Value::as_f64).collect();
    let seconds = seen["seconds"].as_f64().context("seconds")?;
    Ok((sample, f64::from(count) / seconds))
}

/// The PEM with which the API server verifies the webhook.
async fn authority(api: &Api) -> anyhow::Result<String> {
    let webhooks: kube::Api<MutatingWebhookConfiguration> = kube::Api::all(api.client.clone());
    let webhooks = webhooks.get(&format!("{RELEASE}-operator")).await?;
    let first = webhooks.webhooks.into_iter().flatten().next();
    let bundle = first.and_then(|webhook| webhook.client_config.ca_bundle);
    Ok(String::from_utf8(
        bundle.context("the webhook has a caBundle")?.0,
    )?)
}

/// The request of the API server.
fn review(namespace: &str, app: &App) -> Value {
    let mut pod = app.pod("admitted-0");
    pod["metadata"]["namespace"] = json!(namespace);
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "admitted-0",
            "namespace": namespace,
            "operation": "CREATE",
            "userInfo": {"username": "bench"},
            "object": pod,
            "dryRun": true,
        },
    })
}
