//! The environment of the operator's components: flags, chart values, and the caches of the API server's
//! objects. Nothing here starts a component or depends on one.

mod caches;
mod config;
mod options;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use kube::Client;
use legate_runtime::http_server::bind;
use legate_runtime::logging::LogOptions;
use legate_runtime::metrics::Registry;
use legate_runtime::{Clock, Readiness, Spawner};
use tokio::net::TcpListener;

pub use self::caches::{Caches, watch};
pub use self::config::{Config, ConfigError, Federation, Peering};
pub use self::options::{Names, Options, Ports, Servers, Sidecars};

/// The environment in which components are started.
#[derive(Clone)]
pub struct Context {
    /// The flags.
    pub options: Arc<Options>,
    /// The chart's values.
    pub config: Arc<Config>,
    /// The log settings, also passed to sidecars.
    pub log: LogOptions,
    /// The client of the API server.
    pub client: Client,
    /// Caches of the API server's objects.
    pub caches: Caches,
    /// Spawns tasks that are ended first: controllers and other writers.
    pub controllers: Spawner,
    /// Spawns tasks that keep serving requests during shutdown.
    pub answers: Spawner,
    /// Whether this replica can do its work.
    pub readiness: Readiness,
    /// Metrics.
    pub registry: Registry,
    /// The time.
    pub clock: Clock,
}

/// Binds a listener to this address.
///
/// # Errors
/// The system's error, with the address and the purpose of the listener.
pub(crate) fn listen(what: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    bind(address).map_err(|error| anyhow!("cannot listen for {what} on {address}: {error}"))
}
