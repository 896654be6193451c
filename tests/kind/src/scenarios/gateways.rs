//! Gateways by values of the chart, under load by clients that reuse their connections.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::mesh;
use crate::namespace::Namespace;
use crate::retry::retry;
use crate::run::Scenario;
use crate::workload::{App, Load, intend, resource, speaks_http};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "gateways_lose_no_request",
    run: gateways_lose_no_request,
}];

/// The node of a service outside of the mesh.
const OUTSIDE: &str = "outside";
/// The number of requests during all changes of a gateway, and the time for them on a busy machine.
const REQUESTS: u64 = 20_000;
const TIME: Duration = Duration::from_secs(300);

/// A gateway, whose name is that of its kind.
struct Gateway {
    name: &'static str,
    /// The chart's values for all gateways of the kind, and those for each.
    values: [&'static str; 2],
    /// The service behind it that its config entry names, if it has one.
    service: Option<&'static str>,
    /// Starts what is on both of its sides.
    load: for<'a> fn(&'a Namespace<'a>) -> anyhow::Result<Load<'a>>,
}

const GATEWAYS: [Gateway; 3] = [
    Gateway {
        name: "ingress-gateway",
        values: ["ingressGateways", "ingressGateways.defaults"],
        service: Some("entered-api"),
        load: ingress,
    },
    Gateway {
        name: "mesh-gateway",
        values: ["meshGateway", "meshGateway"],
        service: None,
        load: between,
    },
    Gateway {
        name: "terminating-gateway",
        values: ["terminatingGateways", "terminatingGateways.defaults"],
        service: Some("left-api"),
        load: terminating,
    },
];

fn gateways_lose_no_request(space: &Namespace) -> anyhow::Result<()> {
    let values: Vec<String> = GATEWAYS.iter().map(Gateway::values).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let release = mesh::namespace(space.cluster);
    // All at once, because releases are not upgraded concurrently.
    let installed = mesh::OWN.upgrade(&values);
    let changed = installed.and_then(|()| {
        std::thread::scope(|scope| {
            let all = GATEWAYS.each_ref();
            let all = all.map(|gateway| scope.spawn(|| gateway.is_changed_under_load(space)));
            let all = all.map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a panic"))));
            all.into_iter().collect::<anyhow::Result<()>>()
        })
    });
    let changed = changed.map_err(|error| error.context(release.describe()));
    // Also after a failure.
    let outside = json!({"Node": OUTSIDE});
    let ended = mesh::put(space.cluster, "/v1/catalog/deregister", &outside);
    let ended = ended.and_then(|()| mesh::OWN.upgrade(&[]));
    changed.and(ended)
}

impl Gateway {
    /// Values with which the chart runs it.
    fn values(&self) -> String {
        let [all, each] = self.values;
        // Nothing gives a LoadBalancer an address, and a node has two cores for all gateways.
        format!(
            "{all}.enabled=true,{each}.service.type=ClusterIP,{each}.resources.requests.cpu=10m"
        )
    }

    fn is_changed_under_load(&self, space: &Namespace) -> anyhow::Result<()> {
        let load = (self.load)(space).context(self.name)?;
        self.is_listed(space).context(self.name)?;
        let release = mesh::namespace(space.cluster);
        let changed = self.change(&release, &load);
        changed.context(self.name)
    }

    /// Its entry is stored, and the servers know its service.
    fn is_listed(&self, space: &Namespace) -> anyhow::Result<()> {
        let name = self.name;
        if self.service.is_some() {
            // Such as `ingressgateways/ingress-gateway`.
            let plural = format!("{}s", name.replace('-', ""));
            space.wait(&format!("{plural}/{name}"), "condition=Synced")?;
        }
        let path = format!("/v1/catalog/gateway-services/{name}");
        let listed = mesh::get(space.cluster, &path)?;
        let links = listed.as_array().context("links are a list")?;
        let of = |link: &Value| (link["GatewayKind"].clone(), link["Service"]["Name"].clone());
        let found: Vec<_> = links.iter().map(of).collect();
        let expected = self.service.map(|service| (json!(name), json!(service)));
        ensure!(found == Vec::from_iter(expected), "{listed}");
        Ok(())
    }

