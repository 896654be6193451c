//! `sameness-group`: partitions and clusters whose services of the same name are interchangeable.
//!
//! Consul Enterprise only. Entries are validated and stored; nothing fails over to members yet.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use crate::invalid::Invalid;
use crate::json::shown::null_if_empty;
use crate::{meta, name};

entry! {
    /// Partitions and clusters that are failover targets of each other.
    pub struct SamenessGroup {
        /// Its name.
        pub name: String,
        /// Whether services without their own failover use the members as failover targets.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub default_for_failover: bool,
        /// Whether the local partition precedes the members.
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
    const IN_EFFECT: bool = false;

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
            if !seen.insert(member) {
                return refused("it is given more than once");
            }
        }
        Ok(())
    }
}
