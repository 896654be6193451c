//! The mesh gateways of each datacenter, as all datacenters that have joined know them.

use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::check::HealthCheck;
use crate::instance::CheckServiceNode;
use crate::timestamp;

/// The mesh gateways of one datacenter. The datacenter itself says what they are, and the primary has those of all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct FederationState {
    /// The datacenter, in lower case.
    pub datacenter: String,
    /// Its mesh gateways in all namespaces of the default partition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mesh_gateways: Vec<CheckServiceNode>,
    /// When it was changed, by the clock of the primary.
    #[serde(with = "timestamp")]
    pub updated_at: SystemTime,
    /// The index of the last write that changed it in the primary.
    #[serde(default)]
    pub primary_modify_index: u64,
    /// The index of the first write here.
    #[serde(default)]
    pub create_index: u64,
    /// The index of the last write here that changed it.
    #[serde(default)]
    pub modify_index: u64,
}

impl FederationState {
    /// Whether its gateways are these. Outputs of checks, and indexes, are not compared.
    pub fn has_gateways(&self, gateways: &[CheckServiceNode]) -> bool {
        self.mesh_gateways.len() == gateways.len()
            && std::iter::zip(&self.mesh_gateways, gateways)
                .all(|(own, other)| compared(own) == compared(other))
    }
}

/// What is compared of a gateway.
fn compared(gateway: &CheckServiceNode) -> CheckServiceNode {
    let mut gateway = gateway.clone();
    let node = Arc::make_mut(&mut gateway.node);
    (node.create_index, node.modify_index) = (0, 0);
    let service = Arc::make_mut(&mut gateway.service);
    (service.create_index, service.modify_index) = (0, 0);
    for check in &mut gateway.checks {
        *check = Arc::new(HealthCheck {
            output: String::new(),
            create_index: 0,
            modify_index: 0,
            ..HealthCheck::clone(check)
        });
    }
    gateway
}
