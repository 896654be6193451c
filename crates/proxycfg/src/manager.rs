//! The registry of proxies: one source each, shared by its watchers, gone with the last of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use legate_ca::{Leaf, LeafStore};
use legate_intentions::Action;
use legate_model::ServiceName;
use legate_runtime::{Share, Spawner};
use legate_store::{Reader, State};
use tokio::sync::{oneshot, watch};

use crate::driver::{self, Context, Ends};
use crate::error::WatchError;
use crate::kinds::{self, Leaves, Outcome, Parts};
use crate::limiter::Limiter;
use crate::same::{self, Compare};
use crate::snapshot::{ProxyId, Snapshot};
use crate::watch::{Published, SnapshotWatch};

/// How a [`Manager`] behaves.
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

/// The sources that run, by proxy. Weak: the watchers own them.
#[derive(Debug, Default)]
struct Leases {
    held: Mutex<HashMap<ProxyId, Weak<Lease>>>,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, HashMap<ProxyId, Weak<Lease>>> {
        // Every change of the map is complete before anything can panic.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the watchers of one source hold together. Dropping it ends the source.
#[derive(Debug)]
pub(crate) struct Lease {
    proxy: ProxyId,
    receiver: watch::Receiver<Published>,
    leases: Arc<Leases>,
    share: Share,
    /// Dropping it tells the task.
    _in_use: oneshot::Sender<()>,
}

impl Lease {
    pub(crate) fn proxy(&self) -> &ProxyId {
        &self.proxy
    }

    pub(crate) fn receiver(&self) -> watch::Receiver<Published> {
        self.receiver.clone()
    }

    pub(crate) fn share(&self) -> &Share {
        &self.share
    }

    /// Whether the task still runs and has not said that it ends.
    fn is_live(&self) -> bool {
        self.receiver.has_changed().is_ok() && self.receiver.borrow().ended.is_none()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut held = self.leases.lock();
        // By now a new source may have taken the place of this one; it stays.
        if held
            .get(&self.proxy)
            .is_some_and(|lease| lease.strong_count() == 0)
        {
            held.remove(&self.proxy);
        }
    }
}

/// What another state makes of a proxy.
#[derive(Debug)]
pub enum Preview {
    /// The proxy has nothing yet that could change: something is missing that will come.
    Waiting,
    /// What it has now.
    Same,
    /// What it has, and what it would have. Parts that do not differ are the same `Arc`s.
    Changed(Box<(Snapshot, Snapshot)>),
}

/// The certificate that a proxy has.
struct Held<'a>(&'a Snapshot);

impl Leaves for Held<'_> {
    fn current(&mut self, service: &ServiceName) -> Option<Arc<Leaf>> {
        let is_its = self.0.leaf.service == *service;
        is_its.then(|| Arc::clone(&self.0.leaf))
    }
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
    /// When the registration disappears later, the watch stays: it gives no more snapshots until
    /// the proxy is registered again, because an agent that restarts does just that.
    ///
    /// # Errors
    ///
    /// When the catalog has no such registration now, or it is not that of a sidecar with a
    /// destination; [`WatchError::Stopping`] when the scope is being stopped.
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
        let lease = Arc::new(Lease {
            proxy: proxy.clone(),
            receiver,
            leases: Arc::clone(&self.inner.leases),
            share: Share::default(),
            _in_use: in_use,
        });
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

    /// The proxies that are watched now, in no particular order.
    pub fn proxies(&self) -> Vec<ProxyId> {
        let held = self.inner.leases.lock();
        let live = held.iter().filter(|(_, lease)| lease.strong_count() > 0);
        live.map(|(proxy, _)| proxy.clone()).collect()
    }

    /// What another state would make of a proxy that is watched. Both snapshots are computed, so that
    /// nothing but the states differs; the certificate is the one that the proxy has.
    pub fn preview(&self, proxy: &ProxyId, before: &State, after: &State) -> Preview {
        let lease = self.inner.leases.lock().get(proxy).and_then(Weak::upgrade);
        let published = lease.and_then(|lease| lease.receiver.borrow().snapshot.clone());
        let Some(published) = published else {
            return Preview::Waiting;
        };
        let config = &self.inner.context.config;
        let snapshot = |state: &State| {
            let mut held = Held(&published);
            let mut parts = Parts::default();
            match kinds::snapshot(&state.read(), proxy, config, &mut held, &mut parts) {
                Ok(Outcome::Ready(snapshot)) => Some(*snapshot),
                Ok(Outcome::Pending) | Err(_) => None,
            }
        };
        let Some((before, mut after)) = snapshot(before).zip(snapshot(after)) else {
            return Preview::Waiting;
        };
        if same::snapshots(&before, &after, Compare::Values) {
            return Preview::Same;
        }
        same::adopt(&before, &mut after, Compare::Values);
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
