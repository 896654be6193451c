//! A primary datacenter and a secondary one: two releases in one cluster, each with a namespace of applications. Their
//! servers and sidecars reach each other through mesh gateways only.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::mesh::{self, Release};
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{
    App, ask_until_answered, ask_until_refused, assert_caller, intend, speaks_http,
};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "services_of_two_datacenters_meet_through_gateways",
    run: services_of_two_datacenters_meet_through_gateways,
}];

/// The primary, and the secondary. Datacenters have the names of their releases.
const EAST: Release = Release {
    name: "east",
    namespace: "east",
};
const WEST: Release = Release {
    name: "west",
    namespace: "west",
};
/// The namespace of the secondary's applications. Those of the primary are in the scenario's own.
const APPS_OF_WEST: &str = "apps-of-west";
/// Where applications call the service of the other datacenter.
const URL: &str = "http://127.0.0.1:1234/";

fn services_of_two_datacenters_meet_through_gateways(space: &Namespace) -> anyhow::Result<()> {
    // Its operator would inject all pods of the cluster.
    mesh::OWN.uninstall()?;
    let cluster = space.cluster;
    let apps = Namespace::create(cluster, APPS_OF_WEST)?;
    let east = Namespace::create(cluster, EAST.namespace)?;
    let west = Namespace::create(cluster, WEST.namespace)?;
    let shown = install(space, &apps, &east, &west).and_then(|()| meet(space, &apps, &west));
    let shown = shown.map_err(|error| {
        let error = error.context(east.describe()).context(west.describe());
        error.context(apps.describe())
    });
    // Both are uninstalled also after a failure, because their webhooks would block later pods.
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

/// Installs the primary, copies its Secret, and installs the secondary.
fn install(
    space: &Namespace,
    apps: &Namespace,
    east: &Namespace,
    west: &Namespace,
) -> anyhow::Result<()> {
    upgrade(
        &EAST,
        space,
        &[
            "global.federation.createFederationSecret=true",
            "global.acls.createReplicationToken=true",
        ],
    )?;
    let secret = eventually("the operator writes the Secret", || {
        east.json(&["get", "secret/east-legate-federation"])
    })?;
    let copy = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "federation"},
        "data": secret["data"],
    });
    west.apply(&copy.to_string())?;
    let template = "--output=go-template={{.data.serverConfigJSON|base64decode}}";
    let config = west.kubectl(&["get", "secret/federation", template])?;
    let config: Value = serde_json::from_str(&config)?;
    ensure!(config["primary_datacenter"] == EAST.name, "{config}");
    let gateway = config["primary_gateways"][0].as_str();
    let gateway = gateway.with_context(|| format!("no gateway in {config}"))?;
    upgrade(
        &WEST,
        apps,
        &[
            "global.tls.caCert.secretName=federation",
            "global.tls.caCert.secretKey=caCert",
            "global.tls.caKey.secretName=federation",
            "global.tls.caKey.secretKey=caKey",
            "global.acls.replicationToken.secretName=federation",
            "global.acls.replicationToken.secretKey=replicationToken",
            "global.federation.primaryDatacenter=east",
            &format!("global.federation.primaryGateways[0]={gateway}"),
            "global.federation.k8sAuthMethodHost=https://kubernetes.default.svc",
        ],
    )
}

/// Installs a datacenter, which has the applications of one namespace.
fn upgrade(release: &Release, apps: &Namespace, values: &[&str]) -> anyhow::Result<()> {
    let datacenter = format!("global.datacenter={}", release.name);
    let allowed = format!("connectInject.k8sAllowNamespaces[0]={}", apps.name);
    let selected = format!(
        "connectInject.namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name={}",
        apps.name
    );
    let own = [
        datacenter.as_str(),
        &allowed,
        &selected,
        "connectInject.replicas=1",
        "global.federation.enabled=true",
        "meshGateway.enabled=true",
        "meshGateway.replicas=1",
        // The address for other datacenters is that of the Service.
        "meshGateway.service.type=ClusterIP",
    ];
    release.upgrade(&[&own[..], values].concat())
}

fn meet(space: &Namespace, apps: &Namespace, west: &Namespace) -> anyhow::Result<()> {
    let pairs = [(space, "east", apps, "west"), (apps, "west", space, "east")];
    for (_, own, there, other) in pairs {
        let (web, api) = (format!("{own}-web"), format!("{other}-api"));
        speaks_http(space, &api)?;
        intend(space, &web, &api, "allow")?;
        App::new(&api).run(there)?;
    }
    for (here, own, _, other) in pairs {
        let web = format!("{own}-web");
        let upstream = format!("{other}-api:1234:{other}?mesh_gateway_mode=local");
        let app = App::new(&web).annotation("connect-service-upstreams", &upstream);
        app.run(here)?;
        let answer = ask_until_answered(here, &web, URL)?;
        assert_caller(&answer, &web)?;
    }
    each_registers_its_own(space)?;
    intentions_of_the_primary_apply(space, apps)?;
    there_is_no_other_way(space, west)?;
    space.kubectl(&["delete", "serviceintentions,servicedefaults", "--all"])?;
    Ok(())
}

/// A datacenter has the services of its own namespace only.
fn each_registers_its_own(space: &Namespace) -> anyhow::Result<()> {
    let east = Namespace {
        cluster: space.cluster,
        name: EAST.namespace.to_owned(),
    };
    // Tokens of the primary are known in both.
    let template = "--output=go-template={{.data.token|base64decode}}";
    let token = east.kubectl(&["get", "secret/east-legate-bootstrap-acl-token", template])?;
    for (own, other) in [("east", "west"), ("west", "east")] {
        let url = format!(
            "/api/v1/namespaces/{own}/services/https:{own}-legate-server:8501/proxy/v1/catalog/services?token={token}"
        );
        let services = space.cluster.kubectl(&["get", "--raw", &url])?;
        let services: Value = serde_json::from_str(&services)?;
        let has = |name: &str| services.get(name).is_some();
        ensure!(
            has(&format!("{own}-web")) && has("mesh-gateway"),
            "{own}: {services}"
        );
        ensure!(!has(&format!("{other}-web")), "{own}: {services}");
    }
    Ok(())
}

/// A change of an intention reaches the sidecars of the secondary.
fn intentions_of_the_primary_apply(space: &Namespace, apps: &Namespace) -> anyhow::Result<()> {
    intend(space, "east-web", "west-api", "deny")?;
    ask_until_refused(space, "east-web", URL)?;
    intend(space, "east-web", "west-api", "allow")?;
    ask_until_answered(space, "east-web", URL)?;
    ask_until_answered(apps, "west-web", URL).map(|_| ())
}

/// Without the gateways of a datacenter its services cannot be called. New ones log in at the primary.
fn there_is_no_other_way(space: &Namespace, west: &Namespace) -> anyhow::Result<()> {
    let gateways = "deployment/west-legate-mesh-gateway";
    west.kubectl(&["scale", gateways, "--replicas=0"])?;
    ask_until_refused(space, "east-web", URL)?;
    west.kubectl(&["scale", gateways, "--replicas=1"])?;
    west.rolled_out(gateways)?;
    ask_until_answered(space, "east-web", URL).map(|_| ())
}
