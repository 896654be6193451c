//! The images by themselves, in a real container runtime: without a chart, without an injector. The
//! sidecars are as the injector of consul-k8s writes them.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::namespace::Namespace;
use crate::run::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "the_node_is_ready_and_answers_names",
        run: the_node_is_ready_and_answers_names,
    },
    Scenario {
        name: "sidecars_keep_the_contract_of_consul_k8s",
        run: sidecars_keep_the_contract_of_consul_k8s,
    },
    Scenario {
        name: "a_pod_redirects_its_traffic_with_one_capability",
        run: a_pod_redirects_its_traffic_with_one_capability,
    },
];

/// The user of sidecars, whom no image knows.
const USER: u32 = 5995;

fn the_node_is_ready_and_answers_names(space: &Namespace) -> anyhow::Result<()> {
    let nodes = space.cluster.json(&["get", "nodes"])?;
    let nodes = nodes["items"].as_array().context("nodes are a list")?;
    for node in nodes {
        let conditions = node["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let ready = conditions.any(|is| is["type"] == "Ready" && is["status"] == "True");
        ensure!(ready, "{node}");
    }
    space.apply(&pod("app", json!({}), &[app(&["serve", "--name=app"])]).to_string())?;
    space.kubectl(&[
        "expose",
        "pod/app",
        "--name=by-name",
        "--port=80",
        "--target-port=8080",
    ])?;
    space.wait("pod/app", "condition=Ready")?;
    let by_name = ["mesh-app", "get", "--retry=30", "http://by-name/"];
    let answer: Value = serde_json::from_str(&space.exec("app", "app", &by_name)?)?;
    ensure!(answer["instance"] == "app", "{answer}");
    Ok(())
}

/// A sidecar in each of the two ways there are, all of it restricted: `web` asks `api` through both and
/// ends then, and its sidecar after it.
fn sidecars_keep_the_contract_of_consul_k8s(space: &Namespace) -> anyhow::Result<()> {
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    let name = &space.name;
    space.kubectl(&["label", "namespace", name, restricted])?;
    space.apply(include_str!("../../manifests/server.yaml"))?;
    space.wait("pod/server", "condition=Ready")?;

    let api = [sidecar(false), app(&["serve", "--name=api"])];
    space.apply(&pod("api", json!({}), &api).to_string())?;
    let asks = app(&["get", "--retry=60", "http://127.0.0.1:1234/"]);
    let once = json!({"restartPolicy": "Never", "initContainers": [sidecar(true)]});
    space.apply(&pod("web", once, &[asks]).to_string())?;
    let upstream = json!([{"DestinationName": "api", "LocalBindPort": 1234}]);
    register(space, "api", &json!([]))?;
    register(space, "web", &upstream)?;

    space.wait("pod/web", "jsonpath={.status.phase}=Succeeded")?;
    let log = space.kubectl(&["logs", "web", "--container=app"])?;
    let answer: Value = serde_json::from_str(&log)?;
    ensure!(answer["instance"] == "api", "{answer}");
    let ended = space.json(&["get", "pod/web"])?;
    let ended = &ended["status"]["initContainerStatuses"][0];
    ensure!(ended["state"]["terminated"]["exitCode"] == 0, "{ended}");
    ensure!(ended["restartCount"] == 0, "{ended}");

    space.wait("pod/api", "condition=Ready")?;
    let probe = ["/usr/local/bin/consul-dataplane", "-check-proxy-health"];
    space.exec("api", "consul-dataplane", &probe)?;
    // Gateways with ports below 1024 are started by this name, and are given this capability.
    let mut gateway = sidecar(false);
    gateway["command"] = json!(["privileged-consul-dataplane"]);
    gateway["args"] = json!(["-version"]);
    gateway["securityContext"]["capabilities"]["add"] = json!(["NET_BIND_SERVICE"]);
    let once = json!({"restartPolicy": "Never"});
    space.apply(&pod("gateway", once, &[gateway]).to_string())?;
    space.wait("pod/gateway", "jsonpath={.status.phase}=Succeeded")
}

/// The init container of redirection, in place of sidecars two servers under their user: one stands
/// where calls of the application arrive, the other where those from outside do.
fn a_pod_redirects_its_traffic_with_one_capability(space: &Namespace) -> anyhow::Result<()> {
    let config = json!({
        "ProxyUserID": USER.to_string(),
        "ProxyInboundPort": 20000,
        "ProxyOutboundPort": 15001,
        "ExcludeInboundPorts": ["8081"],
    });
    let redirect = json!({
        "name": "mesh-redirect",
        "image": "localhost/legate-k8s:test",
        "imagePullPolicy": "Never",
        "args": ["redirect"],
        "env": [{"name": "CONSUL_REDIRECT_TRAFFIC_CONFIG", "value": config.to_string()}],
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        },
    });
    let proxy = |name: &str, port: u16| {
        let mut proxy = app(&["serve", "--name", name, "--port", &port.to_string()]);
        proxy["name"] = json!(name);
        proxy["securityContext"]["runAsUser"] = json!(USER);
        proxy
    };
    let containers = [
        proxy("inbound", 20000),
        proxy("outbound", 15001),
        app(&["serve", "--name=app", "--port=8081"]),
    ];
    let pod_of = pod(
        "redirected",
        json!({"initContainers": [redirect]}),
        &containers,
    );
    space.apply(&pod_of.to_string())?;
    let other = pod("other", json!({}), &[app(&["serve", "--name=other"])]);
    space.apply(&other.to_string())?;
    space.wait("pod/redirected", "condition=Ready")?;
    space.wait("pod/other", "condition=Ready")?;
    let address =
        |pod: &str| space.kubectl(&["get", "pod", pod, "--output=jsonpath={.status.podIP}"]);
    let (redirected, other) = (address("redirected")?, address("other")?);
    for (from, container, url, expected) in [
        (
            "redirected",
            "app",
            format!("http://{other}:8080/"),
            "outbound",
        ),
        // The sidecar's own calls go where they are sent to.
        (
            "redirected",
            "outbound",
            format!("http://{other}:8080/"),
            "other",
        ),
        (
            "redirected",
            "app",
            "http://127.0.0.1:8081/".to_owned(),
            "app",
        ),
        (
            "other",
            "app",
            format!("http://{redirected}:8080/"),
            "inbound",
        ),
        ("other", "app", format!("http://{redirected}:8081/"), "app"),
    ] {
        let answer = space.exec(from, container, &["mesh-app", "get", &url])?;
        let answer: Value = serde_json::from_str(&answer)?;
        ensure!(
            answer["instance"] == expected,
            "{from} {container} {url}: {answer}"
        );
    }
    Ok(())
}

