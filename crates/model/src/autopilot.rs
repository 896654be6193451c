//! How servers look after each other, as operators set it. Nothing here acts on it: a store has one
//! server, or servers that keep nothing themselves.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;

/// Consul's settings of that name. They are kept and shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AutopilotConfiguration {
    /// Whether servers that are gone are removed.
    pub cleanup_dead_servers: bool,
    /// How long a healthy server may hear nothing.
    #[serde(with = "duration::text")]
    pub last_contact_threshold: Duration,
    /// How many entries a healthy server may lack.
    pub max_trailing_logs: u64,
    /// Fewest servers that cleaning up leaves.
    pub min_quorum: u32,
    /// How long a new server has to be healthy.
    #[serde(with = "duration::text")]
    pub server_stabilization_time: Duration,
    /// The key of nodes' metadata that says in which zone a server is.
    pub redundancy_zone_tag: String,
    /// Whether servers of another version are taken at once.
    pub disable_upgrade_migration: bool,
    /// The key of nodes' metadata that says which version a server has.
    pub upgrade_version_tag: String,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

impl Default for AutopilotConfiguration {
    /// Consul's.
    fn default() -> Self {
        Self {
            cleanup_dead_servers: true,
            last_contact_threshold: Duration::from_millis(200),
            max_trailing_logs: 250,
            min_quorum: 0,
            server_stabilization_time: Duration::from_secs(10),
            redundancy_zone_tag: String::new(),
            disable_upgrade_migration: false,
            upgrade_version_tag: String::new(),
            create_index: 0,
            modify_index: 0,
        }
    }
}
