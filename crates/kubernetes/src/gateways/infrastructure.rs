//! The objects that are made for a gateway: its proxies, the Service in front of them, their account
//! and the certificates by which they know the servers. Pure.
//!
//! Their owner is the Gateway, so Kubernetes removes them with it. They are applied by the server with
//! a field manager of its own: what others have written into other fields stays. Nothing of a pod
//! depends on the gateway's listeners, which change without a restart.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use legate_gateway_api::{InfrastructurePlan, Key};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::class_config::{ClassConfig, ServiceType};
use super::kinds::{GROUP, VERSION};
use crate::annotations::{MANAGED_BY, MANAGED_BY_LEGATE, PREFIX};
use crate::inject::{Installation, set_pull_policy};

/// The names in labels and objects have at most this many characters (RFC 1123).
const LABEL: usize = 63;
/// Envoy's port for `/ready`.
const READY_PORT: u16 = 21000;
/// The user of the sidecar's image.
const USER: u32 = 100;
const GROUP_OF_USER: u32 = 1000;
/// How long a pod may take to end.
const TERMINATION_SECONDS: u32 = 60;
/// How long connections are still accepted at the beginning of it: endpoints are updated meanwhile.
const ACCEPTED_SECONDS: u32 = 5;
const CA_FOLDER: &str = "/consul/tls/ca";
const TOKEN_FOLDER: &str = "/consul/token";
const TOKEN_SECONDS: u32 = 3600;

/// What identifies a Gateway, and what is made for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GatewayMeta {
    pub(super) key: Key,
    pub(super) uid: String,
    pub(super) class: String,
    pub(super) annotations: BTreeMap<String, String>,
}

/// An object, and its kind's version, name and plural.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Manifest {
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    pub(super) body: Value,
}

impl GatewayMeta {
    /// The name of everything that is made for the gateway: its own with that of its class.
    pub(super) fn name(&self) -> String {
        shortened(&format!("{}-{}", self.key.name, self.class), &self.key)
    }

    /// The name of the gateway's service in the mesh. The binding rule of its login makes the same
    /// name, from the namespace and the name of its account.
    pub(super) fn service(&self) -> String {
        format!("{}--{}", self.key.namespace, self.name())
    }
}

/// A name that is a label in DNS: a longer one, or one with dots, gets a digest for its end.
fn shortened(name: &str, key: &Key) -> String {
    const DIGEST: usize = 8;
    if name.len() <= LABEL && !name.contains('.') {
        return name.to_owned();
    }
    let digest = Sha256::digest(format!("{key}/{name}"));
    let mut end = String::with_capacity(DIGEST);
    for byte in &digest[..DIGEST / 2] {
        // Writing to a String cannot fail.
        let _ = write!(end, "{byte:02x}");
    }
    let name = name.replace('.', "-");
    let start = name[..name.len().min(LABEL - 1 - DIGEST)].trim_end_matches('-');
    format!("{start}-{end}")
}

