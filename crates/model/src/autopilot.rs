//! Autopilot settings, as operators set them. Never acted on: a store has one server, or servers
//! without state of their own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;

/// Consul's autopilot settings. They are stored and returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AutopilotConfiguration {
    /// Whether dead servers are removed.
    pub cleanup_dead_servers: bool,
    /// How long a healthy server may go without contact.
    #[serde(with = "duration::text")]
    pub last_contact_threshold: Duration,
    /// How many log entries a healthy server may lag behind.
    pub max_trailing_logs: u64,
    /// The minimum number of servers that cleanup retains.
    pub min_quorum: u32,
    /// How long a new server must be healthy before it is promoted.
    #[serde(with = "duration::text")]
    pub server_stabilization_time: Duration,
    /// Key of the node metadata that contains a server's redundancy zone.
    pub redundancy_zone_tag: String,
    /// Whether servers of a newer version are promoted at once.
    pub disable_upgrade_migration: bool,
    /// Key of the node metadata that contains a server's version.
    pub upgrade_version_tag: String,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

impl Default for AutopilotConfiguration {
    /// Consul's defaults.
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
