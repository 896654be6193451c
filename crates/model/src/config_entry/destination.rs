//! A service outside the mesh that callers reach through a terminating gateway: `Destination` of
//! `service-defaults`.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::validate::validate_host;

/// The maximum number of addresses; each is a cluster in every caller's proxy.
const MAX_ADDRESSES: usize = 256;

/// Location of a service outside the mesh.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["Addresses", "Port"]))]
pub struct Destination {
    /// Host names and IP addresses of the service; each is reachable by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 256))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub addresses: Vec<String>,
    /// Port of all addresses.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

impl Destination {
    /// The form of an address in cluster names, and in the server name by which the gateway
    /// identifies it. As in Consul.
    pub fn label(address: &str) -> String {
        address.replace([':', '.'], "-")
    }

    /// With Consul's error texts. In addition, two addresses with the same label are refused, since a
    /// gateway could not distinguish them.
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if self.addresses.is_empty() {
            return Err(Invalid::new(
                "Addresses",
                "Destination must contain at least one valid address",
            ));
        }
        if self.addresses.len() > MAX_ADDRESSES {
            let reason = format!("at most {MAX_ADDRESSES} addresses can be given");
            return Err(Invalid::new("Addresses", reason));
        }
        let mut seen = BTreeSet::new();
        for (at, address) in self.addresses.iter().enumerate() {
            let field = format!("Addresses[{at}]");
            if address.is_empty() || validate_host("", address).is_err() {
                let shown: String = address.chars().take(80).collect();
                let reason = format!("Could not validate address {shown} as an IP or Hostname");
                return Err(Invalid::new(field, reason));
            }
            if !seen.insert(Self::label(address).to_lowercase()) {
                let reason = format!(
                    "Duplicate address '{address}' is not allowed (colons and dots count as hyphens)"
                );
                return Err(Invalid::new(field, reason));
            }
        }
        if self.port == 0 {
            return Err(Invalid::new("Port", "Invalid Port number 0"));
        }
        Ok(())
    }
}
