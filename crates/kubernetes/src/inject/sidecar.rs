//! The sidecar's container and its volumes.

use serde_json::{Map, Value, json};

use super::data;
use super::installation::Installation;
use super::request::{DNS_PORT, INBOUND_PORT, SIDECAR_USER};
use super::settings::Settings;
use crate::annotations::{self, CA_CERTS, ProxyKind};

/// Name of the container.
pub(super) const NAME: &str = "consul-dataplane";
/// Volume with the servers' CA certificates.
pub(super) const CA_VOLUME: &str = "consul-connect-inject-ca";
/// Volume with the token that the sidecar logs in with.
pub(super) const TOKEN_VOLUME: &str = "consul-connect-inject-token";
/// Envoy's port for `/ready`.
pub(super) const READY_PORT: u16 = 21000;

const CA_FOLDER: &str = "/consul/connect-inject/ca";
const TOKEN_FOLDER: &str = "/consul/connect-inject/token";
/// The lifetime of the token. The kubelet renews it in time.
const TOKEN_SECONDS: u32 = 3600;
/// How long inbound connections are still accepted when the pod terminates and the application
/// sleeps for [`super::patch::SLEEP_SECONDS`]: meanwhile endpoints are updated elsewhere.
const ACCEPT_WHILE_ASLEEP: &str = "1s";

/// The container of a pod whose service is `service`. `shares_data`: whether containers of the
/// application share a volume with it.
pub(super) fn container(
    installation: &Installation,
    settings: &Settings,
    own: &annotations::Sidecar,
    service: &str,
    sleeps: bool,
    shares_data: bool,
) -> Value {
    let handler = match settings.proxy_health_check {
        true => json!({ "httpGet": { "path": "/ready", "port": READY_PORT } }),
        false => json!({ "tcpSocket": { "port": INBOUND_PORT } }),
    };
    let mut container = json!({
        "name": NAME,
        "image": installation.sidecars.dataplane_image,
        "args": arguments(installation, settings),
        "env": environment(settings, service),
        "readinessProbe": with(&handler, json!({ "initialDelaySeconds": 1, "periodSeconds": 2 })),
        "securityContext": {
            "runAsUser": SIDECAR_USER,
            "runAsGroup": SIDECAR_USER,
            "runAsNonRoot": true,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
            "seccompProfile": { "type": "RuntimeDefault" },
        },
    });
    let mut set = |key: &str, value: Value| {
        if value.as_object().is_none_or(|map| !map.is_empty())
            && value.as_array().is_none_or(|list| !list.is_empty())
        {
            container[key] = value;
        }
    };
    set("resources", resources(installation, own));
    set("ports", ports(settings));
    set("volumeMounts", mounts(installation, own, shares_data));
    if settings.native {
        set("restartPolicy", json!("Always"));
        set("startupProbe", with(&handler, startup(installation, own)));
    } else if let Some(seconds) = own.startup_failure {
        set("startupProbe", with(&handler, within(seconds)));
    }
    if let Some(seconds) = own.liveness_failure {
        set("livenessProbe", with(&handler, within(seconds)));
    }
    if settings.lifecycle.enabled && settings.lifecycle.drain {
        set("lifecycle", drain(settings, sleeps));
    }
    set_pull_policy(&mut container, installation);
    container
}

/// The `preStop` hook, which the kubelet calls at the beginning of the termination, before or while
/// the application gets its SIGTERM. A native sidecar itself ends after the application.
fn drain(settings: &Settings, sleeps: bool) -> Value {
    let accept = if sleeps { ACCEPT_WHILE_ASLEEP } else { "0s" };
    json!({ "preStop": { "exec": { "command": [
        "/usr/local/bin/legate-dataplane",
        format!("-drain={accept}"),
        format!("-graceful-port={}", settings.lifecycle.port),
    ] } } })
}

pub(crate) fn set_pull_policy(container: &mut Value, installation: &Installation) {
    let policy = installation.sidecars.image_pull_policy.as_deref();
    if let Some(policy) = policy.filter(|policy| !policy.is_empty()) {
        container["imagePullPolicy"] = json!(policy);
    }
}

fn with(handler: &Value, times: Value) -> Value {
    let mut probe = handler.as_object().cloned().unwrap_or_default();
    probe.extend(times.as_object().cloned().unwrap_or_default());
    Value::Object(probe)
}

/// The times of a probe that fails after this number of seconds.
fn within(seconds: i32) -> Value {
    json!({ "periodSeconds": 1, "failureThreshold": seconds })
}

