//! The chart with a real Consul server outside of the cluster.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::consul::{Consul, NAME};
use crate::forward::Forward;
use crate::mesh::{self, Release};
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::scenarios::gateway_api::references::{TLS_PORT, certificate};
use crate::scenarios::gateway_api::{PORT, apply, class, delete_class, gateway, outside, rule};
use crate::workload::{
    App, ask_until_answered, ask_until_refused, assert_caller, intend, speaks_http,
};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "the_chart_works_with_a_consul_outside_of_the_cluster",
    run: the_chart_works_with_a_consul_outside_of_the_cluster,
}];

/// The release, its namespace, and the chart's name for the auth method of its pods.
const RELEASE: &str = "outside";
const OUTSIDE: Release = Release {
    name: RELEASE,
    namespace: RELEASE,
};
const METHOD: &str = "outside-legate-k8s-auth-method";

fn the_chart_works_with_a_consul_outside_of_the_cluster(space: &Namespace) -> anyhow::Result<()> {
    // Only one operator may inject the pods of a cluster.
    mesh::OWN.uninstall()?;
    let program = space.cluster.consul.as_deref().context("a consul")?;
    let consul = Consul::start(program, space.cluster)?;
    // Pods in a release's namespace are not injected.
    let release = Namespace::create(space.cluster, RELEASE)?;
    let shown = install(&release, &consul).and_then(|()| services_meet(space, &consul));
    let shown = shown.map_err(|error| error.context(release.describe()).context(consul.log()));
    // Uninstalled also after a failure, because its webhook would block later pods of this cluster.
    let uninstalled = OUTSIDE.uninstall();
    shown.and(uninstalled)?;
    mesh::assert_no_webhook_of(space.cluster, RELEASE)?;
    release.delete()
}

fn services_meet(space: &Namespace, consul: &Consul) -> anyhow::Result<()> {
    speaks_http(space, "outside-api")?;
    App::new("outside-api").run(space)?;
    App::new("outside-web").run(space)?;
    let url = "http://outside-api/";
    ask_until_refused(space, "outside-web", url)?;
    intend(space, "outside-web", "outside-api", "allow")?;
    let answer = ask_until_answered(space, "outside-web", url)?;
    assert_caller(&answer, "outside-web")?;
    let services = consul.services("outside-")?;
    ensure!(services.len() == 4, "{services:?}");

    a_gateway_leads_into_the_mesh(space, consul)?;
    tokens_go_with_their_pod(space, consul)?;

    for app in ["outside-api", "outside-web"] {
        space.kubectl(&["delete", &format!("deployment/{app}")])?;
    }
    eventually("nothing of the pods is left in the catalog", || {
        let services = consul.services("outside-")?;
        ensure!(services.is_empty(), "{services:?}");
        Ok(())
    })?;
    space.kubectl(&["delete", "serviceintentions,servicedefaults", "--all"])?;
    // What is left of gateways: the service that nobody is.
    consul.run(&[
        "config",
        "delete",
        "-kind",
        "service-defaults",
        "-name",
        "legate-unserved",
    ])?;
    for kind in ["service-intentions", "service-defaults"] {
        let entries = consul.run(&["config", "list", "-kind", kind])?;
        ensure!(entries.trim().is_empty(), "{kind}: {entries}");
    }
    Ok(())
}

fn install(space: &Namespace, consul: &Consul) -> anyhow::Result<()> {
    let secret = |name: &str, content: &str| {
        let words = ["create", "secret", "generic", name, content];
        space.kubectl(&words).map(|_| ())
    };
    let file = consul.authority();
    secret(
        "consul-ca",
        &format!("--from-file=ca.pem={}", file.display()),
    )?;
    let token = format!("--from-literal=token={}", consul.token);
    secret("consul-bootstrap", &token)?;
    OUTSIDE.upgrade(&[
        "global.tls.caCert.secretName=consul-ca",
        "global.tls.caCert.secretKey=ca.pem",
        "global.acls.bootstrapToken.secretName=consul-bootstrap",
        "connectInject.apiGateway.enabled=true",
        "externalServers.enabled=true",
        &format!("externalServers.hosts[0]={}", consul.address),
        &format!("externalServers.httpsPort={}", consul.https),
        &format!("externalServers.grpcPort={}", consul.grpc),
        &format!("externalServers.tlsServerName={NAME}"),
        &format!("externalServers.k8sAuthMethodHost={}", consul.kubernetes),
    ])
}

