//! What to do about a resource, from what it says, what the servers have and which other resources
//! mean the same entry. Pure.

use std::time::Duration;

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::Value;

use super::entry::{Entry, SOURCE_DATACENTER};
use super::same;

/// Annotation that lets a resource take over an entry that says the same.
pub const MIGRATE_ENTRY: &str = "consul.hashicorp.com/migrate-entry";
/// How many differences a message names.
const NAMED_DIFFERENCES: usize = 5;

/// Why a resource is not written, in one word: `reason` of its condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The servers refuse, or cannot be reached. Consul's integration has the same word.
    Servers,
    /// Somebody else made the entry. Consul's integration has the same word.
    ExternallyManaged,
    /// The entry to take over says something else. Consul's integration has the same word.
    MigrationFailed,
    /// An older resource means the same entry.
    Duplicate,
    /// The resource has something that cannot be written.
    Invalid,
}

impl Reason {
    /// As it stands in the condition.
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

/// What to do about a resource that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Write the entry, if the one that is there still has this index; 0 means that there is none.
    Put {
        /// `ModifyIndex` of the entry that was read.
        index: u64,
    },
    /// The servers have it already.
    Keep,
    /// Leave the servers as they are, and say why.
    Refuse(Reason, String),
}

/// What to do about a wanted resource when the servers have `found`.
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
                "the entry of the servers differs in {}: make the resource say the same, then it \
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
            "config entry already exists in Consul and was not made by a resource: remove it \
             there, or make the resource say the same and annotate it with {MIGRATE_ENTRY}=true"
        ),
        Some(datacenter) => {
            format!("config entry managed in different datacenter: {datacenter:?}")
        }
    }
}

/// What to do in the servers about a resource that is being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Remove the entry, if it still has this index.
    Delete {
        /// `ModifyIndex` of the entry that was read.
        index: u64,
    },
    /// There is none, or it is somebody else's.
    Leave,
}

/// What to do about a resource that is being deleted when the servers have `found`.
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

/// Whether a resource asks to take over an entry that says the same.
#[must_use]
pub fn may_migrate(resource: &DynamicObject) -> bool {
    resource
        .annotations()
        .get(MIGRATE_ENTRY)
        .map(String::as_str)
        == Some("true")
}

/// The resource that is written, of several that mean the same entry: the oldest that is not being
/// deleted.
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

/// How long to wait after `failures` in a row: from 200 ms to 5 s for about a minute, then longer, up
/// to a minute. It begins short because a router is often applied just before the protocol that it
/// needs.
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
