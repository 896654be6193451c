//! A sidecar: its configuration in the pod's manifest, and the status from its own port and that of
//! its Envoy.

use std::net::SocketAddr;
use std::time::SystemTime;

use anyhow::Context;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use kube::{Client, ResourceExt};
use legate_kubernetes::annotations;
use legate_model::timestamp;
use serde_json::Value;

use super::forward::{self, Limits, Port, SMALL};

/// The name of the sidecar's container, or its prefix, as in consul-k8s.
const CONTAINER: &str = "consul-dataplane";
/// The sidecar's default lifecycle port on Kubernetes.
const LIFECYCLE_PORT: u16 = 20600;
/// The default port of Envoy's admin interface.
const ADMIN_PORT: u16 = 19000;

/// The selector of pods that have a sidecar.
pub(super) fn selector() -> String {
    format!("{}={}", annotations::STATUS, annotations::INJECTED)
}

/// The sidecar's container.
pub(super) fn container(pod: &Pod) -> Option<&Container> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let mut all = spec.containers.iter().chain(init);
    all.find(|container| container.name.starts_with(CONTAINER))
}

/// The kubelet's status of a container.
pub(super) fn container_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|status| status.name == name)
}

/// The value of a flag in arguments: `-name=value` or `-name value`, with one or two dashes.
pub(super) fn flag<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(text) = argument.strip_prefix('-') else {
            continue;
        };
        let text = text.strip_prefix('-').unwrap_or(text);
        if text == name {
            return rest.next().map(String::as_str);
        }
        if let Some(value) = text.strip_prefix(name).and_then(|it| it.strip_prefix('=')) {
            return Some(value);
        }
    }
    None
}

fn lifecycle_port(container: &Container) -> u16 {
    let arguments = container.args.as_deref().unwrap_or_default();
    let port = flag(arguments, "graceful-port").and_then(|port| port.parse().ok());
    port.unwrap_or(LIFECYCLE_PORT)
}

/// The ports of a reachable sidecar.
#[derive(Debug, Clone)]
pub(super) struct Sidecar {
    namespace: String,
    pod: String,
    lifecycle_port: u16,
}

impl Sidecar {
    /// The sidecar of a pod; `None` if it has none.
    pub(super) fn of(pod: &Pod) -> Option<Sidecar> {
        Some(Sidecar {
            namespace: pod.namespace()?,
            pod: pod.name_any(),
            lifecycle_port: lifecycle_port(container(pod)?),
        })
    }

    fn port(&self, port: u16) -> Port<'_> {
        Port {
            namespace: &self.namespace,
            pod: &self.pod,
            port,
        }
    }

    /// The status document of the dataplane.
    ///
    /// # Errors
    ///
    /// If it is unreachable, or the response is unexpected.
    pub(super) async fn status(&self, client: &Client) -> anyhow::Result<Value> {
        let body = forward::body(client, self.port(self.lifecycle_port), "/status", SMALL);
        let body = body.await?;
        let document: Value = serde_json::from_slice(&body).context("its status is not JSON")?;
        anyhow::ensure!(document.is_object(), "its status is not an object");
        Ok(document)
    }

    /// Gets a page of Envoy's admin interface, at the port from the status document.
    ///
    /// # Errors
    ///
    /// If it is unreachable, or the response is not JSON.
    pub(super) async fn admin(
        &self,
        client: &Client,
        status: Option<&Value>,
        path: &str,
        limits: Limits,
    ) -> anyhow::Result<Value> {
        let port = self.port(admin_port(status));
        let body = forward::body(client, port, path, limits).await;
        let body = body.context("Envoy's admin interface")?;
        serde_json::from_slice(&body).with_context(|| format!("Envoy's {path} is not JSON"))
    }
}

