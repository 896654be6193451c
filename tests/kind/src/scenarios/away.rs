//! An outage of the API server for a minute, after which all connections are lost.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, eventually, output};
use crate::mesh;
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{App, Load, ask_until_answered, intend, speaks_http};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "the_api_server_is_away_for_a_minute",
    run: the_api_server_is_away_for_a_minute,
}];

fn the_api_server_is_away_for_a_minute(space: &Namespace) -> anyhow::Result<()> {
    speaks_http(space, "away-api")?;
    intend(space, "away-load", "away-api", "allow")?;
    App::new("away-api").replicas(2).run(space)?;
    let load = Load::start(space, "away-load", "http://away-api/")?;
    let instances = mesh::registered(space.cluster, "away-api")?;
    ensure!(instances.len() == 2, "{instances:?}");
    let restarts = operator_restarts(space)?;

    stop_the_api_server(space.cluster)?;
    load.without_failure()?;
    ensure!(
        mesh::registered(space.cluster, "away-api")? == instances,
        "{instances:?}"
    );
    ensure!(operator_restarts(space)? == restarts, "{restarts:?}");
    lease_is_renewed(space)?;

    // The operator injects, registers and writes as before.
    speaks_http(space, "away-late-api")?;
    intend(space, "away-late", "away-late-api", "allow")?;
    App::new("away-late").run(space)?;
    App::new("away-late-api").run(space)?;
    ask_until_answered(space, "away-late", "http://away-late-api/")?;
    ensure!(
        mesh::registered(space.cluster, "away-api")? == instances,
        "{instances:?}"
    );
    load.without_failure().map(|_| ())
}

/// It accepts connections without responding for a minute; then it is killed, and the node restarts
/// it.
fn stop_the_api_server(cluster: &Cluster) -> anyhow::Result<()> {
    let node = cluster.node.context("a node of this machine")?.to_string();
    let signal = |signal: &str| {
        let mut command = Command::new("nsenter");
        command.args(["--target", &node, "--mount", "--pid", "--"]);
        command.args(["pkill", signal, "--exact", "kube-apiserver"]);
        output(&mut command, "")
    };
    signal("-STOP")?;
    sleep(Duration::from_secs(60));
    signal("-KILL")?;
    eventually("the API server answers", || {
        cluster.kubectl(&["get", "--raw", "/readyz"]).map(|_| ())
    })
}

/// Names of the operator's pods with their restart counts.
fn operator_restarts(space: &Namespace) -> anyhow::Result<String> {
    let each =
        "{range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount} {end}";
    let output = format!("--output=jsonpath={each}");
    mesh::namespace(space.cluster).kubectl(&[
        "get",
        "pods",
        "--selector=component=operator",
        "--sort-by=.metadata.name",
        &output,
    ])
}

/// Asserts that one of the operator's pods holds the lease and continues to renew it.
fn lease_is_renewed(space: &Namespace) -> anyhow::Result<()> {
    let release = mesh::namespace(space.cluster);
    let lease = || -> anyhow::Result<Value> {
        let lease = release.json(&["get", "lease/legate-operator"])?;
        Ok(lease["spec"].clone())
    };
    let before = lease()?["renewTime"].clone();
    let renewed = eventually("the lease is renewed", || {
        let now = lease()?;
        ensure!(now["renewTime"] != before, "{now}");
        Ok(now)
    })?;
    let holder = renewed["holderIdentity"].as_str().unwrap_or_default();
    let pods = release.pods("component=operator")?;
    ensure!(pods.iter().any(|pod| pod == holder), "{renewed} {pods:?}");
    Ok(())
}
