//! The sidecar image in the containers that the injector of consul-k8s creates, both as an ordinary
//! container and as a native sidecar.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::mesh;
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{assert_caller, intend, speaks_http};

/// Scenarios with a server of their own.
pub(super) const WITHOUT_MESH: &[Scenario] = &[Scenario {
    name: "sidecars_keep_the_contract_of_consul_k8s",
    run: sidecars_keep_the_contract_of_consul_k8s,
}];

/// Scenarios with TLS and ACLs.
pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "sidecars_of_consul_k8s_log_in_over_tls",
    run: sidecars_of_consul_k8s_log_in_over_tls,
}];

/// The user of sidecars, which exists in no image.
pub(super) const USER: u32 = 5995;

/// How pods reach servers, and how pods are registered with servers.
struct Servers<'a> {
    /// The value of `-addresses`.
    address: &'a str,
    /// Flags for TLS and logins.
    flags: &'a [&'a str],
    /// PEM of the CA that flags refer to by file; may be empty.
    authority: String,
    register: &'a dyn Fn(&Value) -> anyhow::Result<()>,
}

fn sidecars_keep_the_contract_of_consul_k8s(space: &Namespace) -> anyhow::Result<()> {
    space.apply(include_str!("../../manifests/server.yaml"))?;
    space.wait("pod/server", "condition=Ready")?;
    let register = |body: &Value| {
        let answer = space.put("server:8500", "/v1/catalog/register", body);
        answer.map(|_| ())
    };
    let servers = Servers {
        address: "server",
        flags: &["-tls-disabled"],
        authority: String::new(),
        register: &register,
    };
    request_between_pods(space, &servers, "api", "web")?;

    space.wait("pod/api", "condition=Ready")?;
    let probe = ["/usr/local/bin/consul-dataplane", "-check-proxy-health"];
    space.exec("api", "consul-dataplane", &probe)?;
    // Gateways with ports below 1024 start this program and get this capability.
    let mut gateway = sidecar(&servers, false);
    gateway["command"] = json!(["privileged-consul-dataplane"]);
    gateway["args"] = json!(["-version"]);
    gateway["securityContext"]["capabilities"]["add"] = json!(["NET_BIND_SERVICE"]);
    let once = json!({"restartPolicy": "Never"});
    space.apply(&pod("gateway", once, &[gateway]).to_string())?;
    space.wait("pod/gateway", "jsonpath={.status.phase}=Succeeded")
}

fn sidecars_of_consul_k8s_log_in_over_tls(space: &Namespace) -> anyhow::Result<()> {
    let (api, web) = ("contract-api", "contract-web");
    speaks_http(space, api)?;
    intend(space, web, api, "allow")?;
    let release = mesh::namespace(space.cluster);
    let template = "--output=go-template={{index .data \"tls.crt\" | base64decode}}";
    let servers = Servers {
        address: "legate-server.legate.svc",
        flags: &[
            "-credential-type=login",
            "-login-auth-method=legate-k8s-auth-method",
            "-login-bearer-token-path=/var/run/secrets/kubernetes.io/serviceaccount/token",
            "-tls-server-name=legate-server.legate.svc",
            "-ca-certs=/consul/connect-inject/consul-ca.pem",
        ],
        authority: release.kubectl(&["get", "secret/legate-ca-cert", template])?,
        register: &|body| mesh::put(space.cluster, "/v1/catalog/register", body),
    };
    let answer = request_between_pods(space, &servers, api, web)?;
    assert_caller(&answer, web)?;
    let tokens_of = |pod: &str| -> anyhow::Result<usize> {
        let tokens = mesh::get(space.cluster, "/v1/acl/tokens")?;
        let pod = format!("{}/{pod}", space.name);
        let tokens = tokens.as_array().context("tokens are a list")?.iter();
        let of_the_pod = tokens.filter(|token| token["Description"].to_string().contains(&pod));
        Ok(of_the_pod.count())
    };
    ensure!(tokens_of(api)? == 1, "{api} has not logged in");
    // Its sidecar exited by itself.
    ensure!(tokens_of(web)? == 0, "{web} has not logged out");
    Ok(())
}

