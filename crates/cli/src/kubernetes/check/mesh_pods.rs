//! Derives facts from the API server's pods. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use legate_kubernetes::annotations::{self, MANAGED_BY, MANAGED_BY_LEGATE};

use super::facts::{BarePod, MeshPod};
use crate::kubernetes::sidecar;

/// Whether a pod has ended or is terminating.
pub(super) fn ends(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether the pod's condition `Ready` is true.
pub(super) fn is_ready(status: Option<&PodStatus>) -> bool {
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The owner of the pods, as named by `kubectl rollout restart`.
pub(in crate::kubernetes) fn owner(metadata: &ObjectMeta) -> Option<String> {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    let name = &owner.name;
    match owner.kind.as_str() {
        "ReplicaSet" => {
            let hash = metadata.labels.as_ref()?.get("pod-template-hash")?;
            let name = name.strip_suffix(hash)?.strip_suffix('-')?;
            Some(format!("deployment/{name}"))
        }
        "StatefulSet" => Some(format!("statefulset/{name}")),
        "DaemonSet" => Some(format!("daemonset/{name}")),
        _ => None,
    }
}

/// Whether a pod has a sidecar of this mesh and has not ended.
pub(in crate::kubernetes) fn is_ours(pod: &Pod) -> bool {
    let managed_by = pod.labels().get(MANAGED_BY);
    !ends(pod) && managed_by.is_none_or(|by| by == MANAGED_BY_LEGATE)
}

/// The facts of a pod with a sidecar of this mesh, except those from the sidecar itself; `None` for
/// pods that have ended and those of other integrations.
pub(super) fn mesh_pod(pod: &Pod) -> Option<MeshPod> {
    if !is_ours(pod) {
        return None;
    }
    let container = sidecar::container(pod)?;
    let own = sidecar::container_status(pod, &container.name);
    let status = pod.status.as_ref();
    let others = status.and_then(|status| status.container_statuses.as_deref());
    let others = others.unwrap_or_default().iter();
    let unready = others.filter(|other| other.name != container.name && !other.ready);
    Some(MeshPod {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        owner: owner(&pod.metadata),
        image: container.image.clone().unwrap_or_default(),
        sidecar_ready: own.is_some_and(|own| own.ready),
        sidecar_waits: waits(own, status),
        unready: unready.map(|other| other.name.clone()).collect(),
        ready: is_ready(status),
        status: None,
        leaves: None,
    })
}

/// Whether the sidecar's container is running.
pub(super) fn sidecar_runs(pod: &Pod) -> bool {
    let container = sidecar::container(pod);
    let own = container.and_then(|it| sidecar::container_status(pod, &it.name));
    let state = own.and_then(|own| own.state.as_ref());
    state.is_some_and(|state| state.running.is_some())
}

fn waits(own: Option<&ContainerStatus>, status: Option<&PodStatus>) -> Option<String> {
    let Some(own) = own else {
        let phase = status.and_then(|status| status.phase.as_deref());
        return Some(format!(
            "the pod is {}",
            phase.unwrap_or("not seen by a kubelet yet")
        ));
    };
    let state = own.state.as_ref()?;
    if state.running.is_some() {
        return None;
    }
    if let Some(ended) = &state.terminated {
        return Some(format!("it has ended with exit status {}", ended.exit_code));
    }
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.clone().unwrap_or_default();
    Some(match &waiting.message {
        Some(message) => format!("{reason}: {message}"),
        None => reason,
    })
}

/// A pod that requests a sidecar, from the metadata of a pod without one.
pub(super) fn bare_pod(metadata: &ObjectMeta) -> Option<BarePod> {
    let none = std::collections::BTreeMap::new();
    let all = metadata.annotations.as_ref().unwrap_or(&none);
    // Invalid values count as no request; the webhook refuses them if it is called.
    let asks = annotations::wants_injection(all).ok().flatten() == Some(true);
    if !asks || metadata.deletion_timestamp.is_some() {
        return None;
    }
    Some(BarePod {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        owner: owner(metadata),
    })
}
