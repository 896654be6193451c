//! The registry of proxies: one source per proxy, shared by its watchers and dropped with the last
//! one.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use legate_ca::{Leaf, LeafId, LeafStore};
use legate_runtime::Spawner;
use legate_store::{Reader, State};
use tokio::sync::{oneshot, watch};

use crate::config::ManagerConfig;
use crate::driver::{self, Context, Ends};
use crate::error::WatchError;
use crate::kinds;
use crate::lease::{Lease, Leases, Published};
use crate::limiter::Limiter;
use crate::same::Compare;
use crate::snapshot::{ProxyId, Snapshot};
use crate::value::Value;
use crate::watch::SnapshotWatch;

/// Keeps one source per watched proxy. Clones are the same manager.
#[derive(Clone, Debug)]
pub struct Manager {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Arc<Context>,
    spawner: Spawner,
    leases: Arc<Leases>,
}

/// The effect of another state on a proxy.
#[derive(Debug)]
pub enum Preview {
    /// The proxy has no complete snapshot in one of the states.
    Waiting,
    /// The snapshot does not change.
    Same,
    /// The snapshots before and after. Parts that do not differ are the same `Arc`s.
    Changed(Box<(Snapshot, Snapshot)>),
}

impl Manager {
    /// A manager that watches nothing yet. Its tasks run in the spawner's scope and end with it.
    pub fn new(store: Reader, leaves: LeafStore, spawner: Spawner, config: ManagerConfig) -> Self {
        let context = Context {
            store,
            leaves,
            limiter: Limiter::new(config.max_updates_per_second),
            config,
        };
        Self {
            inner: Arc::new(Inner {
                context: Arc::new(context),
                spawner,
                leases: Arc::default(),
            }),
        }
    }

    /// Watches the snapshots of a registered sidecar. All watches of one proxy share one source.
    ///
    /// If the registration disappears later, the watch stays open: it yields no more snapshots
    /// until the proxy is registered again, which is what a restarting agent does.
    ///
    /// # Errors
    ///
    /// When the catalog has no such registration, or it is not a sidecar with a destination;
    /// [`WatchError::Stopping`] when the scope is being stopped.
    pub fn watch(&self, proxy: ProxyId) -> Result<SnapshotWatch, WatchError> {
        self.check(&proxy)?;
        let stop = self.inner.spawner.token();
        if stop.is_cancelled() {
            return Err(WatchError::Stopping);
        }
        let mut held = self.inner.leases.lock();
        let existing = held.get(&proxy).and_then(Weak::upgrade);
        if let Some(lease) = &existing
            && lease.is_live()
        {
            let lease = Arc::clone(lease);
            drop(held);
            return Ok(SnapshotWatch::new(lease));
        }
        let (publish, receiver) = watch::channel(Published::default());
        let (in_use, abandoned) = oneshot::channel();
        let leases = Arc::clone(&self.inner.leases);
        let lease = Arc::new(Lease::new(proxy.clone(), receiver, leases, in_use));
        held.insert(proxy.clone(), Arc::downgrade(&lease));
        drop(held);
        // Dropping a lease takes the lock, so the old one must outlive the guard.
        drop(existing);
        let ends = Ends {
            publish,
            abandoned,
            stop,
        };
        self.inner.spawner.spawn(
            format!("proxycfg {proxy}"),
            driver::run(Arc::clone(&self.inner.context), proxy, ends),
        );
        Ok(SnapshotWatch::new(lease))
    }

    /// The proxies that are currently watched, in no particular order.
    pub fn proxies(&self) -> Vec<ProxyId> {
        let held = self.inner.leases.lock();
        let live = held.iter().filter(|(_, lease)| lease.strong_count() > 0);
        live.map(|(proxy, _)| proxy.clone()).collect()
    }

    /// Compares a watched proxy's snapshots in two states. Both are computed with the same current
    /// certificates, so that only the states differ. A certificate that only the other state needs
    /// is not issued: [`Leaf::to_be_issued`] stands for it.
    pub fn preview(&self, proxy: &ProxyId, before: &State, after: &State) -> Preview {
        let lease = self.inner.leases.lock().get(proxy).and_then(Weak::upgrade);
        if lease.and_then(|lease| lease.latest()).is_none() {
            return Preview::Waiting;
        }
        let Context { config, leaves, .. } = &*self.inner.context;
        let mut given = HashMap::new();
        let mut snapshot = |state: &State| {
            let leaf = |id: &LeafId| {
                let current = || leaves.current(id);
                let given = given.entry(id.clone());
                let leaf = given.or_insert_with(|| {
                    current().unwrap_or_else(|| Arc::new(Leaf::to_be_issued(id)))
                });
                Some(Arc::clone(leaf))
            };
            let txn = state.read();
            let made = kinds::snapshot_of(&txn, proxy, config, leaf);
            // Without what other datacenters have, it would not be published.
            made.ok().flatten().filter(|_| !txn.is_pending())
        };
        let Some((before, mut after)) = snapshot(before).zip(snapshot(after)) else {
            return Preview::Waiting;
        };
        if before.is_same(&after, Compare::Values) {
            return Preview::Same;
        }
        after.adopt(&before, Compare::Values);
        Preview::Changed(Box::new((before, after)))
    }

    fn check(&self, proxy: &ProxyId) -> Result<(), WatchError> {
        let state = self.inner.context.store.state();
        let catalog = state.read().within(proxy.tenancy.clone());
        if catalog.node(&proxy.node).is_none() {
            return Err(WatchError::UnknownNode(proxy.clone()));
        }
        let Some(found) = catalog.instance(&proxy.node, &proxy.service_id) else {
            return Err(WatchError::UnknownProxy(proxy.clone()));
        };
        kinds::check(proxy, &found.service)
    }
}
