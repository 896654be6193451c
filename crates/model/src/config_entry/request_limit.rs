//! `control-plane-request-limit`: limits the request rate that servers accept from one address.
//!
//! Consul Enterprise only. Entries are validated and stored; they limit nothing yet.

use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use crate::invalid::Invalid;
use crate::{meta, name};

/// What happens to requests above a limit.
const MODES: [&str; 3] = ["permissive", "enforcing", "disabled"];

entry! {
    /// Limits on the request rate that servers accept from one address.
    pub struct ControlPlaneRequestLimit {
        /// Its name.
        pub name: String,
        /// `permissive`, `enforcing` or `disabled`; empty means the first.
        pub mode: String,
        /// Reads of any kind, per second; 0 means no limit.
        pub read_rate: f64,
        /// Writes of any kind, per second; 0 means no limit.
        pub write_rate: f64,
        /// ACL tokens, policies, roles, auth methods and binding rules.
        #[serde(rename = "ACL", skip_serializing_if = "Option::is_none")]
        pub acl: Option<RequestRates>,
        /// The catalog.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub catalog: Option<RequestRates>,
        /// Config entries.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub config_entry: Option<RequestRates>,
        /// The CA.
        #[serde(rename = "ConnectCA", skip_serializing_if = "Option::is_none")]
        pub connect_ca: Option<RequestRates>,
        /// Network coordinates.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub coordinate: Option<RequestRates>,
        /// Discovery chains.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub discovery_chain: Option<RequestRates>,
        /// Lists of servers.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub server_discovery: Option<RequestRates>,
        /// Health endpoints.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub health: Option<RequestRates>,
        /// Intentions.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub intention: Option<RequestRates>,
        /// Keys and values.
        #[serde(rename = "KV", skip_serializing_if = "Option::is_none")]
        pub kv: Option<RequestRates>,
        /// Namespaces and partitions.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub tenancy: Option<RequestRates>,
        /// Prepared queries.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub prepared_query: Option<RequestRates>,
        /// Sessions.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub session: Option<RequestRates>,
        /// Transactions.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub txn: Option<RequestRates>,
        /// Auto-configuration of agents.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub auto_config: Option<RequestRates>,
        /// Federation states.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub federation_state: Option<RequestRates>,
        /// Endpoints for user interfaces.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub internal: Option<RequestRates>,
        /// Streams from peered clusters.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub peer_stream: Option<RequestRates>,
        /// Peerings.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub peering: Option<RequestRates>,
        /// Data plane endpoints for sidecars.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub data_plane: Option<RequestRates>,
        /// DNS.
        #[serde(rename = "DNS", skip_serializing_if = "Option::is_none")]
        pub dns: Option<RequestRates>,
        /// Event subscriptions.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub subscribe: Option<RequestRates>,
        /// The resource API.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub resource: Option<RequestRates>,
    }
}

/// Limits for one category of requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RequestRates {
    /// Reads per second; 0 means no limit.
    pub read_rate: f64,
    /// Writes per second; 0 means no limit.
    pub write_rate: f64,
}

impl Entry for ControlPlaneRequestLimit {
    const RIGHTS: EntryRights = EntryRights::Operator;
    const IN_EFFECT: bool = false;

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_entry_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)?;
        if !self.mode.is_empty() && !MODES.contains(&self.mode.as_str()) {
            let reason = format!("{:?} must be one of {}", self.mode, MODES.join(", "));
            return Err(Invalid::new("Mode", reason));
        }
        let own = RequestRates {
            read_rate: self.read_rate,
            write_rate: self.write_rate,
        };
        own.validate()?;
        for (field, rates) in self.parts() {
            if let Some(rates) = rates {
                rates.validate().map_err(|error| error.within(field))?;
            }
        }
        Ok(())
    }

    fn normalise(&mut self) {
        if self.mode.is_empty() {
            self.mode = MODES[0].to_owned();
        }
    }
}

impl ControlPlaneRequestLimit {
    fn parts(&self) -> [(&str, Option<&RequestRates>); 23] {
        [
            ("ACL", self.acl.as_ref()),
            ("Catalog", self.catalog.as_ref()),
            ("ConfigEntry", self.config_entry.as_ref()),
            ("ConnectCA", self.connect_ca.as_ref()),
            ("Coordinate", self.coordinate.as_ref()),
            ("DiscoveryChain", self.discovery_chain.as_ref()),
            ("ServerDiscovery", self.server_discovery.as_ref()),
            ("Health", self.health.as_ref()),
            ("Intention", self.intention.as_ref()),
            ("KV", self.kv.as_ref()),
            ("Tenancy", self.tenancy.as_ref()),
            ("PreparedQuery", self.prepared_query.as_ref()),
            ("Session", self.session.as_ref()),
            ("Txn", self.txn.as_ref()),
            ("AutoConfig", self.auto_config.as_ref()),
            ("FederationState", self.federation_state.as_ref()),
            ("Internal", self.internal.as_ref()),
            ("PeerStream", self.peer_stream.as_ref()),
            ("Peering", self.peering.as_ref()),
            ("DataPlane", self.data_plane.as_ref()),
            ("DNS", self.dns.as_ref()),
            ("Subscribe", self.subscribe.as_ref()),
            ("Resource", self.resource.as_ref()),
        ]
    }
}

impl RequestRates {
    fn validate(&self) -> Result<(), Invalid> {
        for (field, rate) in [("ReadRate", self.read_rate), ("WriteRate", self.write_rate)] {
            if !(rate.is_finite() && rate >= 0.0) {
                return Err(Invalid::new(field, format!("{rate} must not be below 0")));
            }
        }
        Ok(())
    }
}
