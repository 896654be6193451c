//! Finds the service and port of the mesh for a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Service};
use kube::ResourceExt;

use super::installation::Installation;
use super::request::Refusal;
use crate::annotations::{self, Annotations, KUBERNETES_SERVICE, PREFIX, Port, SERVICE};

/// The service account of pods that name none.
const DEFAULT_ACCOUNT: &str = "default";
/// Label of Services that are ignored.
const IGNORED: &str = "consul.hashicorp.com/service-ignore";

/// The service of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instance {
    /// Its name in the mesh.
    pub(super) name: String,
    /// The application's port; `None` if it accepts no connections.
    pub(super) port: Option<u16>,
}

/// With the Gateway API enabled, a pod may belong to several Services or none.
///
/// # Errors
/// If the name or the port is ambiguous, or ACLs would not let the pod register as that service.
pub(super) fn resolve(
    installation: &Installation,
    namespace: &str,
    pod: &Pod,
    annotations: &Annotations,
    services: &[Arc<Service>],
) -> Result<Instance, Refusal> {
    let spec = pod.spec.as_ref();
    let services = services.iter().map(|service| &**service);
    let mut selecting: Vec<_> = services
        .filter(|service| selects(service, namespace, pod.labels()))
        .collect();
    selecting.sort_by_key(|service| service.name_any());
    let gateway_api = installation.config.api_gateway.enabled;
    let account = spec.and_then(|spec| spec.service_account_name.as_deref());
    let account = account
        .filter(|name| !name.is_empty())
        .unwrap_or(DEFAULT_ACCOUNT);
    let own = || workload(pod, account);
    let own = gateway_api.then_some(&own as &dyn Fn() -> String);
    let name = name(namespace, annotations, &selecting, own)?;
    if installation.sidecars.sidecar_auth_method.is_some() && account != name {
        return Err(Refusal::new(format!(
            "the pod's service account is {account:?} and its service is {name:?}: with ACLs \
             both must have the same name; set spec.serviceAccountName, or {SERVICE}"
        )));
    }
    let port = match annotations.port() {
        Some(port) => Some(number(spec, "connect-service-port", port)?),
        None => spec.and_then(first_port),
    };
    Ok(Instance { name, port })
}

/// `own` is the name of a pod that belongs to several Services or none, if it may.
fn name(
    namespace: &str,
    annotations: &Annotations,
    selecting: &[&Service],
    own: Option<&dyn Fn() -> String>,
) -> Result<String, Refusal> {
    if let Some(name) = &annotations.service {
        return Ok(name.clone());
    }
    let names = selecting.iter().map(|service| service.name_any());
    let names: Vec<String> = names.collect();
    if let Some(wanted) = &annotations.kubernetes_service {
        if !names.contains(wanted) {
            return Err(Refusal::new(format!(
                "{KUBERNETES_SERVICE} names the Service {wanted:?}, which does not exist in \
                 {namespace} or does not select the pod"
            )));
        }
        return Ok(wanted.clone());
    }
    match (names.as_slice(), own) {
        ([name], _) => Ok(name.clone()),
        (_, Some(own)) => {
            let name = own();
            annotations::service_name(&name).map_err(|reason| {
                Refusal::new(format!(
                    "{} Services in {namespace} select the pod, and the name of its service account or \
                     owner, {name:?}, {reason}; name the pod's service with {SERVICE}",
                    names.len()
                ))
            })
        }
        ([], None) => Err(Refusal::new(format!(
            "no Service in {namespace} selects the pod: create one, or name the pod's service with \
             {SERVICE}"
        ))),
        (several, None) => {
            let shown: Vec<&str> = several.iter().take(5).map(String::as_str).collect();
            Err(Refusal::new(format!(
                "{} Services in {namespace} select the pod ({}): select one with \
                 {SERVICE} or {KUBERNETES_SERVICE}, or label the others {IGNORED}=true",
                several.len(),
                shown.join(", ")
            )))
        }
    }
}

/// The name of a pod without a Service that names it: that of its service account or of its owner.
fn workload(pod: &Pod, account: &str) -> String {
    if account != DEFAULT_ACCOUNT {
        return account.to_owned();
    }
    let owners = pod.owner_references();
    let owner = owners.iter().find(|one| one.controller == Some(true));
    let Some(owner) = owner.or_else(|| owners.first()) else {
        let generated = pod.metadata.generate_name.as_deref().unwrap_or_default();
        let named = pod.metadata.name.as_deref().filter(|name| !name.is_empty());
        return named.unwrap_or(generated.trim_end_matches('-')).to_owned();
    };
    // The ReplicaSet of a Deployment has the hash of its template in its name.
    let hash = pod.labels().get("pod-template-hash");
    let hash = hash.filter(|_| owner.kind == "ReplicaSet");
    let deployment = hash.and_then(|hash| owner.name.strip_suffix(hash)?.strip_suffix('-'));
    deployment.unwrap_or(&owner.name).to_owned()
}

fn selects(service: &Service, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
    let ignored = service.labels().get(IGNORED).map(String::as_str);
    let selector = service
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.as_ref());
    service.namespace().as_deref() == Some(namespace)
        && !matches!(ignored, Some("true" | "1" | "t" | "T" | "TRUE" | "True"))
        && selector.is_some_and(|selector| {
            let is_in = |(key, value)| labels.get(key) == Some(value);
            !selector.is_empty() && selector.iter().all(is_in)
        })
}

/// Resolves a port of the pod to its number; `key` is the annotation with the port.
pub(super) fn number(spec: Option<&PodSpec>, key: &str, port: &Port) -> Result<u16, Refusal> {
    let name = match port {
        Port::Number(number) => return Ok(*number),
        Port::Name(name) => name,
    };
    let found = spec.and_then(|spec| port_named(spec, name));
    found.ok_or_else(|| {
        Refusal::new(format!(
            "annotation {PREFIX}{key} names the port {name:?}, which no container of the pod has"
        ))
    })
}

/// The number of the first port with this name.
pub(super) fn port_named(spec: &PodSpec, name: &str) -> Option<u16> {
    containers(spec).find_map(|container| container_port(container, name))
}

/// The number of a container's port with this name.
pub(super) fn container_port(container: &Container, name: &str) -> Option<u16> {
    let ports = container.ports.iter().flatten();
    let mut named = ports.filter(|port| port.name.as_deref() == Some(name));
    named
        .next()
        .and_then(|port| u16::try_from(port.container_port).ok())
}

fn first_port(spec: &PodSpec) -> Option<u16> {
    let port = spec.containers.first()?.ports.as_ref()?.first()?;
    u16::try_from(port.container_port).ok()
}

/// The application's containers, then the pod's own native sidecars.
pub(super) fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let init = spec.init_containers.iter().flatten();
    spec.containers
        .iter()
        .chain(init.filter(|one| is_native(one)))
}

/// Whether an init container keeps running.
pub(super) fn is_native(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}
