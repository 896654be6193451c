//! A service instance with its node and checks, as discovery endpoints return it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::check::{CheckStatus, HealthCheck};
use crate::locality::Locality;
use crate::node::Node;
use crate::service::ServiceInstance;
use crate::wan_address::WAN;

/// An instance with its node and the checks of both. The parts are shared, not copied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

    /// The address for callers in other datacenters, as in Consul: the tagged address `wan` of the instance, its own
    /// address, the tagged address `wan` of its node, or that of the node.
    pub fn wan_address(&self) -> (&str, u16) {
        let service = &self.service;
        let tagged = service.tagged_addresses.get(WAN);
        let tagged = tagged.filter(|tagged| !tagged.address.is_empty());
        let port = tagged.map_or(0, |tagged| tagged.port);
        let port = match port {
            0 => service.port,
            tagged => tagged,
        };
        let of_node = self.node.tagged_addresses.get(WAN);
        let of_node = of_node.filter(|address| !address.is_empty());
        let host = match (tagged, service.address.as_str()) {
            (Some(tagged), _) => tagged.address.as_str(),
            (None, "") => of_node.unwrap_or(&self.node.address),
            (None, own) => own,
        };
        (host, port)
    }

    /// The instance with the address for callers in other datacenters as its own.
    #[must_use]
    pub fn at_wan_address(&self) -> Self {
        let (host, port) = self.wan_address();
        if (host, port) == self.address() {
            return self.clone();
        }
        let service = ServiceInstance {
            address: host.to_owned(),
            port,
            ..ServiceInstance::clone(&self.service)
        };
        Self {
            service: service.into(),
            ..self.clone()
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::ServiceAddress;

    #[test]
    fn other_datacenters_use_the_most_specific_address() {
        let mut one = CheckServiceNode {
            node: Arc::new(Node {
                address: "10.0.0.1".to_owned(),
                ..Node::default()
            }),
            service: Arc::new(ServiceInstance {
                port: 80,
                ..ServiceInstance::default()
            }),
            checks: Vec::new(),
        };
        assert_eq!(one.wan_address(), ("10.0.0.1", 80));
        let node = Arc::make_mut(&mut one.node);
        node.tagged_addresses
            .insert(WAN.to_owned(), "192.0.2.1".to_owned());
        assert_eq!(one.wan_address(), ("192.0.2.1", 80));
        Arc::make_mut(&mut one.service).address = "10.0.0.2".to_owned();
        assert_eq!(one.wan_address(), ("10.0.0.2", 80));
        let tagged = |port| ServiceAddress {
            address: "192.0.2.2".to_owned(),
            port,
        };
        let service = Arc::make_mut(&mut one.service);
        service.tagged_addresses.insert(WAN.to_owned(), tagged(0));
        assert_eq!(one.wan_address(), ("192.0.2.2", 80));
        let service = Arc::make_mut(&mut one.service);
        service.tagged_addresses.insert(WAN.to_owned(), tagged(443));
        assert_eq!(one.at_wan_address().address(), ("192.0.2.2", 443));
        assert_eq!(one.at_wan_address().at_wan_address(), one.at_wan_address());
    }
}
