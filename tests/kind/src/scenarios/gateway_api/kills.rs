//! A route is changed while the operator, the servers, the API server and proxies of its Gateway are killed: each change
//! is served in the end, and no request of another route fails.

use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::json;

use super::{PORT, apply, class, delete_class, gateway, outside, rule};
use crate::cluster::{eventually, output};
use crate::mesh;
use crate::namespace::Namespace;
use crate::workload::{Load, ask};

const CLASS: &str = "kills";
const CLIENT: &str = "kills-load";
/// The backends of the route that is changed.
const BACKENDS: [&str; 2] = ["kills-a", "kills-b"];

/// Something that is killed, and restarted by Kubernetes.
struct Kill {
    what: &'static str,
    kill: fn(&Namespace) -> anyhow::Result<()>,
}

const KILLS: [Kill; 4] = [
    Kill {
        what: "the operator is killed",
        kill: |space| component(space, "operator"),
    },
    Kill {
        what: "the servers are killed",
        kill: |space| component(space, "server"),
    },
    Kill {
        what: "a proxy is deleted",
        kill: a_proxy,
    },
    Kill {
        what: "the API server is killed",
        kill: the_api_server,
    },
];

pub(super) fn routes_change_while_all_around_is_killed(space: &Namespace) -> anyhow::Result<()> {
    for name in BACKENDS {
        outside(name).run(space)?;
    }
    outside("kills-kept").run(space)?;
    class(space, CLASS, 2)?;
    gateway(space, "edge", CLASS, &[])?;
    route(space, "kept", "kills-kept")?;
    changed(space, BACKENDS[0])?;
    let url = url("kept");
    let load = ["load", "--clients", "3", "--per-connection", "0", &url];
    let load = Load::of(space, outside(CLIENT).arguments(&load))?;
    is_served(space, BACKENDS[0])?;

    for (number, Kill { what, kill }) in KILLS.iter().enumerate() {
        kill(space).context(*what)?;
        let backend = BACKENDS[(number + 1) % BACKENDS.len()];
        eventually("the route is changed", || changed(space, backend)).context(*what)?;
        is_served(space, backend).context(*what)?;
        load.without_failure().context(*what)?;
    }
    let release = mesh::namespace(space.cluster);
    release.rolled_out("deployment/legate-operator")?;
    release.rolled_out("statefulset/legate-server")?;
    space.rolled_out(&format!("deployment/edge-{CLASS}"))?;
    load.without_failure()?;
    delete_class(space.cluster, CLASS)
}

/// Kills all pods of a component of the chart.
fn component(space: &Namespace, name: &str) -> anyhow::Result<()> {
    let selector = format!("--selector=component={name}");
    let words = ["delete", "pods", "--grace-period=0", "--force", &selector];
    mesh::namespace(space.cluster).kubectl(&words).map(drop)
}

/// Ends one of the Gateway's proxies. One that is killed loses the requests that it has in hand.
fn a_proxy(space: &Namespace) -> anyhow::Result<()> {
    let pods = space.pods("gateway.networking.k8s.io/gateway-name=edge")?;
    let pod = pods.first().context("the Gateway has proxies")?;
    let words = ["delete", "pod", "--wait=false", pod];
    space.kubectl(&words).map(drop)
}

/// Only on a node of this machine.
fn the_api_server(space: &Namespace) -> anyhow::Result<()> {
    let Some(node) = space.cluster.node else {
        return Ok(());
    };
    let mut command = Command::new("nsenter");
    command.args(["--target", &node.to_string(), "--mount", "--pid", "--"]);
    command.args(["pkill", "-KILL", "--exact", "kube-apiserver"]);
    output(&mut command, "").map(drop)
}

fn url(path: &str) -> String {
    format!("http://edge-{CLASS}:{PORT}/{path}")
}

/// A route of this name and path to a Service.
fn route(space: &Namespace, name: &str, backend: &str) -> anyhow::Result<()> {
    let rules = [rule(name, &json!({"name": backend, "port": 80}))];
    let route = json!({"parentRefs": [{"name": "edge"}], "rules": rules});
    apply(space, "HTTPRoute", name, &route)
}

fn changed(space: &Namespace, backend: &str) -> anyhow::Result<()> {
    route(space, "changed", backend)
}

/// Waits until the changed route leads to a backend.
fn is_served(space: &Namespace, backend: &str) -> anyhow::Result<()> {
    eventually(&format!("the route leads to {backend}"), || {
        let answer = ask(space, CLIENT, &url("changed"))?;
        let instance = answer["instance"].as_str().unwrap_or_default();
        ensure!(instance.starts_with(backend), "{answer}");
        Ok(())
    })
}
