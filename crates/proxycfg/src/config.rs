//! What holds for the snapshots of all proxies: whose they are, what is assumed where the state says
//! nothing, and how often they are published.

use std::sync::Arc;
use std::time::Duration;

use legate_intentions::Action;

/// How a [`crate::Manager`] behaves.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// The datacenter that the store holds.
    pub datacenter: Arc<str>,
    /// What holds between services that no intention names.
    pub default_intention: Action,
    /// See [`crate::Snapshot::agent_ipv6`]. Default: no.
    pub agent_ipv6: bool,
    /// Shortest time between two snapshots of one proxy. A change after a quiet time is published
    /// at once. 200 ms by default, as in Consul.
    pub coalesce: Duration,
    /// Most snapshots of all proxies together in a second, without the first of each; 0, the
    /// default, is no limit. Consul's `xds.update_max_per_second` is 250.
    pub max_updates_per_second: u32,
}

impl ManagerConfig {
    /// The defaults for a datacenter.
    pub fn new(datacenter: impl Into<Arc<str>>, default_intention: Action) -> Self {
        Self {
            datacenter: datacenter.into(),
            default_intention,
            agent_ipv6: false,
            coalesce: Duration::from_millis(200),
            max_updates_per_second: 0,
        }
    }
}
