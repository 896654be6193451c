//! `tcp-route`: routes TCP connections from an API gateway to a service.

use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use super::reference::{ResourceReference, Status, normalise_parents, validate_parents};
use crate::invalid::Invalid;
use crate::json::shown::null_if_empty;
use crate::tenancy::TenancyName;
use crate::{meta, name};

entry! {
    /// Routes TCP connections to a service.
    pub struct TcpRoute {
        /// Its name.
        pub name: String,
        /// The gateways or gateway listeners that it attaches to.
        #[serde(serialize_with = "null_if_empty")]
        pub parents: Vec<ResourceReference>,
        /// Target services; at most one.
        #[serde(serialize_with = "null_if_empty")]
        pub services: Vec<TcpRouteService>,
        /// Status, computed when the entry is read.
        pub status: Status,
    }
}

/// A target service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TcpRouteService {
    /// Its name.
    pub name: String,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

impl Entry for TcpRoute {
    const RIGHTS: EntryRights = EntryRights::MeshOnly;

    /// With Consul's error texts.
    fn validate(&self) -> Result<(), Invalid> {
        name::validate_entry_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        if self.services.len() > 1 {
            return Err(Invalid::new(
                "Services",
                "tcp-route currently only supports one service",
            ));
        }
        validate_parents(&self.parents)?;
        meta::validate_entry("Meta", &self.meta)
    }

    fn normalise(&mut self) {
        normalise_parents(&mut self.parents);
    }
}
