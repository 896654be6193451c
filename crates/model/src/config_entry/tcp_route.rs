//! `tcp-route`: routes TCP connections from an API gateway to a service.
//!
//! Entries are validated and stored; no API gateway is served yet.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights};
use super::reference::{ResourceReference, Status, normalise_parents, validate_parents};
use crate::invalid::Invalid;
use crate::json::shown::null_if_empty;
use crate::served::field::Rows;
use crate::served::field::Served::{Inside, Yes};
use crate::tenancy::TenancyName;
use crate::{meta, name};

/// Routes TCP connections to a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TcpRoute {
    /// Its name.
    pub name: String,
    /// Namespace; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// The gateways or gateway listeners that it attaches to.
    #[serde(serialize_with = "null_if_empty")]
    pub parents: Vec<ResourceReference>,
    /// Target services; at most one.
    #[serde(serialize_with = "null_if_empty")]
    pub services: Vec<TcpRouteService>,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Status, as a control loop would report it.
    pub status: Status,
    /// Part of entries that Consul returns. Accepted so that they can be written back, and ignored.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
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
    const IN_EFFECT: bool = false;
    const SERVED: &'static [Rows] = &[
        (
            "TcpRoute",
            &[
                (Yes, "Name Meta Status Hash CreateIndex ModifyIndex"),
                (Inside, "Parents Services"),
                (Yes, "Namespace Partition"),
            ],
        ),
        (
            "TcpRouteService",
            &[(Yes, "Name"), (Yes, "Namespace Partition")],
        ),
    ];

    fn name(&self) -> &str {
        &self.name
    }

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
