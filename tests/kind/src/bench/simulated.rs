//! Pods without containers: real objects in the API server, injected at admission, and bound to a node
//! without a kubelet. This program writes their status.

use anyhow::Context;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::api::Api;
use crate::workload::App;

/// The node, and its address.
pub(super) const NODE: &str = "simulated";
const NODE_IP: &str = "10.254.0.1";

/// Adds the node, on which no other pods are scheduled.
pub(super) async fn add_node(api: &Api) -> anyhow::Result<()> {
    // Removes the remains of a killed run.
    remove_node(api).await?;
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": NODE},
        "spec": {"taints": [{"key": NODE, "effect": "NoSchedule"}]},
    }))?;
    let nodes: kube::Api<Node> = kube::Api::all(api.client.clone());
    nodes.create(&PostParams::default(), &node).await?;
    Ok(())
}

pub(super) async fn remove_node(api: &Api) -> anyhow::Result<()> {
    let nodes: kube::Api<Node> = kube::Api::all(api.client.clone());
    if nodes.get_opt(NODE).await?.is_some() {
        nodes.delete(NODE, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// A pod of this application on the node. It tolerates that the node is not ready.
pub(super) fn pod(app: &App, name: &str) -> anyhow::Result<Pod> {
    let mut pod = app.pod(name);
    pod["spec"]["nodeName"] = json!(NODE);
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    serde_json::from_value(pod).context("a pod")
}

/// The address of the pod with this number, which does not exist.
pub(super) fn address(number: u32) -> String {
    let [_, _, high, low] = number.to_be_bytes();
    format!("10.253.{high}.{low}")
}

/// The status that a kubelet writes when the containers run.
pub(super) fn running(address: &str) -> Value {
    let mut status = readiness(true);
    status["status"]["phase"] = json!("Running");
    status["status"]["hostIP"] = json!(NODE_IP);
    status["status"]["hostIPs"] = json!([{"ip": NODE_IP}]);
    status["status"]["podIP"] = json!(address);
    status["status"]["podIPs"] = json!([{"ip": address}]);
    status
}

/// The status that a kubelet writes when the readiness changes.
pub(super) fn readiness(ready: bool) -> Value {
    let now = Timestamp::now().to_string();
    let status = if ready { "True" } else { "False" };
    let condition = |name: &str| json!({"type": name, "status": status, "lastTransitionTime": now});
    json!({"status": {"conditions": [condition("Ready"), condition("ContainersReady")]}})
}

/// Patches a pod's status.
pub(super) async fn set_status(
    pods: &kube::Api<Pod>,
    name: &str,
    status: &Value,
) -> anyhow::Result<()> {
    let params = PatchParams::default();
    let patch = Patch::Strategic(status);
    pods.patch_status(name, &params, &patch).await?;
    Ok(())
}

/// Deletes all pods immediately, because no kubelet confirms their end.
pub(super) async fn remove_pods(pods: &kube::Api<Pod>) -> anyhow::Result<()> {
    let now = DeleteParams::default().grace_period(0);
    pods.delete_collection(&now, &ListParams::default()).await?;
    Ok(())
}
