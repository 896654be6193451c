//! `exported-services`: which services others than this partition may use.
//!
//! `/v1/exported-services` shows what it says; nothing is exported yet.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::registry::{Entry, EntryRights};
use crate::invalid::Invalid;
use crate::served::Rows;
use crate::served::Served::{Inside, Yes};
use crate::served::table::DEFAULT_ONLY;
use crate::tenancy::OnlyDefault;
use crate::{DEFAULT_TENANCY, WILDCARD, meta};

/// What one partition exports; the entry has the partition's name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExportedServices {
    /// The partition.
    pub name: String,
    /// Only the default namespace is served.
    #[serde(skip_serializing)]
    pub namespace: OnlyDefault,
    /// Only the default partition is served.
    #[serde(skip_serializing)]
    pub partition: OnlyDefault,
    /// The services, and who may use each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ExportedService>,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Written by Consul when it shows an entry, so that one can be copied from there; not used.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// A service and who may use it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExportedService {
    /// Its name, or `*` for all of them.
    pub name: String,
    /// Only the default namespace is served.
    #[serde(skip_serializing)]
    pub namespace: OnlyDefault,
    /// Who may use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consumers: Vec<ServiceConsumer>,
}

/// Who may use a service: one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceConsumer {
    /// A partition.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub partition: String,
    /// Another cluster.
    #[serde(alias = "PeerName", skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// All of a group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sameness_group: String,
}

impl Entry for ExportedServices {
    const RIGHTS: EntryRights = EntryRights::MeshOnly;
    const IN_EFFECT: bool = false;
    const SERVED: &'static [Rows] = &[
        (
            "ExportedServices",
            &[
                (Yes, "Name Meta Hash CreateIndex ModifyIndex"),
                (Inside, "Services"),
                (DEFAULT_ONLY, "Namespace Partition"),
            ],
        ),
        (
            "ExportedService",
            &[
                (Yes, "Name"),
                (Inside, "Consumers"),
                (DEFAULT_ONLY, "Namespace"),
            ],
        ),
        (
            "ServiceConsumer",
            &[(Yes, "Partition Peer PeerName SamenessGroup")],
        ),
    ];

    fn name(&self) -> &str {
        &self.name
    }

    /// With Consul's words.
    fn validate(&self) -> Result<(), Invalid> {
        if self.name != DEFAULT_TENANCY {
            let reason = "exported-services Name must be \"default\"";
            return Err(Invalid::new("Name", reason));
        }
        meta::validate_entry("Meta", &self.meta)?;
        for (at, service) in self.services.iter().enumerate() {
            let refused = |reason: &str| Err(Invalid::new(format!("Services[{at}]"), reason));
            if service.name.is_empty() {
                return refused("service name cannot be empty");
            }
            if service.consumers.is_empty() {
                return refused("must have at least one consumer");
            }
            for (index, consumer) in service.consumers.iter().enumerate() {
                consumer.validate().map_err(|reason| {
                    Invalid::new(format!("Services[{at}].Consumers[{index}]"), reason)
                })?;
            }
        }
        Ok(())
    }
}

impl ServiceConsumer {
    fn validate(&self) -> Result<(), &'static str> {
        let named = [&self.partition, &self.peer, &self.sameness_group];
        if named.iter().filter(|name| !name.is_empty()).count() > 1 {
            return Err("must define at most one of Peer, Partition, or SamenessGroup");
        }
        if self.partition == WILDCARD {
            return Err("exporting to all partitions (wildcard) is not supported");
        }
        if self.peer == WILDCARD {
            return Err("exporting to all peers (wildcard) is not supported");
        }
        Ok(())
    }
}
