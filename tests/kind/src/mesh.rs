//! The mesh of the scenarios: the chart in this repository with the images of the tests.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, eventually, output};
use crate::namespace::Namespace;

/// The release with its own servers, and its namespace.
pub(crate) const RELEASE: &str = "legate";

/// The values that differ from the chart's defaults.
const VALUES: [&str; 4] = [
    "global.image=localhost/legate-server:test",
    "global.imageK8S=localhost/legate-k8s:test",
    "global.imageConsulDataplane=localhost/legate-dataplane:test",
    "global.imagePullPolicy=Never",
];

/// A release of the chart.
pub(crate) struct Release<'a> {
    pub(crate) name: &'a str,
    pub(crate) namespace: &'a str,
}

/// The release with its own servers, which most scenarios use.
pub(crate) const OWN: Release<'static> = Release {
    name: RELEASE,
    namespace: RELEASE,
};

impl Release<'_> {
    /// Installs or upgrades the chart; values are `name=value`. Returns when everything is ready.
    pub(crate) fn upgrade(&self, values: &[&str]) -> anyhow::Result<()> {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/legate");
        let mut helm = Command::new("helm");
        helm.args(["upgrade", "--install", self.name])
            .arg(chart)
            .args(["--namespace", self.namespace, "--create-namespace"])
            .args(["--wait", "--wait-for-jobs", "--timeout", "180s"]);
        for value in VALUES.iter().chain(values) {
            helm.args(["--set", value]);
        }
        output(&mut helm, "").map(|_| ())
    }

    /// Uninstalls it, if installed, and waits until its pods are gone.
    pub(crate) fn uninstall(&self) -> anyhow::Result<()> {
        let mut helm = Command::new("helm");
        helm.args(["uninstall", self.name, "--namespace", self.namespace])
            .args(["--ignore-not-found", "--wait", "--timeout", "120s"]);
        output(&mut helm, "").map(|_| ())
    }
}

/// Namespaces that scenarios and the tutorial create and delete, and that a user's cluster may have
/// too.
const COMMON: [&str; 4] = [RELEASE, "consul", "hello", "hello-restricted"];

/// Fails if the cluster was not created for this and has something that would be deleted.
pub(crate) fn refuse_foreign_cluster(cluster: &Cluster) -> anyhow::Result<()> {
    if cluster.node.is_some() {
        return Ok(());
    }
    let words = ["get", "namespaces", "--ignore-not-found", "--output=name"];
    let found = cluster.kubectl(&[&words[..], &COMMON].concat())?;
    ensure!(
        found.trim().is_empty(),
        "the cluster has {} already, which would be deleted: delete it yourself, or name another \
         cluster in KUBECONFIG",
        found.split_whitespace().collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

/// The namespace of the release with its own servers.
pub(crate) fn namespace(cluster: &Cluster) -> Namespace<'_> {
    Namespace {
        cluster,
        name: RELEASE.to_owned(),
    }
}

/// Installs the release with its own servers, or upgrades it.
pub(crate) fn install(cluster: &Cluster, values: &[&str]) -> anyhow::Result<()> {
    let installed = OWN.upgrade(values);
    installed.map_err(|error| error.context(namespace(cluster).describe()))
}

/// Checks that pods are not blocked by the webhook of a removed operator.
pub(crate) fn assert_no_webhook_of(cluster: &Cluster, release: &str) -> anyhow::Result<()> {
    let hooks = cluster.json(&["get", "mutatingwebhookconfigurations"])?;
    let hooks = hooks["items"].as_array().context("they are a list")?;
    let left = hooks.iter().any(|hook| {
        let name = hook["metadata"]["name"].as_str();
        name.is_some_and(|name| name.starts_with(release))
    });
    ensure!(!left, "{hooks:?}");
    Ok(())
}

/// The servers' response to a GET with the management token.
pub(crate) fn get(cluster: &Cluster, path: &str) -> anyhow::Result<Value> {
    let url = url(cluster, path)?;
    let read = || cluster.kubectl(&["get", "--raw", &url]);
    let answer = eventually("the servers answer", read)?;
    Ok(serde_json::from_str(&answer)?)
}

/// Sends a PUT with that token.
pub(crate) fn put(cluster: &Cluster, path: &str, body: &Value) -> anyhow::Result<()> {
    let url = url(cluster, path)?;
    let words = ["replace", "--raw", &url, "--filename", "-"];
    cluster.kubectl_with(&body.to_string(), &words).map(|_| ())
}

/// The management token.
pub(crate) fn token(cluster: &Cluster) -> anyhow::Result<String> {
    let template = "--output=go-template={{.data.token|base64decode}}";
    let secret = ["get", "secret/legate-bootstrap-acl-token", template];
    namespace(cluster).kubectl(&secret)
}

/// The URL of a path of the servers' API, through the API server.
fn url(cluster: &Cluster, path: &str) -> anyhow::Result<String> {
    let token = token(cluster)?;
    let server = format!("/api/v1/namespaces/{RELEASE}/services/https:legate-server:8501/proxy");
    let separator = if path.contains('?') { '&' } else { '?' };
    Ok(format!("{server}{path}{separator}token={token}"))
}

/// The create index of each instance of a service, by id: an instance that was deleted and created
/// again has another index.
pub(crate) fn registered(cluster: &Cluster, service: &str) -> anyhow::Result<Vec<(String, u64)>> {
    let instances = get(cluster, &format!("/v1/catalog/service/{service}"))?;
    let instances = instances.as_array().context("instances are a list")?.iter();
    let mut all: Vec<(String, u64)> = instances
        .filter_map(|one| {
            let id = one["ServiceID"].as_str()?.to_owned();
            Some((id, one["CreateIndex"].as_u64()?))
        })
        .collect();
    all.sort();
    Ok(all)
}