impl Manifest {
    /// The object's name.
    pub(super) fn name(&self) -> &str {
        self.body["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// Everything that is made for a gateway.
pub(super) fn manifests(
    installation: &Installation,
    gateway: &GatewayMeta,
    (plan, config): (&InfrastructurePlan, &ClassConfig),
) -> Vec<Manifest> {
    let mut all = vec![Manifest {
        version: "v1",
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        body: json!({"metadata": metadata(gateway, plan)}),
    }];
    if let Some(pem) = &installation.ca_certs {
        all.push(Manifest {
            version: "v1",
            kind: "ConfigMap",
            plural: "configmaps",
            body: json!({"metadata": metadata(gateway, plan), "data": {"tls.crt": pem}}),
        });
    }
    all.push(Manifest {
        version: "apps/v1",
        kind: "Deployment",
        plural: "deployments",
        body: deployment(installation, gateway, (plan, config)),
    });
    all.push(Manifest {
        version: "v1",
        kind: "Service",
        plural: "services",
        body: service(gateway, plan, config),
    });
    all
}

fn metadata(gateway: &GatewayMeta, plan: &InfrastructurePlan) -> Value {
    let mut metadata = json!({
        "name": gateway.name(),
        "namespace": gateway.key.namespace,
        "labels": labels(gateway, plan),
        "ownerReferences": [{
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "Gateway",
            "name": gateway.key.name,
            "uid": gateway.uid,
            "controller": true,
            "blockOwnerDeletion": false,
        }],
    });
    if !plan.annotations.is_empty() {
        metadata["annotations"] = json!(plan.annotations);
    }
    metadata
}

fn labels(gateway: &GatewayMeta, plan: &InfrastructurePlan) -> BTreeMap<String, String> {
    let mut labels = plan.labels.clone();
    labels.extend(selector(gateway));
    labels.insert(
        format!("{GROUP}/gateway-class-name"),
        shortened(&gateway.class, &gateway.key),
    );
    labels
}

/// Selects the gateway's pods.
fn selector(gateway: &GatewayMeta) -> BTreeMap<String, String> {
    let name = shortened(&gateway.key.name, &gateway.key);
    [(format!("{GROUP}/gateway-name"), name)].into()
}

fn deployment(
    installation: &Installation,
    gateway: &GatewayMeta,
    (plan, config): (&InfrastructurePlan, &ClassConfig),
) -> Value {
    let mut pod_labels = labels(gateway, plan);
    // The catalog sync watches only pods with this label.
    pod_labels.insert(MANAGED_BY.to_owned(), MANAGED_BY_LEGATE.to_owned());
    let mut annotations = plan.annotations.clone();
    for (name, value) in [
        ("connect-inject", "false"),
        ("gateway-kind", "api-gateway"),
        ("gateway-consul-service-name", &gateway.service()),
    ] {
        annotations.insert(format!("{PREFIX}{name}"), value.to_owned());
    }
    let mut deployment = json!({
        "metadata": metadata(gateway, plan),
        "spec": {
            "selector": {"matchLabels": selector(gateway)},
            // There are never fewer than the wanted replicas.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"},
            },
            "template": {
                "metadata": {"labels": pod_labels, "annotations": annotations},
                "spec": pod(installation, gateway, config),
            },
        },
    });
    // Otherwise it belongs to an autoscaler, or to whoever scales by hand.
    if let Some(instances) = config.deployment.default_instances {
        deployment["spec"]["replicas"] = json!(instances);
    }
    deployment
}

fn pod(installation: &Installation, gateway: &GatewayMeta, config: &ClassConfig) -> Value {
    let mut mounts = Vec::new();
    let mut volumes = Vec::new();
    if installation.ca_certs.is_some() {
        mounts.push(json!({"name": "ca", "mountPath": CA_FOLDER, "readOnly": true}));
        volumes.push(json!({"name": "ca", "configMap": {"name": gateway.name()}}));
    }
    if installation.servers.login_auth_method.is_some() {
        mounts.push(json!({"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": true}));
        let token = json!({"path": "token", "expirationSeconds": TOKEN_SECONDS});
        volumes.push(json!({
            "name": "token",
            "projected": {"sources": [{"serviceAccountToken": token}]},
        }));
    }
    let mut container = container(installation, mounts);
    if !config.deployment.resources.is_empty() {
        container["resources"] = json!(config.deployment.resources);
    }
    let mut pod = json!({
        "serviceAccountName": gateway.name(),
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": TERMINATION_SECONDS,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": GROUP_OF_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
            // For ports below 1024, without privileges. Kubernetes counts it among the safe ones.
            "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}],
        },
        "containers": [container],
        "volumes": volumes,
    });
    if !config.node_selector.is_empty() {
        pod["nodeSelector"] = json!(config.node_selector);
    }
    if !config.tolerations.is_empty() {
        pod["tolerations"] = json!(config.tolerations);
    }
    pod
}

fn container(installation: &Installation, mounts: Vec<Value>) -> Value {
    let mut container = json!({
        "name": "api-gateway",
        "image": installation.sidecars.dataplane_image,
        "args": arguments(installation),
        "env": environment(),
        "ports": [{"name": "ready", "containerPort": READY_PORT, "protocol": "TCP"}],
        // Once Envoy has accepted its whole configuration.
        "startupProbe": {
            "exec": {"command": ["/usr/local/bin/legate-dataplane", "-status"]},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 300,
        },
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": READY_PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 2,
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    });
    if installation.cluster.sleep_hooks {
        container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": ACCEPTED_SECONDS}}});
    }
    set_pull_policy(&mut container, installation);
    container
}

/// Arguments of the proxy. When the pod ends, it drains, and ends as soon as no connection is open.
fn arguments(installation: &Installation) -> Vec<String> {
    let servers = &installation.servers;
    let mut arguments = vec![
        "-addresses".to_owned(),
        servers.http.server_addresses.clone(),
        format!("-grpc-port={}", servers.server_grpc_port),
        format!("-log-level={}", installation.log_level),
        format!("-log-json={}", installation.log_json),
        format!("-envoy-ready-bind-port={READY_PORT}"),
        "-shutdown-drain-listeners".to_owned(),
        "-shutdown-end-when-idle".to_owned(),
        format!(
            "-shutdown-grace-period-seconds={}",
            TERMINATION_SECONDS - ACCEPTED_SECONDS - 5
        ),
        "-telemetry-prom-scrape-path=/metrics".to_owned(),
    ];
    let mut push = |argument: String| arguments.push(argument);
    if servers.skip_server_watch {
        push("-server-watch-disabled=true".to_owned());
    }
    let tenants = installation.tenants();
    let namespace = tenants.default_namespace();
    if let Some(method) = &servers.login_auth_method {
        push("-credential-type=login".to_owned());
        push(format!("-login-auth-method={method}"));
        push(format!("-login-bearer-token-path={TOKEN_FOLDER}/token"));
        if let Some(namespace) = &namespace {
            push(format!("-login-namespace={namespace}"));
        }
        if let Some(partition) = tenants.partition() {
            push(format!("-login-partition={partition}"));
        }
    }
    if let Some(namespace) = &namespace {
        push(format!("-service-namespace={namespace}"));
    }
    if let Some(partition) = tenants.partition() {
        push(format!("-service-partition={partition}"));
    }
    if !servers.http.tls {
        push("-tls-disabled".to_owned());
        return arguments;
    }
    let name = servers.http.tls_server_name.as_ref();
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        push(format!("-tls-server-name={name}"));
    }
    if installation.ca_certs.is_some() {
        push(format!("-ca-certs={CA_FOLDER}/tls.crt"));
    }
    arguments
}