    fn change(&self, release: &Namespace, load: &Load) -> anyhow::Result<()> {
        let deployment = format!("deployment/legate-{}", self.name);
        let pods = || release.pods(&format!("component={}", self.name));
        // Waits until others have replaced these pods, and they have ended.
        let gone = |old: &[String]| {
            release.rolled_out(&deployment)?;
            let mut old = old.iter();
            old.try_for_each(|pod| release.wait(&format!("pod/{pod}"), "delete"))
        };
        let scale = |replicas: &str| release.kubectl(&["scale", &deployment, replicas]);

        let first = pods()?;
        ensure!(first.len() == 2, "{first:?}");
        release.kubectl(&["rollout", "restart", &deployment])?;
        gone(&first)?;
        load.without_failure().context("a rolling update")?;

        let second = pods()?;
        scale("--replicas=1")?;
        let left = eventually("one pod is left", || {
            let left = pods()?;
            ensure!(left.len() == 1, "{left:?}");
            Ok(left)
        })?;
        let ended: Vec<String> = second.into_iter().filter(|pod| *pod != left[0]).collect();
        gone(&ended)?;
        load.without_failure().context("a smaller scale")?;

        scale("--replicas=2")?;
        release.rolled_out(&deployment)?;
        release.kubectl(&["delete", "pod", "--wait=false", &left[0]])?;
        gone(&left)?;
        retry(TIME, "enough requests are answered", || {
            let seen = load.without_failure().context("a deleted pod")?;
            let answers: u64 = seen.answers.values().sum();
            ensure!(answers >= REQUESTS, "{answers} of {REQUESTS}");
            Ok(())
        })?;

        // Requests that a killed pod has in hand are lost.
        let pods = pods()?;
        let pod = pods.first().context("there is a pod")?;
        release.kubectl(&["delete", "pod", pod, "--grace-period=0", "--force"])?;
        release.rolled_out(&deployment)?;
        eventually("nothing fails any more", || {
            load.reset()?;
            sleep(Duration::from_secs(2));
            load.without_failure().map(|_| ())
        })?;
        // It leaves the processors to the others.
        load.stop()
    }
}

/// The address of a Service.
fn address(space: &Namespace, service: &str) -> anyhow::Result<String> {
    let service = space.json(&["get", "service", service])?;
    let address = service["spec"]["clusterIP"].as_str();
    Ok(address.context("a Service has an address")?.to_owned())
}

/// A load of clients that use a connection for so many requests; 0: until it is closed.
fn clients(name: &str, per_connection: &str, url: &str) -> App {
    let clients = ["load", "--clients", "3", "--per-connection", per_connection];
    App::new(name).arguments(&[&clients[..], &[url]].concat())
}

/// Callers outside of the mesh.
fn ingress<'a>(space: &'a Namespace<'a>) -> anyhow::Result<Load<'a>> {
    let listener = json!({
        "port": 8080, "protocol": "http", "services": [{"name": "entered-api", "hosts": ["*"]}],
    });
    let spec = json!({"listeners": [listener]});
    speaks_http(space, "entered-api")?;
    space.apply(&resource("IngressGateway", "ingress-gateway", &spec))?;
    intend(space, "ingress-gateway", "entered-api", "allow")?;
    App::new("entered-api").run(space)?;
    let release = mesh::namespace(space.cluster);
    let url = format!(
        "http://{}:8080/",
        address(&release, "legate-ingress-gateway")?
    );
    let clients = clients("entered-load", "0", &url);
    Load::of(space, clients.annotation("connect-inject", "false"))
}

/// Callers whose sidecar connects to the gateway, as those of other networks do. Sidecars do so by
/// themselves only for services elsewhere.
///
/// A gateway does not see requests and cannot ask for the end of a connection, so the clients end theirs.
fn between<'a>(space: &'a Namespace<'a>) -> anyhow::Result<Load<'a>> {
    let release = mesh::namespace(space.cluster);
    let address = address(&release, "legate-mesh-gateway")?;
    let address = json!({"address": address, "portValue": 443});
    let endpoint = json!({"endpoint": {"address": {"socketAddress": address}}});
    let cluster = json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": "through-the-gateway", "type": "STATIC", "connectTimeout": "5s",
        "loadAssignment": {
            "clusterName": "through-the-gateway", "endpoints": [{"lbEndpoints": [endpoint]}],
        },
    });
    let upstream = json!({"name": "passed-api", "envoyClusterJSON": cluster.to_string()});
    let spec = json!({"upstreamConfig": {"overrides": [upstream]}});
    space.apply(&resource("ServiceDefaults", "passed-load", &spec))?;
    space.wait("servicedefaults/passed-load", "condition=Synced")?;
    intend(space, "passed-load", "passed-api", "allow")?;
    App::new("passed-api").run(space)?;
    let clients = clients("passed-load", "200", "http://127.0.0.1:1234/");
    Load::of(
        space,
        clients.annotation("connect-service-upstreams", "passed-api:1234"),
    )
}

/// Callers in the mesh of a service outside of it.
fn terminating<'a>(space: &'a Namespace<'a>) -> anyhow::Result<Load<'a>> {
    let outside = App::new("left-api").annotation("connect-inject", "false");
    outside.run(space)?;
    let registration = json!({
        "Node": OUTSIDE, "Address": address(space, "left-api")?,
        "NodeMeta": {"external-node": "true"},
        "Service": {"Service": "left-api", "Port": 80},
    });
    mesh::put(space.cluster, "/v1/catalog/register", &registration)?;
    may_act_as("terminating-gateway", "left-api", space)?;
    speaks_http(space, "left-api")?;
    let spec = json!({"services": [{"name": "left-api"}]});
    space.apply(&resource(
        "TerminatingGateway",
        "terminating-gateway",
        &spec,
    ))?;
    intend(space, "left-load", "left-api", "allow")?;
    let url = "http://left-api.virtual.consul/";
    Load::of(space, clients("left-load", "0", url))
}

/// Adds the rights on a service to a gateway's role.
fn may_act_as(gateway: &str, service: &str, space: &Namespace) -> anyhow::Result<()> {
    let path = format!("/v1/acl/role/name/legate-{gateway}-acl-role");
    let mut role = mesh::get(space.cluster, &path)?;
    role["ServiceIdentities"] = json!([{"ServiceName": service}]);
    let id = role["ID"].as_str().context("a role has an ID")?;
    mesh::put(space.cluster, &format!("/v1/acl/role/{id}"), &role)
}
