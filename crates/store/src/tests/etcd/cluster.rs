//! Stores of several servers with a real etcd.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use legate_runtime::Scope;
pub(super) use legate_testkit::etcd::ClusterTls;
use tokio::time::{Instant, sleep};

use crate::{EtcdConfig, OpenError, Store, StoreConfig};

/// The timeout of the tests.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// An etcd cluster, and functions to open stores with it.
pub(super) struct Cluster(legate_testkit::etcd::Cluster);

impl Deref for Cluster {
    type Target = legate_testkit::etcd::Cluster;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Cluster {
    pub(super) async fn start(size: usize) -> Self {
        Self::start_with(size, None).await
    }

    pub(super) async fn start_with(size: usize, tls: Option<ClusterTls>) -> Self {
        Self(legate_testkit::etcd::Cluster::start_with(size, tls).await)
    }

    pub(super) fn config(&self) -> EtcdConfig {
        EtcdConfig::new(self.endpoints(), self.key_file())
    }

    /// A server that contacts this member first.
    pub(super) async fn server(&self, first: usize) -> Server {
        let mut config = self.config();
        config.endpoints.rotate_left(first);
        Server::open(config).await.expect("the store opens")
    }

    pub(super) async fn servers<const N: usize>(&self) -> [Server; N] {
        let mut servers = Vec::new();
        for n in 0..N {
            servers.push(self.server(n % self.members.len()).await);
        }
        servers.try_into().map_err(|_| "N were made").unwrap()
    }
}

/// A server's store, and the scope of its tasks.
pub(super) struct Server {
    pub(super) store: Store,
    pub(super) scope: Scope,
}

impl Server {
    pub(super) async fn open(config: EtcdConfig) -> Result<Self, OpenError> {
        let scope = Scope::new("test");
        let store = Store::open(StoreConfig::Etcd(config), &scope.spawner()).await?;
        Ok(Self { store, scope })
    }

    pub(super) async fn stop(self) {
        drop(self.store);
        self.scope.stop(PATIENCE).await.unwrap();
    }

    /// Waits until the store has reached an index.
    pub(super) async fn reaches(&self, index: u64) {
        let end = Instant::now() + PATIENCE;
        while self.store.state().index() < index {
            let now = self.store.state().index();
            assert!(Instant::now() < end, "{index} is not reached, but {now}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}
