//! `exported-services`: the services that a partition makes available to others.
//!
//! Proxies of another partition or of a peered cluster can reach the services that are exported to it.
//! `/v1/exported-services` lists them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use crate::invalid::Invalid;
use crate::meta;
use crate::name::WILDCARD;
use crate::schema;
use crate::tenancy::{ServiceName, Tenancy, TenancyName};

/// The error for what peers cannot be sent.
const OTHER_NAMESPACE: &str = "services of other namespaces than default are not exported to peers: leave Namespace or Peer out";

entry! {
    /// Exports of one partition; the entry has the partition's name.
    #[derive(JsonSchema)]
    #[schemars(extend("required" = ["Services"]))]
    pub struct ExportedServices {
        /// The partition.
        pub name: String,
        /// The exported services with their consumers.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(min = 1, max = 1024))]
        pub services: Vec<ExportedService>,
    }
}

/// A service with its consumers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["Name", "Consumers"]))]
pub struct ExportedService {
    /// Service name, or `*` for all services.
    pub name: String,
    /// The service's namespace, or `*` for all namespaces of the partition; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The consumers of the service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 256))]
    pub consumers: Vec<ServiceConsumer>,
}

/// A consumer of a service; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::exactly_one(&["peer", "partition", "samenessGroup"]),
]))]
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
                let refused = |reason: &str| {
                    Invalid::new(format!("Services[{at}].Consumers[{index}]"), reason)
                };
                consumer.validate().map_err(refused)?;
                if !consumer.peer.is_empty() && !service.namespace.is_default() {
                    return Err(refused(OTHER_NAMESPACE));
                }
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
