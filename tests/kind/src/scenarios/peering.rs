//! Two clusters that are peered: two releases in one Kubernetes cluster, each with its own datacenter, CA, tokens and
//! namespace of applications. A PeeringAcceptor and a PeeringDialer connect them.
//!
//! Both operators write the config entries of all namespaces, each to its own servers. What is about the other one has no
//! effect there.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::mesh::{self, Release};
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{
    App, ask_until_answered, ask_until_refused, assert_caller, resource, speaks_http,
};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "peering",
    run: services_of_peered_clusters_call_each_other,
}];

/// The cluster that makes the token, and the one that uses it. Datacenters have the names of their releases, and each is
/// the peer of that name of the other one.
const EAST: Release = Release {
    name: "east",
    namespace: "east",
};
const WEST: Release = Release {
    name: "west",
    namespace: "west",
};
/// The namespace of the applications of [`WEST`]. Those of the other one are in the scenario's own.
const APPS_OF_WEST: &str = "apps-of-west";
/// Where applications call the service of the other cluster.
const URL: &str = "http://127.0.0.1:1234/";
/// The Secret with the token, in both namespaces.
const TOKEN: &str = "peering-token";

fn services_of_peered_clusters_call_each_other(space: &Namespace) -> anyhow::Result<()> {
    // Its operator would inject all pods of the cluster.
    mesh::OWN.uninstall()?;
    let cluster = space.cluster;
    let apps = Namespace::create(cluster, APPS_OF_WEST)?;
    let east = Namespace::create(cluster, EAST.namespace)?;
    let west = Namespace::create(cluster, WEST.namespace)?;
    let shown = install(&EAST, space)
        .and_then(|()| install(&WEST, &apps))
        .and_then(|()| meet(space, &apps, (&east, &west)));
    let shown = shown.map_err(|error| {
        let error = error.context(describe(&east)).context(describe(&west));
        error.context(apps.describe())
    });
    // Both are uninstalled also after a failure, because their webhooks would block later pods. Finalizers of objects
    // would keep namespaces.
    if shown.is_err() {
        let patch = [
            "--type=merge",
            "--patch",
            r#"{"metadata":{"finalizers":null}}"#,
        ];
        for (own, object) in [
            (&east, "peeringacceptor/west"),
            (&west, "peeringdialer/east"),
        ] {
            let _ = own.kubectl(&[&["patch", object][..], &patch].concat());
        }
    }
    let uninstalled = [WEST.uninstall(), EAST.uninstall()];
    shown?;
    for outcome in uninstalled {
        outcome?;
    }
    for release in [EAST, WEST] {
        mesh::assert_no_webhook_of(cluster, release.name)?;
    }
    [apps, east, west].iter().try_for_each(Namespace::delete)
}

/// A namespace with what is known of its peering.
fn describe(own: &Namespace) -> String {
    let objects = own.kubectl(&["get", "peeringacceptors,peeringdialers", "--output=yaml"]);
    let objects = objects.unwrap_or_else(|error| format!("{error:#}"));
    let peerings = read(own, "/v1/peerings");
    format!("{}\n{objects}\n{peerings:?}", own.describe())
}

/// Installs a cluster, which has the applications of one namespace.
fn install(release: &Release, apps: &Namespace) -> anyhow::Result<()> {
    let selected = format!(
        "connectInject.namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name={}",
        apps.name
    );
    release.upgrade(&[
        &format!("global.datacenter={}", release.name),
        "global.peering.enabled=true",
        &format!("global.peering.k8sAllowNamespaces[0]={}", release.namespace),
        &format!("connectInject.k8sAllowNamespaces[0]={}", apps.name),
        &selected,
        "connectInject.replicas=1",
        "meshGateway.enabled=true",
        "meshGateway.replicas=1",
        // The address for other clusters is that of the Service.
        "meshGateway.service.type=ClusterIP",
    ])
}

fn meet(
    space: &Namespace,
    apps: &Namespace,
    (east, west): (&Namespace, &Namespace),
) -> anyhow::Result<()> {
    // Servers reach each other through gateways, too.
    let through = json!({"peering": {"peerThroughMeshGateways": true}});
    apply(space, "Mesh", ("mesh", "mesh"), &through)?;
    for own in [east, west] {
        eventually("the gateway is registered", || {
            let all = read(own, "/v1/health/service/mesh-gateway?passing")?;
            ensure!(all.as_array().is_some_and(|all| !all.is_empty()), "{all}");
            Ok(())
        })?;
    }
    peer(east, west)?;
    export(space)?;
    let pairs = [(space, "east", apps, "west"), (apps, "west", space, "east")];
    for (_, own, there, other) in pairs {
        let api = format!("{other}-api");
        speaks_http(space, &api)?;
        intend(space, own, other, "allow")?;
        App::new(&api).run(there)?;
    }
    for (here, own, _, other) in pairs {
        let web = format!("{own}-web");
        let upstream = format!("{other}-api.svc.{other}.peer:1234");
        let app = App::new(&web).annotation("connect-service-upstreams", &upstream);
        app.run(here)?;
        let answer = ask_until_answered(here, &web, URL)?;
        assert_caller(&answer, &web)?;
    }
    intentions_name_the_peer(space)?;
    there_is_no_other_way(space, west)?;
    nothing_is_left(space, east, west)?;
    space.kubectl(&[
        "delete",
        "serviceintentions,servicedefaults,exportedservices,meshes",
        "--all",
    ])?;
    Ok(())
}