fn admin_port(status: Option<&Value>) -> u16 {
    let admin = status.and_then(|status| status["envoy"]["admin"].as_str());
    let admin = admin.and_then(|admin| admin.parse::<SocketAddr>().ok());
    admin.map_or(ADMIN_PORT, |admin| admin.port())
}

/// A certificate that Envoy presents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaf {
    /// Its URI SAN, the SPIFFE identity, or else its first DNS name.
    pub(super) identity: String,
    pub(super) not_before: SystemTime,
    pub(super) not_after: SystemTime,
}

/// The certificates that Envoy presents, from `/certs`; unreadable ones are skipped.
pub(super) fn leaves(certs: &Value) -> Vec<Leaf> {
    let entries = certs["certificates"].as_array().into_iter().flatten();
    let chains = entries.filter_map(|entry| entry["cert_chain"].as_array()?.first());
    let time = |value: &Value| timestamp::parse(value.as_str()?).ok();
    let leaf = |certificate: &Value| {
        let names = certificate["subject_alt_names"].as_array();
        let names = names.into_iter().flatten();
        // Certificates for clients outside the mesh have a host name instead of an identity.
        let first = |kind: &str| names.clone().find_map(|name| name[kind].as_str());
        Some(Leaf {
            identity: first("uri")
                .or_else(|| first("dns"))
                .unwrap_or_default()
                .to_owned(),
            not_before: time(&certificate["valid_from"])?,
            not_after: time(&certificate["expiration_time"])?,
        })
    };
    let mut leaves: Vec<Leaf> = Vec::new();
    for leaf in chains.filter_map(leaf) {
        // A certificate is listed once for each TLS context that uses it.
        if !leaves.contains(&leaf) {
            leaves.push(leaf);
        }
    }
    leaves
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn flags_are_read_in_both_forms() {
        let all = arguments(&["-addresses", "a.svc", "-graceful-port=20601", "--tls"]);
        assert_eq!(flag(&all, "addresses"), Some("a.svc"));
        assert_eq!(flag(&all, "graceful-port"), Some("20601"));
        assert_eq!(flag(&all, "graceful"), None);
        assert_eq!(flag(&all, "tls"), None);
    }

    #[test]
    fn the_port_is_that_of_the_arguments() {
        let pod = |args: &[&str]| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": {"containers": [{"name": "app"}], "initContainers": [
                    {"name": "mesh-redirect"},
                    {"name": "consul-dataplane", "args": args},
                ]},
            }))
            .unwrap()
        };
        let port = |args: &[&str]| Sidecar::of(&pod(args)).unwrap().lifecycle_port;
        assert_eq!(port(&["-graceful-port=20700"]), 20700);
        assert_eq!(port(&[]), LIFECYCLE_PORT);
        let plain = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "app"}]}});
        assert!(Sidecar::of(&serde_json::from_value(plain).unwrap()).is_none());
        assert_eq!(admin_port(None), ADMIN_PORT);
        let status = json!({"envoy": {"admin": "127.0.0.1:19001"}});
        assert_eq!(admin_port(Some(&status)), 19001);
    }

    #[test]
    fn leaves_are_those_that_envoy_presents() {
        let chain = json!([
            {"subject_alt_names": [{"uri": "spiffe://x/svc/web"}],
             "valid_from": "2026-01-01T00:00:00Z", "expiration_time": "2026-01-04T00:00:00Z"},
            {"valid_from": "2020-01-01T00:00:00Z", "expiration_time": "2030-01-01T00:00:00Z"},
        ]);
        let certs = json!({"certificates": [
            {"ca_cert": [{}], "cert_chain": chain}, {"cert_chain": chain}, {"cert_chain": []},
        ]});
        let leaves = leaves(&certs);
        assert_eq!(leaves.len(), 1);
        assert_eq!(leaves[0].identity, "spiffe://x/svc/web");
        assert_eq!(
            leaves[0].not_after,
            timestamp::parse("2026-01-04T00:00:00Z").unwrap()
        );
    }
}
