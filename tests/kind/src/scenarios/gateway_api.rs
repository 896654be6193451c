//! Gateways of the Gateway API in front of applications in the mesh and outside of it.

mod kills;
pub(super) mod references;

use std::fs;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::forward::Forward;
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{
    App, ask_until_answered, ask_until_refused, assert_caller, intend, resource, speaks_http,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a_gateway_leads_into_the_mesh",
        run: a_gateway_leads_into_the_mesh,
    },
    Scenario {
        name: "what_a_gateway_refers_to_goes_away",
        run: references::what_a_gateway_refers_to_goes_away,
    },
    Scenario {
        name: "routes_change_while_all_around_is_killed",
        run: kills::routes_change_while_all_around_is_killed,
    },
];

/// The values of the chart for these scenarios.
pub(crate) const VALUES: &[&str] = &["connectInject.apiGateway.enabled=true"];

/// The port of the listener that every Gateway of a scenario has.
pub(crate) const PORT: u16 = 8000;

/// Installs the definitions as a user does.
pub(crate) fn define(cluster: &Cluster) -> anyhow::Result<()> {
    let folder = cluster.gateway_api.as_deref();
    let folder = folder.context("the definitions are named")?;
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        // The others are for kustomize.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("gateway.networking.") {
            let path = path.display().to_string();
            cluster.kubectl(&["apply", "--server-side", "--filename", &path])?;
        }
    }
    let all = ["--for=condition=Established", "crd", "--all"];
    cluster.kubectl(&[&["wait", "--timeout=60s"][..], &all].concat())?;
    Ok(())
}

/// Applies a class for the Gateways of a scenario, with this many proxies each. It is not deleted with the namespace.
pub(crate) fn class(space: &Namespace, name: &str, instances: u32) -> anyhow::Result<()> {
    // Nothing gives a LoadBalancer an address here.
    let config = json!({"serviceType": "ClusterIP", "deployment": {"defaultInstances": instances}});
    space.apply(&resource("GatewayClassConfig", name, &config))?;
    let parameters = json!({
        "group": "consul.hashicorp.com", "kind": "GatewayClassConfig", "name": name,
    });
    let class = json!({"controllerName": "legate/gateway-controller", "parametersRef": parameters});
    apply(space, "GatewayClass", name, &class)
}

/// Deletes a class with its parameters.
pub(crate) fn delete_class(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let both = [
        format!("gatewayclass/{name}"),
        format!("gatewayclassconfig/{name}"),
    ];
    let words = ["delete", "--ignore-not-found", &both[0], &both[1]];
    cluster.kubectl(&words).map(drop)
}

/// A Gateway with a listener for HTTP at [`PORT`] and others.
pub(crate) fn gateway(
    space: &Namespace,
    name: &str,
    class: &str,
    others: &[Value],
) -> anyhow::Result<()> {
    let http = json!({"name": "http", "port": PORT, "protocol": "HTTP"});
    let listeners: Vec<&Value> = std::iter::once(&http).chain(others).collect();
    let spec = json!({"gatewayClassName": class, "listeners": listeners});
    apply(space, "Gateway", name, &spec)?;
    space.wait(&format!("gateway/{name}"), "condition=Programmed")
}

/// A rule that leads from the path of this name to the root of a Service.
pub(crate) fn rule(name: &str, backend: &Value) -> Value {
    json!({
        "matches": [{"path": {"type": "PathPrefix", "value": format!("/{name}")}}],
        "filters": [{
            "type": "URLRewrite",
            "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
        }],
        "backendRefs": [backend],
    })
}

/// An application without a sidecar.
pub(crate) fn outside(name: &str) -> App {
    App::new(name).annotation("connect-inject", "false")
}

fn a_gateway_leads_into_the_mesh(space: &Namespace) -> anyhow::Result<()> {
    App::new("entered").run(space)?;
    // Then it sees the caller's identity.
    speaks_http(space, "entered")?;
    outside("outside").run(space)?;
    let class_name = "scenario";
    class(space, class_name, 1)?;
    gateway(space, "edge", class_name, &[])?;
    let rule = |name: &str| rule(name, &json!({"name": name, "port": 80}));
    let route = json!({
        "parentRefs": [{"name": "edge"}],
        "rules": [rule("entered"), rule("outside")],
    });
    apply(space, "HTTPRoute", "route", &route)?;

    let made = format!("edge-{class_name}");
    let url = |name: &str| format!("http://{made}:{PORT}/{name}");
    let answer = ask_until_answered(space, "outside", &url("outside"))?;
    ensure!(answer["caller"].is_null(), "{answer}");
    let forward = Forward::start(space, &format!("deployment/{made}"), PORT)?;
    forward.await_status(("http", "outside"), &[], "200")?;
    drop(forward);
    // The gateway is a service of the mesh, whose rules it cannot avoid.
    ask_until_refused(space, "outside", &url("entered"))?;
    let gateway = format!("{}--{made}", space.name);
    intend(space, &gateway, "entered", "allow")?;
    let answer = ask_until_answered(space, "outside", &url("entered"))?;
    assert_caller(&answer, &gateway)?;
    intend(space, &gateway, "entered", "deny")?;
    ask_until_refused(space, "outside", &url("entered"))?;

    // What belongs to a Gateway goes with it.
    space.kubectl(&["delete", "gateway/edge"])?;
    space.wait(&format!("deployment/{made}"), "delete")?;
    space.wait(&format!("service/{made}"), "delete")?;
    delete_class(space.cluster, class_name)
}

pub(crate) fn apply(space: &Namespace, kind: &str, name: &str, spec: &Value) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    });
    space.apply(&object.to_string())
}