/// What the endpoints controller registers of a pod.
fn register(space: &Namespace, name: &str, upstreams: &Value) -> anyhow::Result<()> {
    let address = eventually("the pod has an address", || {
        let pod = space.json(&["get", "pod", name])?;
        let address = pod["status"]["podIP"].as_str().map(str::to_owned);
        let node = pod["spec"]["nodeName"].as_str().map(str::to_owned);
        address.zip(node).context("it has none yet")
    });
    let (address, node) = address?;
    let proxy = json!({
        "DestinationServiceName": name,
        "DestinationServiceID": name,
        "LocalServicePort": 8080,
        "Upstreams": upstreams,
    });
    for service in [
        json!({"ID": name, "Service": name, "Address": address, "Port": 8080}),
        json!({
            "ID": format!("{name}-sidecar-proxy"),
            "Service": format!("{name}-sidecar-proxy"),
            "Kind": "connect-proxy",
            "Address": address,
            "Port": 20000,
            "Proxy": proxy,
        }),
    ] {
        let node = format!("{node}-virtual");
        let body = json!({"Node": node, "Address": "127.0.0.1", "Service": service});
        space.put("server:8500", "/v1/catalog/register", &body)?;
    }
    Ok(())
}

fn pod(name: &str, more: Value, containers: &[Value]) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "securityContext": {
                "runAsNonRoot": true,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": [{
                "name": "consul-connect-inject-data",
                "downwardAPI": {"items": [{
                    "path": "proxyid",
                    "fieldRef": {"fieldPath": "metadata.annotations['proxyid']"},
                }]},
            }],
            "containers": containers,
        },
    });
    let id = format!("{name}-sidecar-proxy");
    pod["metadata"]["annotations"] = json!({"proxyid": id});
    for (name, value) in more.as_object().into_iter().flatten() {
        pod["spec"][name] = value.clone();
    }
    pod
}

