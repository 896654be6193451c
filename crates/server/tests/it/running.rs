//! Servers with the store selected by `LEGATE_TEST_STORE`: in memory, in a file, or in etcd.

use std::ops::Deref;
use std::time::Duration;

use legate_runtime::StopError;
use legate_server::{EtcdConfig, Parts, Server, ServerConfig, StartError, StoreConfig};
use legate_store::Store;
use legate_testkit::state::{Location, State};

/// A server, and its persistent state.
#[derive(Debug)]
pub(crate) struct Running {
    server: Server,
    state: State,
}

impl Deref for Running {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Running {
    /// Starts a server with these settings and its own state. Settings of `change` take precedence, including
    /// its store.
    pub(crate) async fn start(
        config: ServerConfig,
        change: impl FnOnce(&mut ServerConfig),
        parts: Parts,
    ) -> Result<Self, StartError> {
        let state = State::new().await;
        let mut config = ServerConfig {
            store: store_config(&state),
            ..config
        };
        change(&mut config);
        let server = Server::start(config, parts).await?;
        Ok(Self { server, state })
    }

    pub(crate) async fn stop(self, deadline: Duration) -> Result<(), StopError> {
        self.server.stop(deadline).await
    }

    /// Stops the server, and keeps its state for another one.
    pub(crate) async fn stop_and_keep(self, deadline: Duration) -> Kept {
        let Self { server, state } = self;
        // A store in memory is handed over; others are opened again.
        let in_memory = *state.place() == Location::Memory;
        let store = in_memory.then(|| server.store().clone());
        server.stop(deadline).await.unwrap();
        Kept { store, state }
    }
}

/// The state of a stopped server.
pub(crate) struct Kept {
    store: Option<Store>,
    state: State,
}

impl Kept {
    pub(crate) async fn start(self, config: ServerConfig) -> Running {
        let config = ServerConfig {
            store: store_config(&self.state),
            ..config
        };
        let parts = Parts {
            store: self.store,
            ..Parts::default()
        };
        let server = Server::start(config, parts).await.unwrap();
        Running {
            server,
            state: self.state,
        }
    }
}

pub(crate) fn store_config(state: &State) -> StoreConfig {
    match state.place() {
        Location::Memory => StoreConfig::Memory,
        Location::Directory(directory) => StoreConfig::Disk {
            directory: directory.clone(),
            key_file: None,
        },
        Location::Etcd {
            endpoints,
            prefix,
            key_file,
        } => StoreConfig::Etcd(EtcdConfig {
            prefix: prefix.clone(),
            ..EtcdConfig::new(endpoints.clone(), key_file)
        }),
    }
}
