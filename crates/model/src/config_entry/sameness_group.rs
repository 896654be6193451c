//! `sameness-group`: partitions and clusters whose services of the same name are interchangeable.
//!
//! Consul Enterprise only. The default group of a partition is where its services fail over if they have no
//! `service-resolver`; other groups have an effect in `exported-services` only.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use crate::invalid::Invalid;
use crate::json::shown::null_if_empty;
use crate::{TenancyName, meta, name};

entry! {
    /// Partitions and clusters that are failover targets of each other.
    pub struct SamenessGroup {
        /// Its name.
        pub name: String,
        /// Whether services of the partition without a `service-resolver` use the members as failover targets. At most one
        /// group of a partition may be so.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub default_for_failover: bool,
        /// Whether the local partition precedes the members. Without effect: it always does.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub include_local: bool,
        /// Members in failover order.
        #[serde(serialize_with = "null_if_empty")]
        pub members: Vec<SamenessGroupMember>,
    }
}

/// A member: a partition or a peered cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SamenessGroupMember {
    /// Name of a partition.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub partition: String,
    /// Name of a peered cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer: String,
}

impl Entry for SamenessGroup {
    const RIGHTS: EntryRights = EntryRights::Mesh;

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_entry_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)?;
        let mut seen = BTreeSet::new();
        for (at, member) in self.members.iter().enumerate() {
            let refused = |reason: &str| Err(Invalid::new(format!("Members[{at}]"), reason));
            if !member.partition.is_empty() && !member.peer.is_empty() {
                return refused("it must be either a Partition or a Peer");
            }
            if let Err(error) = member.partition.parse::<TenancyName>() {
                return Err(Invalid::new(
                    format!("Members[{at}].Partition"),
                    error.to_string(),
                ));
            }
            if !seen.insert(member) {
                return refused("it is given more than once");
            }
        }
        Ok(())
    }
}
