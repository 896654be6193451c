//! A service instance together with its node and checks: what discovery answers with.

use std::sync::Arc;

use serde::Serialize;

use crate::check::{CheckStatus, HealthCheck};
use crate::locality::Locality;
use crate::node::Node;
use crate::service::ServiceInstance;

/// An instance, the node that it is on, and the checks of both. Parts are shared, not copied.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct CheckServiceNode {
    /// Where it is.
    pub node: Arc<Node>,
    /// What it is.
    pub service: Arc<ServiceInstance>,
    /// How it is: the instance's checks and those of the node.
    pub checks: Vec<Arc<HealthCheck>>,
}

impl CheckServiceNode {
    /// Where callers in the same datacenter reach it: the instance's address, else the node's.
    pub fn address(&self) -> (&str, u16) {
        let host = match self.service.address.as_str() {
            "" => self.node.address.as_str(),
            own => own,
        };
        (host, self.service.port)
    }

    /// Where it runs: the instance's own locality, else the node's.
    pub fn locality(&self) -> Option<&Locality> {
        let own = self.service.locality.as_deref();
        own.or(self.node.locality.as_deref())
    }

    /// The worst result of its checks; passing when there are none.
    pub fn health(&self) -> CheckStatus {
        self.checks
            .iter()
            .map(|check| check.status)
            .max()
            .unwrap_or(CheckStatus::Passing)
    }

    /// Share of traffic for its health; 0 when it should get none.
    pub fn weight(&self) -> u32 {
        match self.health() {
            CheckStatus::Passing => self.service.weights.passing,
            CheckStatus::Warning => self.service.weights.warning,
            CheckStatus::Critical => 0,
        }
    }
}
