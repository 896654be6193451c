//! Registrations and deregistrations, each applied in one step.

use legate_model::{HealthCheck, Node, ServiceInstance};

/// A node, and its instance and checks to register in the same step.
#[derive(Debug, Clone)]
pub struct Registration {
    /// The node. Its indexes are ignored.
    pub node: Node,
    /// An instance on the node. Its indexes are ignored; an empty id means the service's name.
    pub service: Option<ServiceInstance>,
    /// Checks of the node (without a service id) or of an instance on it. An empty check id means
    /// the check's name.
    pub checks: Vec<HealthCheck>,
    /// Leaves an existing node unchanged, and refuses one that does not exist.
    pub skip_node_update: bool,
}

/// What to remove: the instance if it is set, else the check if it is set, else the node with
/// everything on it. A no-op if it does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deregistration {
    /// The node's name.
    pub node: String,
    /// The instance's id.
    pub service_id: Option<String>,
    /// The check's id.
    pub check_id: Option<String>,
}
