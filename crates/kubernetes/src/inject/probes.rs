//! Rewrites the probes of a pod whose traffic is redirected. The kubelet has no mutual TLS, so the
//! sidecar answers it in plaintext on separate ports, for exactly the paths of the probes: 20300,
//! 20400 and 20500 (liveness, readiness, startup) plus the index of the container, as in consul-k8s.
//!
//! HTTP and gRPC probes are forwarded to the application. A TCP probe becomes an HTTP probe: a
//! connection to the sidecar would not test the application, so the sidecar opens one on request.
//! Exec probes are not changed.
//! make one. Exec probes need nothing.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, PodSpec, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use legate_model::ExposePath;
use serde_json::{Value, json};

use super::operations::Operations;
use super::request::Refusal;
use super::service::{container_port, is_native};
use crate::annotations::PREFIX;

/// Probe fields of a container, and the first port of each kind.
const KINDS: [(&str, u16); 3] = [
    ("livenessProbe", 20300),
    ("readinessProbe", 20400),
    ("startupProbe", 20500),
];
/// The number of ports of each kind.
const MOST_CONTAINERS: u16 = 100;
/// The path of every gRPC health check.
const GRPC_HEALTH: &str = "/grpc.health.v1.Health/Check";
/// The sidecar's path prefix for checks whether a port of the pod accepts connections.
const TCP_CHECK: &str = "/check/tcp";

/// The ports that affect how probes are rewritten.
#[derive(Debug)]
pub(super) struct Surroundings<'a> {
    /// Ports that users have excluded from redirection; probes to them reach the application
    /// directly.
    pub(super) excluded: &'a [u16],
    /// Port of the sidecar's lifecycle server.
    pub(super) lifecycle_port: u16,
}

/// Rewrites the probes; returns the paths that the proxy has to expose.
///
/// # Errors
/// If a probe or hook could not reach the application.
pub(super) fn rewrite(
    spec: &PodSpec,
    around: &Surroundings<'_>,
    operations: &mut Operations,
) -> Result<Vec<ExposePath>, Refusal> {
    let mut paths = Vec::new();
    let init = spec.init_containers.iter().flatten().enumerate();
    let containers = (spec.containers.iter().enumerate())
        .map(|(index, container)| ("containers", index, container))
        .chain(
            init.filter(|(_, container)| is_native(container))
                .map(|(index, container)| ("initContainers", index, container)),
        );
    for (number, (list, index, container)) in (0..).zip(containers) {
        hooks(container, around)?;
        for (field, first) in KINDS {
            let Some(probe) = probe(container, field) else {
                continue;
            };
            let Some(target) = target(container, field, probe, around)? else {
                continue;
            };
            if number >= MOST_CONTAINERS {
                return Err(Refusal::new(format!(
                    "the pod has more than {MOST_CONTAINERS} containers with probes: set \
                     {PREFIX}transparent-proxy-overwrite-probes to false"
                )));
            }
            let listener_port = first + number;
            let at = ["spec", list, &index.to_string(), field];
            target.apply(&at, listener_port, operations);
            paths.push(ExposePath {
                listener_port,
                ..target.path
            });
        }
    }
    Ok(paths)
}

/// The target of a probe.
struct Target {
    /// The path that the proxy exposes; the listener's port is not set yet.
    path: ExposePath,
    how: How,
}

enum How {
    Http,
    Grpc,
    Tcp,
}

impl Target {
    fn apply(&self, at: &[&str; 4], port: u16, operations: &mut Operations) {
        let [spec, list, index, field] = *at;
        let mut replace = |handler| {
            operations.replace(&[spec, list, index, field, handler, "port"], json!(port));
        };
        match self.how {
            How::Http => replace("httpGet"),
            How::Grpc => replace("grpc"),
            How::Tcp => {
                let get: Value = json!({ "path": self.path.path, "port": port });
                operations.remove(&[spec, list, index, field, "tcpSocket"]);
                operations.add(&[spec, list, index, field, "httpGet"], get);
            }
        }
    }
}

