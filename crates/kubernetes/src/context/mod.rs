//! What every part of the operator works with: its flags, the chart's values, and what the API server has.
//! Nothing here starts a part or knows one.

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
pub use self::config::{Config, ConfigError};
pub use self::options::{Names, Options, Ports, Servers, Sidecars};

/// What the parts of the operator are started with.
#[derive(Clone)]
pub struct Context {
    /// The flags.
    pub options: Arc<Options>,
    /// The chart's values.
    pub config: Arc<Config>,
    /// How the program logs; sidecars do alike.
    pub log: LogOptions,
    /// The API server.
    pub client: Client,
    /// What the API server has.
    pub caches: Caches,
    /// Starts tasks that end first: controllers and other writers.
    pub controllers: Spawner,
    /// Starts tasks that go on while the end is under way: what answers requests.
    pub answers: Spawner,
    /// Whether this replica can do its work.
    pub readiness: Readiness,
    /// Metrics.
    pub registry: Registry,
    /// The time.
    pub clock: Clock,
}

/// Listens at this address.
///
/// # Errors
/// What the system says, with the address and with what is listened for.
pub(crate) fn listen(what: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    bind(address).map_err(|error| anyhow!("cannot listen for {what} at {address}: {error}"))
}