/// The catalog sync registers the pod under its name.
fn environment() -> Vec<Value> {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let value = |name: &str, value: &str| json!({"name": name, "value": value});
    // Variables are defined before their references.
    vec![
        field("NODE_NAME", "spec.nodeName"),
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_UID", "metadata.uid"),
        field("HOST_IP", "status.hostIP"),
        field("DP_ENVOY_READY_BIND_ADDRESS", "status.podIP"),
        value("DP_PROXY_SERVICE_ID", "$(POD_NAME)"),
        value("DP_SERVICE_NODE_NAME", "$(NODE_NAME)-virtual"),
        value(
            "DP_CREDENTIAL_LOGIN_META1",
            "pod=$(POD_NAMESPACE)/$(POD_NAME)",
        ),
        value("DP_CREDENTIAL_LOGIN_META2", "component=api-gateway"),
        value("DP_CREDENTIAL_LOGIN_META3", "pod-uid=$(POD_UID)"),
    ]
}

fn service(gateway: &GatewayMeta, plan: &InfrastructurePlan, config: &ClassConfig) -> Value {
    let ports = plan.ports.iter().map(|(port, is_udp)| {
        let (prefix, protocol) = if *is_udp {
            ("udp", "UDP")
        } else {
            ("tcp", "TCP")
        };
        json!({
            "name": format!("{prefix}-{port}"),
            "port": port,
            "targetPort": port,
            "protocol": protocol,
        })
    });
    let kind = config.service_type.unwrap_or(ServiceType::LoadBalancer);
    let mut spec = Map::new();
    spec.insert("type".to_owned(), json!(kind.as_str()));
    spec.insert("selector".to_owned(), json!(selector(gateway)));
    spec.insert("ports".to_owned(), ports.collect());
    // A Service can ask for one. Whether the gateway gets what it asks for is read from its status.
    let mut ips = plan
        .addresses
        .iter()
        .filter(|one| one.value.parse::<IpAddr>().is_ok());
    if let Some(address) = ips.next().filter(|_| kind == ServiceType::LoadBalancer) {
        spec.insert("loadBalancerIP".to_owned(), json!(address.value));
    }
    let mut metadata = metadata(gateway, plan);
    for name in &config.copy_annotations.service {
        if let Some(value) = gateway.annotations.get(name) {
            metadata["annotations"][name] = json!(value);
        }
    }
    json!({"metadata": metadata, "spec": spec})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_and_distinct() {
        let name = |name: &str| {
            let gateway = GatewayMeta {
                key: Key::new("shop", name),
                uid: "u".to_owned(),
                class: "legate".to_owned(),
                annotations: BTreeMap::new(),
            };
            gateway.name()
        };
        assert_eq!(name("edge"), "edge-legate");
        let dotted = name("edge.example");
        assert!(dotted.starts_with("edge-example-legate-"), "{dotted}");
        assert_ne!(dotted, name("edge-example"));
        let (long, longer) = (name(&"a".repeat(60)), name(&"a".repeat(253)));
        assert!(long.len() <= LABEL && longer.len() <= LABEL);
        assert_ne!(long, longer);
    }
}
