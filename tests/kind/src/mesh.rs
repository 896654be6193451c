//! The mesh of the scenarios: the chart in this repository with the images of the tests.

use std::path::Path;
use std::process::Command;

use crate::cluster::{Cluster, output};
use crate::namespace::Namespace;

/// The release and its namespace.
pub(crate) const RELEASE: &str = "legate";

/// What differs from the chart's defaults.
const VALUES: [&str; 4] = [
    "global.image=localhost/legate-server:test",
    "global.imageK8S=localhost/legate-k8s:test",
    "global.imageConsulDataplane=localhost/legate-dataplane:test",
    "global.imagePullPolicy=Never",
];

/// The namespace of the release.
pub(crate) fn namespace(cluster: &Cluster) -> Namespace<'_> {
    Namespace {
        cluster,
        name: RELEASE.to_owned(),
    }
}

/// Installs the chart, or makes what is installed like this; returns when all of it is ready.
pub(crate) fn install(cluster: &Cluster) -> anyhow::Result<()> {
    upgrade(&[]).map_err(|error| error.context(namespace(cluster).describe()))
}

/// The same with more values, `name=value`.
pub(crate) fn upgrade(values: &[&str]) -> anyhow::Result<()> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/legate");
    let mut helm = Command::new("helm");
    helm.args(["upgrade", "--install", RELEASE])
        .arg(chart)
        .args(["--namespace", RELEASE, "--create-namespace"])
        .args(["--wait", "--wait-for-jobs", "--timeout", "180s"]);
    for value in VALUES.iter().chain(values) {
        helm.args(["--set", value]);
    }
    output(&mut helm, "").map(|_| ())
}

/// Removes the release, and waits until its pods are gone.
pub(crate) fn uninstall() -> anyhow::Result<()> {
    let mut helm = Command::new("helm");
    helm.args(["uninstall", RELEASE, "--namespace", RELEASE]);
    output(helm.args(["--wait", "--timeout", "120s"]), "").map(|_| ())
}