/// What config entries can say of a Gateway is served, and the rest is said of the route and answered.
fn a_gateway_leads_into_the_mesh(space: &Namespace, consul: &Consul) -> anyhow::Result<()> {
    const CLASS: &str = "outside";
    class(space, CLASS, 1)?;
    let plain = "outside-plain";
    outside(plain).run(space)?;
    let to = |name: &str| rule(name, &json!({"name": name, "port": 80}));
    let mut redirected = to("redirected");
    redirected["filters"] = json!([
        {"type": "RequestRedirect", "requestRedirect": {"scheme": "https"}},
    ]);
    redirected["backendRefs"] = json!([]);
    // The API tries methods before headers, and Consul headers alone.
    let mut by_method = to("ordered");
    by_method["matches"][0]["method"] = json!("GET");
    by_method["backendRefs"][0]["name"] = json!("outside-api");
    let mut by_header = to("ordered");
    by_header["matches"][0]["headers"] = json!([{"name": "x-other", "value": "1"}]);
    by_header["backendRefs"][0]["name"] = json!(plain);
    let route = json!({
        "parentRefs": [{"name": "edge"}],
        "rules": [to("outside-api"), redirected, to(plain), by_header, by_method],
    });
    apply(space, "HTTPRoute", "route", &route)?;
    certificate(space)?;
    let tls = json!({
        "name": "tls", "port": TLS_PORT, "protocol": "HTTPS",
        "tls": {"certificateRefs": [{"name": "refers-tls"}]},
    });
    gateway(space, "edge", CLASS, &[tls])?;

    let made = format!("edge-{CLASS}");
    let service = format!("{}--{made}", space.name);
    let url = |path: &str| format!("http://{made}:{PORT}/{path}");
    ask_until_refused(space, "outside-web", &url("outside-api"))?;
    intend(space, &service, "outside-api", "allow")?;
    for path in ["outside-api", "outside-api/"] {
        let answer = ask_until_answered(space, "outside-web", &url(path))?;
        assert_caller(&answer, &service)?;
    }
    let deployment = format!("deployment/{made}");
    for (scheme, port) in [("http", PORT), ("https", TLS_PORT)] {
        let forward = Forward::start(space, &deployment, port)?;
        forward.await_status((scheme, "outside-api"), &[], "200")?;
        forward.await_status((scheme, "ordered"), &["x-other: 1"], "200")?;
        for path in ["redirected", plain] {
            forward.await_status((scheme, path), &[], "503")?;
        }
    }

    let said = space.json(&["get", "httproute/route"])?;
    let conditions = said["status"]["parents"][0]["conditions"].to_string();
    for expected in [
        "PartiallyInvalid",
        "rules[1]: filters.requestRedirect is not served with Consul's servers",
        "backends outside of the mesh are not served",
    ] {
        ensure!(conditions.contains(expected), "{conditions}");
    }
    let entries = consul.run(&["config", "list", "-kind", "http-route"])?;
    ensure!(entries.contains(&service), "{entries}");

    space.kubectl(&["delete", "httproute/route", "gateway/edge"])?;
    eventually("nothing of the gateway is left", || {
        for kind in ["http-route", "api-gateway", "inline-certificate"] {
            let entries = consul.run(&["config", "list", "-kind", kind])?;
            ensure!(entries.trim().is_empty(), "{kind}: {entries}");
        }
        let rules = consul.run(&["acl", "binding-rule", "list"])?;
        ensure!(!rules.contains(&service), "{rules}");
        Ok(())
    })?;
    delete_class(space.cluster, CLASS)
}

/// A sidecar logs out its own token; the token of this login can only be removed by the operator.
fn tokens_go_with_their_pod(space: &Namespace, consul: &Consul) -> anyhow::Result<()> {
    let pods = space.json(&["get", "pods", "--selector=app=outside-web"])?;
    let pod = &pods["items"][0]["metadata"];
    let text = |field: &Value| field.as_str().map(str::to_owned).context("a text");
    let (name, uid) = (text(&pod["name"])?, text(&pod["uid"])?);
    let folder = tempfile::tempdir()?;
    let (bearer, sink) = (folder.path().join("bearer"), folder.path().join("token"));
    let created = space.kubectl(&["create", "token", "outside-web"])?;
    std::fs::write(&bearer, created)?;
    consul.run(&[
        "login",
        &format!("-method={METHOD}"),
        &format!("-bearer-token-file={}", bearer.display()),
        &format!("-token-sink-file={}", sink.display()),
        &format!("-meta=pod={}/{name}", space.name),
        &format!("-meta=pod-uid={uid}"),
    ])?;
    let logins = consul.logins(METHOD, &uid)?;
    ensure!(logins.len() == 2, "{logins:?}");
    space.kubectl(&["delete", "pod", &name])?;
    eventually("no token of the pod is left", || {
        let logins = consul.logins(METHOD, &uid)?;
        ensure!(logins.is_empty(), "{logins:?}");
        Ok(())
    })
}
