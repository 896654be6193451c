//! `exported-services`: the services that a partition makes available to others.
//!
//! Proxies of another partition can reach the services that are exported to it.
//! `/v1/exported-services` lists them. Exports to other clusters have no effect.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights};
use crate::invalid::Invalid;
use crate::meta;
use crate::name::WILDCARD;
use crate::served::field::Served::{Inside, Yes};
use crate::served::field::{REPORTED, Rows};
use crate::tenancy::{ServiceName, Tenancy, TenancyName};

/// Exports of one partition; the entry has the partition's name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExportedServices {
    /// The partition.
    pub name: String,
    /// Namespace; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// The exported services with their consumers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ExportedService>,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Part of entries that Consul returns. Accepted so that they can be written back, and ignored.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// A service with its consumers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExportedService {
    /// Service name, or `*` for all services.
    pub name: String,
    /// The service's namespace, or `*` for all namespaces of the partition; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The consumers of the service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consumers: Vec<ServiceConsumer>,
}

/// A consumer of a service; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceConsumer {
    /// Name of a partition.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub partition: String,
    /// Name of a peered cluster.
    #[serde(alias = "PeerName", skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// Name of a sameness group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sameness_group: String,
}

impl ExportedServices {
    /// The consumers of a service of the entry's partition.
    pub fn consumers<'a>(
        &'a self,
        service: &'a ServiceName,
    ) -> impl Iterator<Item = &'a ServiceConsumer> {
        let exported = self.services.iter().filter(|one| one.is(service));
        exported.flat_map(|one| &one.consumers)
    }
}

impl ExportedService {
    fn is(&self, service: &ServiceName) -> bool {
        let own = Tenancy::new(TenancyName::NONE, &self.namespace).namespace;
        (self.namespace.is_every() || own == service.tenancy.namespace)
            && (self.name == WILDCARD || self.name.eq_ignore_ascii_case(&service.name))
    }
}

impl Entry for ExportedServices {
    const RIGHTS: EntryRights = EntryRights::MeshOnly;
    const SERVED: &'static [Rows] = &[
        (
            "ExportedServices",
            &[
                (Yes, "Name Meta Hash CreateIndex ModifyIndex"),
                (Inside, "Services"),
                (Yes, "Namespace Partition"),
            ],
        ),
        (
            "ExportedService",
            &[(Yes, "Name"), (Inside, "Consumers"), (Yes, "Namespace")],
        ),
        (
            "ServiceConsumer",
            &[
                (Yes, "Partition SamenessGroup"),
                (REPORTED, "Peer PeerName"),
            ],
        ),
    ];

    fn name(&self) -> &str {
        &self.name
    }

    /// With Consul's error texts.
    fn validate(&self) -> Result<(), Invalid> {
        let own = Tenancy::new(&self.partition, &self.namespace).partition;
        if *self.name != *own {
            let reason = format!("exported-services Name must be {own:?}");
            return Err(Invalid::new("Name", reason));
        }
        meta::validate_entry("Meta", &self.meta)?;
        for (at, service) in self.services.iter().enumerate() {
            let refused = |reason: &str| Err(Invalid::new(format!("Services[{at}]"), reason));
            if service.name.is_empty() {
                return refused("service name cannot be empty");
            }
            if service.namespace.is_every() && service.name != WILDCARD {
                return refused("exact value cannot follow wildcard namespace");
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