fn probe<'a>(container: &'a Container, field: &str) -> Option<&'a Probe> {
    match field {
        "livenessProbe" => container.liveness_probe.as_ref(),
        "readinessProbe" => container.readiness_probe.as_ref(),
        _ => container.startup_probe.as_ref(),
    }
}

/// Returns `None` for probes that reach the application without the sidecar.
fn target(
    container: &Container,
    field: &str,
    probe: &Probe,
    around: &Surroundings<'_>,
) -> Result<Option<Target>, Refusal> {
    let elsewhere = |host: &Option<String>| host.as_ref().is_some_and(|host| !host.is_empty());
    let exposed = |path: &str, local_path_port: u16, protocol: &str| ExposePath {
        path: path.to_owned(),
        local_path_port,
        protocol: protocol.to_owned(),
        ..ExposePath::default()
    };
    let target = if let Some(get) = &probe.http_get {
        let port = number(container, field, &get.port)?;
        if elsewhere(&get.host) || around.excluded.contains(&port) {
            return Ok(None);
        }
        if get.scheme.as_deref() == Some("HTTPS") {
            return Err(unreachable(container, field, "uses HTTPS", port));
        }
        let path = get.path.as_deref().unwrap_or("/");
        // The request keeps its query; paths are compared without it.
        let path = path.split('?').next().filter(|path| !path.is_empty());
        Target {
            path: exposed(path.unwrap_or("/"), port, "http"),
            how: How::Http,
        }
    } else if let Some(grpc) = &probe.grpc {
        let port = port_number(grpc.port, container, field)?;
        Target {
            path: exposed(GRPC_HEALTH, port, "http2"),
            how: How::Grpc,
        }
    } else if let Some(tcp) = &probe.tcp_socket {
        let port = number(container, field, &tcp.port)?;
        if elsewhere(&tcp.host) || around.excluded.contains(&port) {
            return Ok(None);
        }
        let path = format!("{TCP_CHECK}/{port}");
        Target {
            path: exposed(&path, around.lifecycle_port, "http"),
            how: How::Tcp,
        }
    } else {
        return Ok(None);
    };
    let excluded = around.excluded.contains(&target.path.local_path_port);
    Ok((!excluded).then_some(target))
}

/// Refuses HTTP hooks, because the sidecar may not have started yet or may have closed its ports.
fn hooks(container: &Container, around: &Surroundings<'_>) -> Result<(), Refusal> {
    let Some(lifecycle) = &container.lifecycle else {
        return Ok(());
    };
    let hook = |field: &str, handler: &Option<LifecycleHandler>| {
        let Some(get) = handler
            .as_ref()
            .and_then(|handler| handler.http_get.as_ref())
        else {
            return Ok(());
        };
        let port = number(container, field, &get.port)?;
        let elsewhere = get.host.as_ref().is_some_and(|host| !host.is_empty());
        if elsewhere || around.excluded.contains(&port) {
            return Ok(());
        }
        Err(unreachable(container, field, "is an HTTP hook", port))
    };
    hook("postStart", &lifecycle.post_start)?;
    hook("preStop", &lifecycle.pre_stop)
}

fn unreachable(container: &Container, field: &str, what: &str, port: u16) -> Refusal {
    Refusal::new(format!(
        "{field} of container {:?} {what}, which cannot reach port {port} while traffic is \
         redirected: use exec, or add the port to \
         {PREFIX}transparent-proxy-exclude-inbound-ports",
        container.name
    ))
}

fn number(container: &Container, field: &str, port: &IntOrString) -> Result<u16, Refusal> {
    match port {
        IntOrString::Int(number) => port_number(*number, container, field),
        IntOrString::String(name) => container_port(container, name).ok_or_else(|| {
            Refusal::new(format!(
                "{field} of container {:?} names the port {name:?}, which the container does not have",
                container.name
            ))
        }),
    }
}

fn port_number(number: i32, container: &Container, field: &str) -> Result<u16, Refusal> {
    u16::try_from(number)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| {
            Refusal::new(format!(
                "{field} of container {:?} has the port {number}: use 1 to 65535",
                container.name
            ))
        })
}
