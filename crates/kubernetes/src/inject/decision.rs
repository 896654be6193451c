//! Decides whether a pod is injected. The first matching rule wins.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::installation::Installation;
use super::request::Refusal;
use crate::annotations::{self, MANAGED_BY, MANAGED_BY_LEGATE, PREFIX, STATUS};

/// Namespaces of the cluster itself.
const SYSTEM: [&str; 2] = ["kube-system", "kube-public"];

/// Whether a pod is injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// The pod gets a sidecar.
    Inject,
    /// The pod is admitted unchanged. If it requested a sidecar, the warning has the reason.
    Leave(Option<String>),
}

/// Decides about a pod of `namespace`.
///
/// # Errors
/// If the pod requests a sidecar that it cannot have.
pub(super) fn decide(
    installation: &Installation,
    namespace: &str,
    pod: &Pod,
) -> Result<Decision, Refusal> {
    let asked = annotations::wants_injection(pod.annotations())?;
    // The reason is reported only for pods that requested a sidecar.
    let leave = |why: String| Ok(Decision::Leave((asked == Some(true)).then_some(why)));
    if SYSTEM.contains(&namespace) {
        return leave(format!("pods of {namespace} are not injected"));
    }
    if namespace == installation.namespace {
        return leave(format!(
            "pods of {namespace} are not injected: the mesh itself runs there"
        ));
    }
    let config = &installation.config;
    let among = |list: &[String]| list.iter().any(|name| name == namespace);
    if among(&config.k8s_deny_namespaces) {
        return leave(format!(
            "pods of {namespace} are not injected: connectInject.k8sDenyNamespaces contains it"
        ));
    }
    let all = config.k8s_allow_namespaces.iter().any(|name| name == "*");
    if !all && !among(&config.k8s_allow_namespaces) {
        return leave(format!(
            "pods of {namespace} are not injected: connectInject.k8sAllowNamespaces does not contain it"
        ));
    }
    if is_set(pod.annotations(), STATUS) || is_set(pod.labels(), STATUS) {
        return Ok(Decision::Leave(None));
    }
    if let Some(other) = pod.labels().get(MANAGED_BY)
        && other != MANAGED_BY_LEGATE
    {
        return leave(format!(
            "label {MANAGED_BY}={other}: the pod belongs to another integration"
        ));
    }
    if !asked.unwrap_or(config.default) {
        return Ok(Decision::Leave(None));
    }
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network);
    if host_network == Some(true) {
        if asked == Some(true) {
            return Err(Refusal::new(format!(
                "a pod with hostNetwork cannot have a sidecar, which would take the node's ports: \
                 remove hostNetwork, or set {PREFIX}connect-inject to false"
            )));
        }
        return Ok(Decision::Leave(None));
    }
    Ok(Decision::Inject)
}

fn is_set(map: &BTreeMap<String, String>, key: &str) -> bool {
    map.get(key).is_some_and(|value| !value.is_empty())
}
