//! Services and nodes that a token may be, without a policy that says so.

use serde::{Deserialize, Serialize};

/// Permission to be a service and its sidecar.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceIdentity {
    /// The service.
    pub service_name: String,
    /// Datacenters in which it holds; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
}

/// Permission to be a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeIdentity {
    /// The node.
    pub node_name: String,
    /// The datacenter in which it holds.
    pub datacenter: String,
}
