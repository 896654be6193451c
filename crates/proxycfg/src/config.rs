//! Settings for the snapshots of all proxies: the datacenter, the defaults for absent config
//! entries and the rate of publication.

use std::sync::Arc;
use std::time::Duration;

use legate_intentions::Action;

/// Settings of a [`crate::Manager`].
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// The datacenter of the store.
    pub datacenter: Arc<str>,
    /// The action for connections that no intention matches.
    pub default_intention: Action,
    /// See [`crate::Proxy::agent_ipv6`]. Default: false.
    pub agent_ipv6: bool,
    /// The domains of the DNS interface, in which gateways and the services behind them have names.
    /// Default: `consul`.
    pub dns_domains: Arc<[Arc<str>]>,
    /// The minimum interval between two snapshots of one proxy. A change after a longer pause is
    /// published at once. 200 ms by default, as in Consul.
    pub coalesce: Duration,
    /// The maximum rate of snapshots of all proxies together, per second, not counting the first of
    /// each proxy. 0, the default, means no limit. Consul's `xds.update_max_per_second` is 250.
    pub max_updates_per_second: u32,
}

impl ManagerConfig {
    /// The defaults for a datacenter.
    pub fn new(datacenter: impl Into<Arc<str>>, default_intention: Action) -> Self {
        Self {
            datacenter: datacenter.into(),
            default_intention,
            agent_ipv6: false,
            dns_domains: Arc::new(["consul".into()]),
            coalesce: Duration::from_millis(200),
            max_updates_per_second: 0,
        }
    }
}
