//! The volume with files of the mesh that containers of an application may share with the sidecar,
//! and the init container that writes them. Paths and contents are those of consul-k8s.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use super::installation::Installation;
use super::operations::Operations;
use super::request::SIDECAR_USER;
use super::sidecar;
use crate::annotations::{CA_CERTS, PREFIX};
use crate::connect_init::FOLDER;

/// Name of the init container.
pub(super) const NAME: &str = "consul-connect-inject-init";
/// Name of the volume.
pub(super) const VOLUME: &str = "consul-connect-inject-data";

pub(super) fn volume() -> Value {
    json!({ "name": VOLUME, "emptyDir": { "medium": "Memory" } })
}

pub(super) fn mount() -> Value {
    json!({ "name": VOLUME, "mountPath": FOLDER })
}

/// Mounts the volume in these containers of the application.
pub(super) fn share(
    spec: &PodSpec,
    names: &[String],
    operations: &mut Operations,
    warnings: &mut Vec<String>,
) {
    let containers = spec.containers.iter().enumerate();
    for (index, container) in containers.filter(|(_, one)| names.contains(&one.name)) {
        let (index, present) = (index.to_string(), container.volume_mounts.as_ref());
        let path = ["spec", "containers", &index, "volumeMounts"];
        operations.add_to_list(&path, present.map(Vec::len), None, vec![mount()]);
    }
    let is_there = |name: &String| spec.containers.iter().any(|one| one.name == *name);
    if let Some(name) = names.iter().find(|name| !is_there(name)) {
        warnings.push(format!(
            "annotation {PREFIX}connect-inject-mount-volume names {name:?}, which is not a container \
             of the pod"
        ));
    }
}

/// The init container, which runs `legate-k8s connect-init`.
pub(super) fn container(installation: &Installation, service: &str) -> Value {
    let pod_name = json!({ "fieldRef": { "fieldPath": "metadata.name" } });
    let mut environment = vec![
        json!({ "name": "POD_NAME", "valueFrom": pod_name }),
        json!({ "name": "DP_PROXY_SERVICE_ID", "value": sidecar::proxy_id(service) }),
    ];
    if installation.ca_certs.is_some() {
        let annotation = format!("metadata.annotations['{CA_CERTS}']");
        let pem = json!({ "fieldRef": { "fieldPath": annotation } });
        environment.push(json!({ "name": "CONSUL_CACERT_PEM", "valueFrom": pem }));
    }
    let mut container = json!({
        "name": NAME,
        "image": installation.sidecars.redirect_image,
        "args": ["connect-init"],
        "env": environment,
        "volumeMounts": [mount()],
        "resources": {
            "requests": { "cpu": "50m", "memory": "25Mi" },
            "limits": { "memory": "150Mi" },
        },
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
    sidecar::set_pull_policy(&mut container, installation);
    container
}
