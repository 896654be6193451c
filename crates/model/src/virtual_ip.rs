//! Virtual IPs of mesh services: automatic allocation, and addresses that clients assign. Pure; the
//! store records allocations in the transaction that registers the service.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::config_entry::ConfigKind;
use crate::invalid::Invalid;
use crate::name::{self, WILDCARD};
use crate::tenancy::TenancyName;

/// Key of the tagged address that contains a mesh service's virtual IP.
pub const TAGGED_ADDRESS: &str = "consul-virtual";

/// Key of the tagged address that contains a service's external virtual IP, such as the ClusterIP of
/// a Kubernetes Service. As in Consul.
pub const EXTERNAL_TAGGED_ADDRESS: &str = "virtual";

/// The maximum number of assigned addresses per service, as in Consul.
pub const MAX_MANUAL: usize = 8;

/// The address before the range; never allocated. As in Consul.
const BASE: u32 = Ipv4Addr::new(240, 0, 0, 0).to_bits();

/// The first offset above the range, as in Consul.
const END: u32 = Ipv4Addr::new(15, 255, 255, 254).to_bits();

/// The number of addresses in the range.
pub const COUNT: u32 = END - 1;

/// A virtual IP as stored in rows: the offset from 240.0.0.0. Unique in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct VirtualIp(u32);

/// An offset outside of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a virtual IP: it must be from 1 to {COUNT}")]
pub struct OutOfRange(u32);

/// Whether a config entry entitles its service to a virtual IP, as an instance in the mesh does.
/// Consul's kinds.
pub fn is_given_for(kind: ConfigKind, name: &str) -> bool {
    match kind {
        ConfigKind::ServiceDefaults
        | ConfigKind::ServiceRouter
        | ConfigKind::ServiceSplitter
        | ConfigKind::ServiceResolver => true,
        ConfigKind::ServiceIntentions => !name.contains(WILDCARD),
        _ => false,
    }
}

impl VirtualIp {
    /// Allocates a virtual IP for a service without one: a released one, or else the one after the
    /// `last` that was ever allocated. `None` means that the range is exhausted and the registration
    /// must be refused.
    pub fn choose(given_back: Option<Self>, last: Option<Self>) -> Option<Self> {
        if given_back.is_some() {
            return given_back;
        }
        let next = last.map_or(1, |last| last.0.saturating_add(1));
        (next < END).then_some(Self(next))
    }

    /// The address.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(BASE + self.0)
    }

    /// The offset, as stored in rows.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for VirtualIp {
    type Error = OutOfRange;

    fn try_from(number: u32) -> Result<Self, OutOfRange> {
        if (1..END).contains(&number) {
            Ok(Self(number))
        } else {
            Err(OutOfRange(number))
        }
    }
}

impl From<VirtualIp> for u32 {
    fn from(ip: VirtualIp) -> u32 {
        ip.0
    }
}

/// Body of `PUT /v1/internal/service-virtual-ip`: replaces the addresses of a service that are
/// assigned in addition to its automatic one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AssignVirtualIps {
    /// Datacenter of the service; empty means the server's.
    pub datacenter: String,
    /// The service.
    pub service: String,
    /// IPv4 addresses, at most [`MAX_MANUAL`]. Empty removes all of them.
    #[serde(rename = "ManualVIPs")]
    pub manual_vips: Vec<String>,
    /// Namespace; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

impl AssignVirtualIps {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.service)
            .map_err(|error| Invalid::new("Service", error.to_string()))?;
        self.addresses().map(|_| ())
    }

    /// The addresses, without duplicates.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when one is not an IPv4 address, or there are too many.
    pub fn addresses(&self) -> Result<BTreeSet<Ipv4Addr>, Invalid> {
        // Before removing duplicates, as in Consul.
        if self.manual_vips.len() > MAX_MANUAL {
            return Err(Invalid::new(
                "ManualVIPs",
                format!("a service can have {MAX_MANUAL} manual virtual IPs at most"),
            ));
        }
        let parse = |(place, text): (usize, &String)| {
            text.parse().map_err(|_| {
                let at = format!("ManualVIPs[{place}]");
                Invalid::new(at, format!("{text:?} is not a valid IPv4 address"))
            })
        };
        self.manual_vips.iter().enumerate().map(parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(addresses: &[&str]) -> Result<BTreeSet<Ipv4Addr>, Invalid> {
        let request = AssignVirtualIps {
            service: "web".to_owned(),
            manual_vips: addresses.iter().map(|one| (*one).to_owned()).collect(),
            ..AssignVirtualIps::default()
        };
        request.validate().and_then(|()| request.addresses())
    }

    #[test]
    fn eight_ipv4_addresses_can_be_assigned() {
        let twice = assigned(&["10.0.0.1", "10.0.0.1"]).unwrap();
        assert_eq!(twice, BTreeSet::from([Ipv4Addr::new(10, 0, 0, 1)]));
        assert!(assigned(&[]).unwrap().is_empty());
        assert!(assigned(&["10.0.0.1"; 8]).is_ok());
        let many = assigned(&["10.0.0.1"; 9]).unwrap_err().to_string();
        assert!(many.contains("ManualVIPs") && many.contains('8'), "{many}");
        for wrong in ["::1", "", "10.0.0.1/32", "web"] {
            let refused = assigned(&["10.0.0.2", wrong]).unwrap_err().to_string();
            assert!(refused.contains("ManualVIPs[1]"), "{refused}");
        }
        assert!(AssignVirtualIps::default().validate().is_err());
    }

    #[test]
    fn addresses_are_allocated_in_order_and_reused() {
        let first = VirtualIp::choose(None, None).unwrap();
        assert_eq!(first.address(), Ipv4Addr::new(240, 0, 0, 1));
        let second = VirtualIp::choose(None, Some(first)).unwrap();
        assert_eq!(second.address(), Ipv4Addr::new(240, 0, 0, 2));
        assert_eq!(VirtualIp::choose(Some(first), Some(second)), Some(first));
    }

    #[test]
    fn some_config_entries_allocate_a_virtual_ip() {
        assert!(is_given_for(ConfigKind::ServiceDefaults, "web"));
        assert!(is_given_for(ConfigKind::ServiceIntentions, "web"));
        assert!(!is_given_for(ConfigKind::ServiceIntentions, "*"));
        assert!(!is_given_for(ConfigKind::ProxyDefaults, "global"));
        assert!(!is_given_for(ConfigKind::Mesh, "mesh"));
    }

    #[test]
    fn the_range_has_an_end() {
        let last = VirtualIp::try_from(COUNT).unwrap();
        assert_eq!(last.address(), Ipv4Addr::new(255, 255, 255, 253));
        assert_eq!(VirtualIp::choose(None, Some(last)), None);
        assert_eq!(VirtualIp::try_from(last.number()), Ok(last));
        assert_eq!(VirtualIp::try_from(END), Err(OutOfRange(END)));
        assert_eq!(VirtualIp::try_from(0), Err(OutOfRange(0)));
    }
}
