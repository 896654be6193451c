//! Addresses for clients in other datacenters, where `translate_wan_addrs` asks for them. Looks up nothing.
//!
//! As in Consul: the tagged address `wan` in place of the general one, `wan_ipv4` or `wan_ipv6` where the family matters,
//! and otherwise IPv6 first. Consul also takes `lan_ipv4` before `wan`; here an address for this network never hides one
//! for others.

use std::sync::Arc;

use crate::catalog::ServiceNode;
use crate::instance::CheckServiceNode;
use crate::node::Node;
use crate::service::ServiceInstance;

/// The tag of the address for other datacenters, of any family.
pub(crate) const WAN: &str = "wan";
/// The tags of those of one family, in the order of preference.
pub const WAN_FAMILIES: [&str; 2] = ["wan_ipv6", "wan_ipv4"];

/// The tagged address for other datacenters: the first of these families, or the general one.
pub fn wan_address<'a>(
    families: &[&str],
    tagged: impl Fn(&str) -> Option<&'a str>,
) -> Option<&'a str> {
    let mut tags = families.iter().copied().chain([WAN]);
    tags.find_map(|tag| tagged(tag).filter(|address| !address.is_empty()))
}

impl Node {
    /// The node with the address for clients in other datacenters, if it has one.
    pub fn for_elsewhere(self: &Arc<Self>) -> Arc<Self> {
        let tagged = |tag: &str| self.tagged_addresses.get(tag).map(String::as_str);
        let mut node = Arc::clone(self);
        if let Some(address) = wan_address(&WAN_FAMILIES, tagged) {
            address.clone_into(&mut Arc::make_mut(&mut node).address);
        }
        node
    }
}

impl ServiceInstance {
    /// The port for clients in other datacenters: that of the tagged address `wan`, if it has one.
    pub fn wan_port(&self) -> u16 {
        let tagged = self.tagged_addresses.get(WAN).map(|tagged| tagged.port);
        tagged.filter(|port| *port != 0).unwrap_or(self.port)
    }

    /// The instance with the address and the port for clients in other datacenters, as far as it has these.
    pub fn for_elsewhere(self: &Arc<Self>) -> Arc<Self> {
        let tagged = |tag: &str| self.tagged_addresses.get(tag).map(|at| at.address.as_str());
        let (address, port) = (wan_address(&WAN_FAMILIES, tagged), self.wan_port());
        let mut service = Arc::clone(self);
        if address.is_some() || port != self.port {
            let own = Arc::make_mut(&mut service);
            own.port = port;
            if let Some(address) = address {
                address.clone_into(&mut own.address);
            }
        }
        service
    }
}

impl CheckServiceNode {
    /// The same with the addresses for clients in other datacenters. Unlike [`Self::at_wan_address`], node and instance keep
    /// theirs apart.
    #[must_use]
    pub fn for_elsewhere(&self) -> Self {
        Self {
            node: self.node.for_elsewhere(),
            service: self.service.for_elsewhere(),
            checks: self.checks.clone(),
        }
    }
}

impl ServiceNode {
    /// Replaces the addresses and the port by those for clients in other datacenters.
    pub fn set_for_elsewhere(&mut self) {
        let tagged = |tag: &str| self.tagged_addresses.get(tag).map(String::as_str);
        if let Some(address) = wan_address(&WAN_FAMILIES, tagged) {
            self.address = address.to_owned();
        }
        let tagged = &self.service_tagged_addresses;
        let of_service = |tag: &str| tagged.get(tag).map(|at| at.address.as_str());
        if let Some(address) = wan_address(&WAN_FAMILIES, of_service) {
            self.service_address = address.to_owned();
        }
        let port = tagged.get(WAN).map_or(0, |tagged| tagged.port);
        if port != 0 {
            self.service_port = port;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::ServiceAddress;

    fn instance(node: &[(&str, &str)], service: &[(&str, &str, u16)]) -> CheckServiceNode {
        let tagged = |(tag, address): &(&str, &str)| ((*tag).to_owned(), (*address).to_owned());
        let of_service = |(tag, address, port): &(&str, &str, u16)| {
            let address = (*address).to_owned();
            (
                (*tag).to_owned(),
                ServiceAddress {
                    address,
                    port: *port,
                },
            )
        };
        CheckServiceNode {
            node: Arc::new(Node {
                address: "10.0.0.1".to_owned(),
                tagged_addresses: node.iter().map(tagged).collect(),
                ..Node::default()
            }),
            service: Arc::new(ServiceInstance {
                address: "10.0.0.2".to_owned(),
                port: 80,
                tagged_addresses: service.iter().map(of_service).collect(),
                ..ServiceInstance::default()
            }),
            checks: Vec::new(),
        }
    }

    /// The addresses of the node and the instance, in both forms.
    fn translated(one: &CheckServiceNode) -> (String, String, u16) {
        let there = one.for_elsewhere();
        let mut row = ServiceNode::from(one);
        row.set_for_elsewhere();
        let (node, service) = (&there.node.address, &there.service.address);
        assert_eq!((&row.address, &row.service_address), (node, service));
        assert_eq!(row.service_port, there.service.port);
        (node.clone(), service.clone(), there.service.port)
    }

    #[test]
    fn tagged_addresses_take_the_place_of_the_own_ones() {
        let of = |node: &[(&str, &str)], service: &[(&str, &str, u16)]| {
            translated(&instance(node, service))
        };
        let is = |node: &str, service: &str, port| (node.to_owned(), service.to_owned(), port);
        assert_eq!(of(&[], &[]), is("10.0.0.1", "10.0.0.2", 80));
        let lan = [("lan", "10.9.9.9"), ("lan_ipv4", "10.9.9.9")];
        assert_eq!(of(&lan, &[]), is("10.0.0.1", "10.0.0.2", 80));
        assert_eq!(
            of(&[("wan", "192.0.2.1")], &[("wan", "192.0.2.2", 443)]),
            is("192.0.2.1", "192.0.2.2", 443)
        );
        assert_eq!(
            of(&[("wan", "")], &[("wan", "", 443)]),
            is("10.0.0.1", "10.0.0.2", 443)
        );
        let both = [
            ("wan", "192.0.2.1"),
            ("wan_ipv4", "192.0.2.4"),
            ("lan_ipv4", "10.9.9.9"),
        ];
        let families = [("wan_ipv4", "192.0.2.5", 9), ("wan_ipv6", "2001:db8::5", 9)];
        assert_eq!(of(&both, &families), is("192.0.2.4", "2001:db8::5", 80));
    }
}
