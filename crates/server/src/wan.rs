//! This server as one of several datacenters: its settings for [`legate_wan`], and members as the API shows them.

use std::net::SocketAddr;

use legate_runtime::{Clock, Spawner};
use legate_store::Store;
use legate_wan::{Status, Wan, WanConfig};

use crate::config::ServerConfig;
use crate::http::member_tags;
use crate::start_error::StartError;

/// Joins nobody yet. `None` without a port for servers.
pub(crate) fn new(
    config: &ServerConfig,
    store: &Store,
    clock: &Clock,
    spawner: Spawner,
) -> Result<Option<Wan>, StartError> {
    let Some(config) = self::config(config, store) else {
        return Ok(None);
    };
    Ok(Some(Wan::new(&config, clock, spawner)?))
}

/// The settings; the listeners must be bound.
pub(crate) fn config(config: &ServerConfig, store: &Store) -> Option<WanConfig> {
    let wan = config.wan.as_ref()?;
    let node = store.state().read().node(&config.node_name);
    let id = node.map(|node| node.id.clone()).unwrap_or_default();
    Some(WanConfig {
        datacenter: config.datacenter.clone(),
        node: config.node_name.clone(),
        domain: config
            .dns_domains
            .names()
            .next()
            .unwrap_or_else(|| "consul".to_owned()),
        advertise: SocketAddr::new(wan.advertise, wan.listen.port()),
        tags: member_tags(config, &id),
        files: wan.files.clone(),
        join: wan.join.clone(),
        retry_interval: wan.retry_interval,
        retry_max: wan.retry_max,
    })
}

/// The number of a status in Consul's API.
pub(crate) fn number(status: Status) -> u8 {
    match status {
        Status::Alive => 1,
        Status::Left => 3,
        Status::Failed => 4,
    }
}