fn startup(installation: &Installation, own: &annotations::Sidecar) -> Value {
    let defaults = &installation.config.dataplane_as_sidecar_init_container;
    let or = |own: Option<i32>, default: u32| own.map_or(json!(default), |own| json!(own));
    let period = own.probe_period.or(own.startup_failure.map(|_| 1));
    let failures = own.probe_failures.or(own.startup_failure);
    json!({
        "initialDelaySeconds": or(own.probe_delay, defaults.initial_probe_check_delay_seconds),
        "periodSeconds": or(period, defaults.probe_check_period_seconds),
        "failureThreshold": or(failures, defaults.probe_check_failure_threshold),
        "timeoutSeconds": or(own.probe_timeout, defaults.probe_check_timeout_seconds),
    })
}

fn arguments(installation: &Installation, settings: &Settings) -> Vec<String> {
    let servers = &installation.servers;
    let mut arguments = vec![
        "-addresses".to_owned(),
        servers.http.server_addresses.clone(),
        format!("-grpc-port={}", servers.server_grpc_port),
        format!("-log-level={}", installation.log_level),
        format!("-log-json={}", installation.log_json),
        format!("-envoy-concurrency={}", settings.concurrency),
    ];
    let mut push = |argument: String| arguments.push(argument);
    if settings.kind != ProxyKind::Envoy {
        push(format!("-proxy={}", settings.kind.as_str()));
    }
    if servers.skip_server_watch {
        push("-server-watch-disabled=true".to_owned());
    }
    if let Some(method) = &installation.sidecars.sidecar_auth_method {
        push("-credential-type=login".to_owned());
        push(format!("-login-auth-method={method}"));
        push(format!("-login-bearer-token-path={TOKEN_FOLDER}/token"));
    }
    tenant(installation, settings, &mut push);
    if servers.http.tls {
        if let Some(name) = servers
            .http
            .tls_server_name
            .as_ref()
            .filter(|name| !name.is_empty())
        {
            push(format!("-tls-server-name={name}"));
        }
        if installation.ca_certs.is_some() {
            push(format!("-ca-certs={CA_FOLDER}"));
        }
    } else {
        push("-tls-disabled".to_owned());
    }
    if settings.proxy_health_check {
        push(format!("-envoy-ready-bind-port={READY_PORT}"));
    }
    lifecycle(settings, &mut push);
    push(format!(
        "-telemetry-prom-scrape-path={}",
        settings.scrape_path
    ));
    let merging = settings
        .metrics
        .as_ref()
        .and_then(|metrics| metrics.merging.as_ref());
    if let Some((port, url)) = merging {
        push(format!("-telemetry-prom-merge-port={port}"));
        push(format!("-telemetry-prom-service-metrics-url={url}"));
    }
    let tls = settings.metrics.iter().flat_map(|metrics| &metrics.tls);
    tls.cloned().for_each(&mut push);
    if settings.dns {
        push(format!("-consul-dns-bind-port={DNS_PORT}"));
    }
    if let Some(level) = &settings.envoy_log_level {
        arguments.extend(["--".to_owned(), "--log-level".to_owned(), level.clone()]);
    }
    arguments
}

/// Arguments for the proxy's tenant and that of its auth method.
fn tenant(installation: &Installation, settings: &Settings, push: &mut impl FnMut(String)) {
    let tenants = installation.tenants();
    if installation.sidecars.sidecar_auth_method.is_some() {
        if let Some(namespace) = tenants.login_namespace() {
            push(format!("-login-namespace={namespace}"));
        }
        if let Some(partition) = tenants.partition() {
            push(format!("-login-partition={partition}"));
        }
    }
    if let Some(namespace) = &settings.namespace {
        push(format!("-service-namespace={namespace}"));
    }
    if let Some(partition) = tenants.partition() {
        push(format!("-service-partition={partition}"));
    }
}

/// The lifecycle port is always set, because its default is that of a probe.
fn lifecycle(settings: &Settings, push: &mut impl FnMut(String)) {
    let lifecycle = &settings.lifecycle;
    push(format!("-graceful-port={}", lifecycle.port));
    if !lifecycle.enabled {
        return;
    }
    if lifecycle.drain {
        push("-shutdown-drain-listeners".to_owned());
        if settings.native {
            push("-shutdown-end-when-idle".to_owned());
        }
    }
    push(format!(
        "-shutdown-grace-period-seconds={}",
        lifecycle.shutdown_grace
    ));
    push(format!(
        "-graceful-shutdown-path={}",
        lifecycle.shutdown_path
    ));
    push(format!(
        "-startup-grace-period-seconds={}",
        lifecycle.startup_grace
    ));
    push(format!("-graceful-startup-path={}", lifecycle.startup_path));
}

