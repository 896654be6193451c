//! A Gateway of the Gateway API in front of applications in the mesh and outside of it.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::mesh;
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{
    App, ask_until_answered, ask_until_refused, assert_caller, intend, resource, speaks_http,
};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "a_gateway_leads_into_the_mesh",
    run: a_gateway_leads_into_the_mesh,
}];

const CLASS: &str = "scenario";
const PORT: u16 = 8000;

fn a_gateway_leads_into_the_mesh(space: &Namespace) -> anyhow::Result<()> {
    let folder = space.cluster.gateway_api.as_deref();
    define(space.cluster, folder.context("the definitions are named")?)?;
    let release = mesh::namespace(space.cluster);
    let outcome = mesh::OWN.upgrade(&["connectInject.apiGateway.enabled=true"]);
    let outcome = outcome.and_then(|()| served(space));
    let outcome = outcome.map_err(|error| error.context(release.describe()));
    // Also after a failure. Objects of the whole cluster are not deleted with the namespace.
    let class = ["delete", "gatewayclass", CLASS, "--ignore-not-found"];
    let ended = space.cluster.kubectl(&class).map(|_| ());
    let ended = ended.and_then(|()| mesh::OWN.upgrade(&[]));
    outcome.and(ended)
}

/// Installs the definitions as a user does.
fn define(cluster: &Cluster, folder: &Path) -> anyhow::Result<()> {
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

fn served(space: &Namespace) -> anyhow::Result<()> {
    App::new("entered").run(space)?;
    // Then it sees the caller's identity.
    speaks_http(space, "entered")?;
    let outside = App::new("outside").annotation("connect-inject", "false");
    outside.run(space)?;
    // Nothing gives a LoadBalancer an address here.
    let config = json!({"serviceType": "ClusterIP"});
    space.apply(&resource("GatewayClassConfig", CLASS, &config))?;
    let parameters = json!({
        "group": "consul.hashicorp.com", "kind": "GatewayClassConfig", "name": CLASS,
    });
    apply(
        space,
        "GatewayClass",
        CLASS,
        &json!({"controllerName": "legate/gateway-controller", "parametersRef": parameters}),
    )?;
    apply(
        space,
        "Gateway",
        "edge",
        &json!({
            "gatewayClassName": CLASS,
            "listeners": [{"name": "http", "port": PORT, "protocol": "HTTP"}],
        }),
    )?;
    let rule = |name: &str| {
        json!({
            "matches": [{"path": {"type": "PathPrefix", "value": format!("/{name}")}}],
            "filters": [{
                "type": "URLRewrite",
                "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
            }],
            "backendRefs": [{"name": name, "port": 80}],
        })
    };
    let route = json!({
        "parentRefs": [{"name": "edge"}],
        "rules": [rule("entered"), rule("outside")],
    });
    apply(space, "HTTPRoute", "route", &route)?;
    space.wait("gateway/edge", "condition=Programmed")?;

    let made = format!("edge-{CLASS}");
    let url = |name: &str| format!("http://{made}:{PORT}/{name}");
    let answer = ask_until_answered(space, "outside", &url("outside"))?;
    ensure!(answer["caller"].is_null(), "{answer}");
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
    space.wait(&format!("service/{made}"), "delete")
}

fn apply(space: &Namespace, kind: &str, name: &str, spec: &Value) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    });
    space.apply(&object.to_string())
}
