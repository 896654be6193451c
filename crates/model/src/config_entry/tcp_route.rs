//! `tcp-route`: which service takes the connections that come in through an API gateway.
//!
//! Entries are kept and checked; no API gateway is served yet.

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

/// Which service takes connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TcpRoute {
    /// Its name.
    pub name: String,
    /// The namespace that it is in; empty for `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition that it is in; empty for `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// The gateways, or listeners of gateways, that it belongs to.
    #[serde(serialize_with = "null_if_empty")]
    pub parents: Vec<ResourceReference>,
    /// At most one.
    #[serde(serialize_with = "null_if_empty")]
    pub services: Vec<TcpRouteService>,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// What became of it.
    pub status: Status,
    /// Written by Consul when it shows an entry, so that one can be copied from there; not used.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// A service that connections go to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TcpRouteService {
    /// Its name.
    pub name: String,
    /// The namespace; empty for the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition; empty for the entry's own.
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

    /// With Consul's words.
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