fn environment(settings: &Settings, service: &str) -> Vec<Value> {
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let value = |name: &str, value: String| json!({ "name": name, "value": value });
    // Variables are defined before their references.
    let mut environment = vec![
        field("NODE_NAME", "spec.nodeName"),
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_UID", "metadata.uid"),
        field("HOST_IP", "status.hostIP"),
        value("DP_SERVICE_NODE_NAME", "$(NODE_NAME)-virtual".to_owned()),
        value("DP_PROXY_SERVICE_ID", proxy_id(service)),
        value(
            "DP_CREDENTIAL_LOGIN_META1",
            "pod=$(POD_NAMESPACE)/$(POD_NAME)".to_owned(),
        ),
        value("DP_CREDENTIAL_LOGIN_META2", "pod-uid=$(POD_UID)".to_owned()),
    ];
    if settings.proxy_health_check {
        environment.push(field("DP_ENVOY_READY_BIND_ADDRESS", "status.podIP"));
    }
    environment
}

/// The id of the proxy, for the value of a variable after `POD_NAME`.
pub(super) fn proxy_id(service: &str) -> String {
    format!("$(POD_NAME)-{service}-sidecar-proxy")
}

fn resources(installation: &Installation, own: &annotations::Sidecar) -> Value {
    let defaults = &installation.config.sidecar_proxy.resources;
    let quantities = |cpu: [&Option<String>; 2], memory: [&Option<String>; 2]| {
        let mut map = Map::new();
        for (name, [own, default]) in [("cpu", cpu), ("memory", memory)] {
            if let Some(quantity) = own.as_ref().or(default.as_ref()) {
                map.insert(name.to_owned(), json!(quantity));
            }
        }
        map
    };
    let requests = quantities(
        [&own.cpu_request, &defaults.requests.cpu],
        [&own.memory_request, &defaults.requests.memory],
    );
    let limits = quantities(
        [&own.cpu_limit, &defaults.limits.cpu],
        [&own.memory_limit, &defaults.limits.memory],
    );
    let mut resources = Map::new();
    for (name, map) in [("requests", requests), ("limits", limits)] {
        if !map.is_empty() {
            resources.insert(name.to_owned(), Value::Object(map));
        }
    }
    Value::Object(resources)
}

fn ports(settings: &Settings) -> Value {
    let port =
        |name: &str, port: u16| json!({ "name": name, "containerPort": port, "protocol": "TCP" });
    let mut ports = Vec::new();
    if let Some(metrics) = &settings.metrics {
        ports.push(port("prometheus", metrics.scrape_port));
    }
    if settings.proxy_health_check {
        ports.push(port("proxy-health-0", READY_PORT));
    }
    Value::Array(ports)
}

fn mounts(installation: &Installation, own: &annotations::Sidecar, shares_data: bool) -> Value {
    let mount =
        |name: &str, path: &str| json!({ "name": name, "mountPath": path, "readOnly": true });
    let mut mounts = Vec::new();
    if shares_data {
        mounts.push(data::mount());
    }
    if installation.ca_certs.is_some() {
        mounts.push(mount(CA_VOLUME, CA_FOLDER));
    }
    if installation.sidecars.sidecar_auth_method.is_some() {
        mounts.push(mount(TOKEN_VOLUME, TOKEN_FOLDER));
    }
    mounts.extend(own.volume_mounts.iter().cloned());
    Value::Array(mounts)
}

/// The volumes that [`container`] mounts. They require no permissions: the CA certificates are in
/// the pod's own annotation, and can be overridden by a ConfigMap.
pub(super) fn volumes(installation: &Installation) -> Vec<Value> {
    let mut volumes = Vec::new();
    if installation.ca_certs.is_some() {
        let annotation = format!("metadata.annotations['{CA_CERTS}']");
        volumes.push(json!({ "name": CA_VOLUME, "projected": { "sources": [
            { "downwardAPI": { "items": [
                { "path": "injected.pem", "fieldRef": { "fieldPath": annotation } },
            ] } },
            { "configMap": { "name": format!("{}-ca", installation.full_name), "optional": true } },
        ] } }));
    }
    if installation.sidecars.sidecar_auth_method.is_some() {
        volumes.push(json!({ "name": TOKEN_VOLUME, "projected": { "sources": [
            { "serviceAccountToken": { "path": "token", "expirationSeconds": TOKEN_SECONDS } },
        ] } }));
    }
    volumes
}
