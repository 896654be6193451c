//! Decides what to do with a resource, given the servers' entry and the other resources of the same
//! entry. Pure.

use std::time::Duration;

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::Value;

use super::entry::{Entry, SOURCE_DATACENTER};
use super::same;

/// Annotation that lets a resource take over an existing entry with the same content.
pub const MIGRATE_ENTRY: &str = "consul.hashicorp.com/migrate-entry";
/// The maximum number of differences in a message.
const NAMED_DIFFERENCES: usize = 5;

/// Why a resource is not written: the `reason` of its condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The servers refuse or are unreachable. Consul's integration uses the same word.
    Servers,
    /// The entry was created by someone else. Consul's integration uses the same word.
    ExternallyManaged,
    /// The entry to take over has other content. Consul's integration uses the same word.
    MigrationFailed,
    /// An older resource defines the same entry.
    Duplicate,
    /// The resource has a field that cannot be written.
    Invalid,
}

impl Reason {
    /// The text in the condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Servers => "ConsulAgentError",
            Reason::ExternallyManaged => "ExternallyManagedConfigError",
            Reason::MigrationFailed => "MigrationFailedError",
            Reason::Duplicate => "DuplicateResourceError",
            Reason::Invalid => "InvalidResourceError",
        }
    }
}

/// What to do with an existing resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Write the entry if its index is still this one; 0 means that it does not exist yet.
    Put {
        /// `ModifyIndex` of the entry that was read.
        index: u64,
    },
    /// Nothing: the servers have the entry already.
    Keep,
    /// Write nothing, and report this reason and message.
    Refuse(Reason, String),
}

/// Decides what to write for a resource, given the servers' entry `found`.
#[must_use]
pub fn write(wanted: &Entry, found: Option<&Value>, datacenter: &str, migrate: bool) -> Write {
    let Some(found) = found else {
        return Write::Put { index: 0 };
    };
    let owner = owner(found);
    let ours = owner == Some(datacenter);
    let differences = same::differences(wanted, found, NAMED_DIFFERENCES);
    match (differences.is_empty(), ours, migrate) {
        (true, true, _) | (true, false, false) => Write::Keep,
        (false, true, _) | (true, false, true) => Write::Put {
            index: index(found),
        },
        (false, false, true) => Write::Refuse(
            Reason::MigrationFailed,
            format!(
                "the entry of the servers differs in {}: make the resource match, and it \
                 is taken over",
                differences.join(", ")
            ),
        ),
        (false, false, false) => Write::Refuse(Reason::ExternallyManaged, not_ours(owner)),
    }
}

fn not_ours(owner: Option<&str>) -> String {
    match owner {
        None => format!(
            "config entry already exists in Consul and was not created by a resource: remove it \
             there, or make the resource match and annotate it with {MIGRATE_ENTRY}=true"
        ),
        Some(datacenter) => {
            format!("config entry managed in different datacenter: {datacenter:?}")
        }
    }
}

/// What to do with the entry of a deleted resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Delete the entry if its index is still this one.
    Delete {
        /// `ModifyIndex` of the entry that was read.
        index: u64,
    },
    /// Nothing: the entry does not exist or is not the resource's.
    Leave,
}

/// Decides what to do with the entry `found` of a resource that is being deleted.
#[must_use]
pub fn removal(found: Option<&Value>, datacenter: &str) -> Removal {
    match found {
        Some(found) if owner(found) == Some(datacenter) => Removal::Delete {
            index: index(found),
        },
        _ => Removal::Leave,
    }
}

fn owner(entry: &Value) -> Option<&str> {
    entry["Meta"][SOURCE_DATACENTER]
        .as_str()
        .filter(|datacenter| !datacenter.is_empty())
}

fn index(entry: &Value) -> u64 {
    entry["ModifyIndex"].as_u64().unwrap_or_default()
}

/// Whether the resource's annotation permits to take over an existing entry.
#[must_use]
pub fn may_migrate(resource: &DynamicObject) -> bool {
    resource
        .annotations()
        .get(MIGRATE_ENTRY)
        .map(String::as_str)
        == Some("true")
}

/// The resource that is written, of several for the same entry: the oldest that is not being deleted.
pub fn oldest<'a>(resources: impl Iterator<Item = &'a DynamicObject>) -> Option<&'a DynamicObject> {
    resources
        .filter(|resource| resource.metadata.deletion_timestamp.is_none())
        .min_by_key(|resource| {
            (
                resource.metadata.creation_timestamp.clone(),
                resource.namespace(),
                resource.name_any(),
            )
        })
}

/// The wait after `failures` in a row: 200 ms to 5 s for about a minute, then up to a minute. The
/// first waits are short because a router is often applied just before the protocol that it needs.
#[must_use]
pub fn retry_after(failures: u32) -> Duration {
    const FAST: u32 = 15;
    let (start, doublings) = match failures {
        0..=4 => (200, failures),
        5..FAST => (5_000, 0),
        _ => (5_000, (failures - FAST).min(8)),
    };
    Duration::from_millis((start << doublings).min(60_000))
}