/// With all restrictions: `web` sends a request to `api` through both sidecars and exits, and then its
/// own sidecar, a native one. Returns the response.
fn request_between_pods(
    space: &Namespace,
    servers: &Servers,
    api: &str,
    web: &str,
) -> anyhow::Result<Value> {
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    space.kubectl(&["label", "namespace", &space.name, restricted])?;
    for name in [api, web] {
        space.kubectl(&["create", "serviceaccount", name])?;
    }
    let annotated = |mut pod: Value| {
        pod["metadata"]["annotations"]["authority"] = json!(servers.authority);
        pod.to_string()
    };
    let account = |name: &str| json!({"serviceAccountName": name});
    let containers = [sidecar(servers, false), app(&["serve", "--name", api])];
    space.apply(&annotated(pod(api, account(api), &containers)))?;
    let asks = app(&["get", "--retry=60", "http://127.0.0.1:1234/"]);
    let mut once = account(web);
    once["restartPolicy"] = json!("Never");
    once["initContainers"] = json!([sidecar(servers, true)]);
    space.apply(&annotated(pod(web, once, &[asks])))?;
    let upstream = json!([{"DestinationName": api, "LocalBindPort": 1234}]);
    register(space, servers, api, &json!([]))?;
    register(space, servers, web, &upstream)?;

    space.wait(&format!("pod/{web}"), "jsonpath={.status.phase}=Succeeded")?;
    let log = space.kubectl(&["logs", web, "--container=app"])?;
    let answer: Value = serde_json::from_str(&log)?;
    ensure!(answer["instance"] == api, "{answer}");
    let ended = space.json(&["get", "pod", web])?;
    let ended = &ended["status"]["initContainerStatuses"][0];
    ensure!(ended["state"]["terminated"]["exitCode"] == 0, "{ended}");
    ensure!(ended["restartCount"] == 0, "{ended}");
    Ok(answer)
}

/// Registers a pod as the endpoints controller does.
fn register(
    space: &Namespace,
    servers: &Servers,
    name: &str,
    upstreams: &Value,
) -> anyhow::Result<()> {
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
        (servers.register)(&body)?;
    }
    Ok(())
}

pub(super) fn pod(name: &str, more: Value, containers: &[Value]) -> Value {
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
                "downwardAPI": {"items": [
                    {
                        "path": "proxyid",
                        "fieldRef": {"fieldPath": "metadata.annotations['proxyid']"},
                    },
                    {
                        "path": "consul-ca.pem",
                        "fieldRef": {"fieldPath": "metadata.annotations['authority']"},
                    },
                ]},
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

pub(super) fn app(arguments: &[&str]) -> Value {
    json!({
        "name": "app",
        "image": "localhost/mesh-app:test",
        "imagePullPolicy": "Never",
        "args": arguments,
        "securityContext": bare(),
    })
}

/// The container of consul-k8s, verbatim except for the server's name and the grace period. Its id and
/// the CA are where its init container would have written them.
fn sidecar(servers: &Servers, native: bool) -> Value {
    let from = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let mut container = json!({
        "name": "consul-dataplane",
        "image": "localhost/legate-dataplane:test",
        "imagePullPolicy": "Never",
        "args": [
            "-addresses",
            servers.address,
            "-envoy-admin-bind-address=127.0.0.1",
            "-consul-dns-bind-addr=127.0.0.1",
            "-xds-bind-addr=127.0.0.1",
            "-grpc-port=8502",
            "-proxy-service-id-path=/consul/connect-inject/proxyid",
            "-log-level=info",
            "-log-json=false",
            "-envoy-concurrency=2",
            "-graceful-addr=127.0.0.1",
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
    let flags = container["args"].as_array_mut().expect("a list");
    flags.extend(servers.flags.iter().map(|flag| json!(flag)));
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
