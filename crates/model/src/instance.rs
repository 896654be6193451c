//! A service instance with its node and checks, as discovery endpoints return it.

use std::sync::Arc;

use serde::Serialize;

use crate::check::{CheckStatus, HealthCheck};
use crate::locality::Locality;
use crate::node::Node;
use crate::service::ServiceInstance;

/// An instance with its node and the checks of both. The parts are shared, not copied.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct CheckServiceNode {
    /// The instance's node.
    pub node: Arc<Node>,
    /// The instance.
    pub service: Arc<ServiceInstance>,
    /// Checks of the instance and of its node.
    pub checks: Vec<Arc<HealthCheck>>,
}

impl CheckServiceNode {
    /// The address for callers in the same datacenter: the instance's, or the node's.
    pub fn address(&self) -> (&str, u16) {
        let host = match self.service.address.as_str() {
            "" => self.node.address.as_str(),
            own => own,
        };
        (host, self.service.port)
    }

    /// The instance's locality, or the node's.
    pub fn locality(&self) -> Option<&Locality> {
        let own = self.service.locality.as_deref();
        own.or(self.node.locality.as_deref())
    }

    /// The worst status of its checks; passing if there are none.
    pub fn health(&self) -> CheckStatus {
        self.checks
            .iter()
            .map(|check| check.status)
            .max()
            .unwrap_or(CheckStatus::Passing)
    }

    /// Load balancing weight for its health; 0 means no traffic.
    pub fn weight(&self) -> u32 {
        match self.health() {
            CheckStatus::Passing => self.service.weights.passing,
            CheckStatus::Warning => self.service.weights.warning,
            CheckStatus::Critical => 0,
        }
    }
}