fn app(arguments: &[&str]) -> Value {
    json!({
        "name": "app",
        "image": "localhost/mesh-app:test",
        "imagePullPolicy": "Never",
        "args": arguments,
        "securityContext": bare(),
    })
}

/// The container of consul-k8s with TLS and access control off, word for word but for the server's name
/// and the grace period. Its id is where its init container would have written it.
fn sidecar(native: bool) -> Value {
    let from = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let mut container = json!({
        "name": "consul-dataplane",
        "image": "localhost/legate-dataplane:test",
        "imagePullPolicy": "Never",
        "args": [
            "-addresses",
            "server",
            "-envoy-admin-bind-address=127.0.0.1",
            "-consul-dns-bind-addr=127.0.0.1",
            "-xds-bind-addr=127.0.0.1",
            "-grpc-port=8502",
            "-proxy-service-id-path=/consul/connect-inject/proxyid",
            "-log-level=info",
            "-log-json=false",
            "-envoy-concurrency=2",
            "-graceful-addr=127.0.0.1",
            "-tls-disabled",
            "-graceful-port=20600",
            "-shutdown-drain-listeners",
            "-shutdown-grace-period-seconds=1",
            "-graceful-shutdown-path=/graceful_shutdown",
            "-startup-grace-period-seconds=0",
            "-graceful-startup-path=/graceful_startup",
            "-telemetry-prom-scrape-path=/metrics",
            "-consul-dns-bind-port=8600",
        ],
        "env": [
            {"name": "TMPDIR", "value": "/consul/connect-inject"},
            {"name": "NODE_NAME", "valueFrom": from("spec.nodeName")},
            {"name": "DP_SERVICE_NODE_NAME", "value": "$(NODE_NAME)-virtual"},
            {"name": "POD_NAME", "valueFrom": from("metadata.name")},
            {"name": "POD_NAMESPACE", "valueFrom": from("metadata.namespace")},
            {"name": "POD_UID", "valueFrom": from("metadata.uid")},
            {"name": "DP_CREDENTIAL_LOGIN_META", "value": "pod=$(POD_NAMESPACE)/$(POD_NAME)"},
            {"name": "DP_CREDENTIAL_LOGIN_META1", "value": "pod=$(POD_NAMESPACE)/$(POD_NAME)"},
            {"name": "DP_CREDENTIAL_LOGIN_META2", "value": "pod-uid=$(POD_UID)"},
        ],
        "volumeMounts": [
            {"name": "consul-connect-inject-data", "mountPath": "/consul/connect-inject"},
        ],
        "readinessProbe": {"tcpSocket": {"port": 20000}, "initialDelaySeconds": 1},
        "securityContext": bare(),
    });
    container["securityContext"]["runAsUser"] = json!(USER);
    container["securityContext"]["runAsGroup"] = json!(USER);
    container["securityContext"]["readOnlyRootFilesystem"] = json!(true);
    if native {
        container["restartPolicy"] = json!("Always");
        container["startupProbe"] = json!({
            "exec": {"command": ["/usr/local/bin/consul-dataplane", "-check-proxy-health"]},
            "initialDelaySeconds": 1,
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 10,
        });
    }
    container
}

fn bare() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
}