/// The token is made in one cluster, copied, and used in the other one.
fn peer(east: &Namespace, west: &Namespace) -> anyhow::Result<()> {
    let secret = json!({"name": TOKEN, "key": "data", "backend": "kubernetes"});
    let spec = json!({"peer": {"secret": secret}});
    apply(east, "PeeringAcceptor", ("peeringacceptor", "west"), &spec)?;
    let made = east.json(&["get", "secret", TOKEN])?;
    let labels = &made["metadata"]["labels"];
    ensure!(
        labels["consul.hashicorp.com/peering-token"] == "true",
        "{labels}"
    );
    // The condition reports a missing Secret.
    west.apply(&resource("PeeringDialer", "east", &spec))?;
    eventually("the missing Secret is reported", || {
        let dialer = west.json(&["get", "peeringdialer/east"])?;
        let condition = &dialer["status"]["conditions"][0];
        ensure!(condition["reason"] == "secretMissing", "{condition}");
        Ok(())
    })?;
    let copy = json!({
        "apiVersion": "v1", "kind": "Secret", "data": made["data"],
        "metadata": {"name": TOKEN, "labels": labels},
    });
    west.apply(&copy.to_string())?;
    west.wait("peeringdialer/east", "condition=Synced")?;
    for (own, name) in [(east, "west"), (west, "east")] {
        eventually("the clusters are connected", || {
            let peering = read(own, &format!("/v1/peering/{name}"))?;
            ensure!(peering["State"] == "ACTIVE", "{peering}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Each cluster exports its service to the other one.
fn export(space: &Namespace) -> anyhow::Result<()> {
    let services = [("east-api", "west"), ("west-api", "east")]
        .map(|(name, peer)| json!({"name": name, "consumers": [{"peer": peer}]}));
    let spec = json!({"services": services});
    apply(
        space,
        "ExportedServices",
        ("exportedservices", "default"),
        &spec,
    )
}

/// An intention of a service for callers of a peer.
fn intend(space: &Namespace, from: &str, to: &str, action: &str) -> anyhow::Result<()> {
    let web = format!("{from}-web");
    let sources = json!([{"name": web, "peer": from, "action": action}]);
    let api = format!("{to}-api");
    let spec = json!({"destination": {"name": api}, "sources": sources});
    apply(
        space,
        "ServiceIntentions",
        ("serviceintentions", &api),
        &spec,
    )
}

fn apply(
    space: &Namespace,
    kind: &str,
    (plural, name): (&str, &str),
    spec: &Value,
) -> anyhow::Result<()> {
    space.apply(&resource(kind, name, spec))?;
    space.wait(&format!("{plural}/{name}"), "condition=Synced")
}

/// Callers of a peer need an intention that names it.
fn intentions_name_the_peer(space: &Namespace) -> anyhow::Result<()> {
    intend(space, "east", "west", "deny")?;
    ask_until_refused(space, "east-web", URL)?;
    // One for callers of the own cluster.
    let sources = json!([{"name": "east-web", "action": "allow"}]);
    let spec = json!({"destination": {"name": "west-api"}, "sources": sources});
    apply(
        space,
        "ServiceIntentions",
        ("serviceintentions", "west-api"),
        &spec,
    )?;
    ask_until_refused(space, "east-web", URL)?;
    intend(space, "east", "west", "allow")?;
    ask_until_answered(space, "east-web", URL).map(|_| ())
}

/// Without the gateways of a cluster its services cannot be called.
fn there_is_no_other_way(space: &Namespace, west: &Namespace) -> anyhow::Result<()> {
    let gateways = "deployment/west-legate-mesh-gateway";
    west.kubectl(&["scale", gateways, "--replicas=0"])?;
    ask_until_refused(space, "east-web", URL)?;
    west.kubectl(&["scale", gateways, "--replicas=1"])?;
    west.rolled_out(gateways)?;
    ask_until_answered(space, "east-web", URL).map(|_| ())
}

/// With the objects the peering goes, with all that came over it.
fn nothing_is_left(space: &Namespace, east: &Namespace, west: &Namespace) -> anyhow::Result<()> {
    west.kubectl(&["delete", "peeringdialer/east", "--timeout=90s"])?;
    east.kubectl(&["delete", "peeringacceptor/west", "--timeout=90s"])?;
    for (own, other) in [(east, "west"), (west, "east")] {
        eventually("nothing of the other cluster is left", || {
            let peerings = read(own, "/v1/peerings")?;
            let imported = format!("/v1/health/service/{other}-api?peer={other}");
            let imported = read(own, &imported)?;
            let none = |all: &Value| all.as_array().is_some_and(Vec::is_empty);
            ensure!(none(&peerings) && none(&imported), "{peerings} {imported}");
            Ok(())
        })?;
    }
    let left = east.kubectl(&["get", "secret", TOKEN, "--ignore-not-found"])?;
    ensure!(left.trim().is_empty(), "{left}");
    ask_until_refused(space, "east-web", URL)
}

/// What the servers of a release answer to a GET with its management token. Its namespace has its name.
fn read(own: &Namespace, path: &str) -> anyhow::Result<Value> {
    let name = &own.name;
    let secret = format!("secret/{name}-legate-bootstrap-acl-token");
    let template = "--output=go-template={{.data.token|base64decode}}";
    let token = own.kubectl(&["get", &secret, template])?;
    let separator = if path.contains('?') { '&' } else { '?' };
    let url = format!(
        "/api/v1/namespaces/{name}/services/https:{name}-legate-server:8501/proxy{path}{separator}token={token}"
    );
    let answer = own.cluster.kubectl(&["get", "--raw", &url])?;
    serde_json::from_str(&answer).with_context(|| format!("{path}: {answer}"))
}
