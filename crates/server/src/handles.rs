//! What every API of one server shares. Holds handles only and never acts by itself.

use std::sync::Arc;

use legate_ca::Ca;
use legate_proxycfg::Manager;
use legate_resources::Generator;
use legate_runtime::metrics::Registry;
use legate_runtime::{Clock, Spawner};
use legate_store::Store;

use crate::config::ServerConfig;

/// Handles shared by the HTTP, gRPC and DNS APIs of one server.
pub(crate) struct Context {
    /// The settings the server was started with.
    pub(crate) config: Arc<ServerConfig>,
    /// The catalog, config entries, CA state and ACL tables.
    pub(crate) store: Store,
    /// Signs certificates.
    pub(crate) ca: Ca,
    /// The time, as tests want it to be.
    pub(crate) clock: Clock,
    /// Keeps a snapshot for every proxy that is connected.
    pub(crate) manager: Manager,
    /// Turns snapshots into Envoy resources, shared by all streams.
    pub(crate) generator: Arc<Generator>,
    /// Metrics of this server; two servers in one process do not share them.
    pub(crate) registry: Registry,
    /// Held while a snapshot is made or restored: each is as large as the store.
    pub(crate) snapshots: tokio::sync::Mutex<()>,
    /// Starts tasks that end with the server.
    pub(crate) spawner: Spawner,
}
