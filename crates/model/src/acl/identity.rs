//! Service and node identities: permission to act as a service or node without an explicit policy.

use serde::{Deserialize, Serialize};

/// Permission to act as a service and its sidecar.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceIdentity {
    /// The service.
    pub service_name: String,
    /// Datacenters in which it is valid; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
}

/// Permission to act as a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeIdentity {
    /// The node.
    pub node_name: String,
    /// The datacenter in which it is valid.
    pub datacenter: String,
}
