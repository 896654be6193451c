//! The handle of the built-in proxy: starts it, drains it, and shows its state.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use legate_l4::config::Config;
use legate_l4::model::Direction;
use legate_runtime::{ReadyHandle, Spawner};
use tokio::sync::watch;
#[cfg(test)]
use {crate::relay::FromProxy, legate_api::discovery::DeltaDiscoveryResponse, tokio::sync::mpsc};

use super::control::{Control, Orders, SETTLE};
use super::driver::Driver;
use super::shared::{Options, Shared};
use crate::relay::Relay;

/// The built-in proxy. Clones refer to the same one.
#[derive(Debug, Clone)]
pub struct BuiltIn {
    pub(super) shared: Arc<Shared>,
    pub(super) config: Arc<RwLock<Config>>,
    pub(super) threads: usize,
    pub(super) draining: watch::Sender<Draining>,
}

/// Which listeners accept no connections any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Draining {
    /// All accept.
    #[default]
    No,
    /// Those for traffic to the application have ended.
    Inbound,
    /// All have ended.
    All,
}

impl Draining {
    pub(super) fn ends(self, direction: Direction) -> bool {
        match self {
            Draining::No => false,
            Draining::Inbound => direction == Direction::Inbound,
            Draining::All => true,
        }
    }
}

impl BuiltIn {
    /// A proxy that serves nothing yet.
    pub(crate) fn new(options: &Options) -> BuiltIn {
        BuiltIn {
            shared: Arc::new(Shared::new(options)),
            config: Arc::default(),
            threads: options.threads.max(1),
            draining: watch::Sender::new(Draining::No),
        }
    }

    /// Starts it. It gets its resources from `relay`, to which `node`, an encoded `Node`, says which proxy it is. It
    /// runs until the scope of `spawner` stops; a failure is that of a task there. `orders` are those of
    /// [`BuiltIn::control`], if there are some.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn start(
        &self,
        node: Bytes,
        relay: Relay,
        ready: ReadyHandle,
        orders: Option<Orders>,
        spawner: &Spawner,
    ) -> std::io::Result<()> {
        let driver = self.driver(node, ready, orders, spawner)?;
        spawner.spawn("built-in proxy", driver.run(relay, spawner.token()));
        Ok(())
    }

    /// As [`BuiltIn::start`], with a stream of a test instead of a relay.
    #[cfg(test)]
    pub(super) fn start_on(
        &self,
        (requests, responses): (
            mpsc::Sender<FromProxy>,
            mpsc::Receiver<DeltaDiscoveryResponse>,
        ),
        ready: ReadyHandle,
        spawner: &Spawner,
    ) {
        let driver = self.driver(Bytes::new(), ready, None, spawner).unwrap();
        let stop = spawner.token();
        spawner.spawn("built-in proxy", driver.follow(requests, responses, stop));
    }

    fn driver(
        &self,
        node: Bytes,
        ready: ReadyHandle,
        orders: Option<Orders>,
        spawner: &Spawner,
    ) -> std::io::Result<Driver> {
        let threads = (0..self.threads)
            .map(|_| spawner.child_on_own_thread("l4-data"))
            .collect::<std::io::Result<_>>()?;
        Ok(Driver::new(self, threads, node, ready, orders))
    }

    /// Lets it leave its addresses to an Envoy and take them back, with the orders to give to [`BuiltIn::start`].
    pub(crate) fn control(&self) -> (Control, Orders) {
        Control::new(self.threads, SETTLE)
    }

    /// Stops accepting connections before the end: those to the application, or all of a gateway, which has no such
    /// listener.
    pub(crate) fn drain_to_stop(&self) {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        let mut listeners = config.listeners();
        let has_inbound = listeners.any(|listener| listener.direction == Direction::Inbound);
        self.drain(match has_inbound {
            true => Draining::Inbound,
            false => Draining::All,
        });
    }

    /// Stops accepting connections, for good. Open ones stay. A drain never takes back an earlier one.
    pub(crate) fn drain(&self, draining: Draining) {
        self.draining
            .send_modify(|current| *current = draining.max(*current));
    }

    /// Whether some listeners accept no connections any more.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining() != Draining::No
    }

    /// Which listeners accept no connections any more.
    pub(crate) fn draining(&self) -> Draining {
        *self.draining.borrow()
    }

    /// The proxy in the status document.
    pub(crate) fn status(&self) -> serde_json::Value {
        let serving = self.shared.serving();
        let listeners = serving.listeners.values();
        serde_json::json!({
            "connections": self.connections(),
            "draining": self.is_draining(),
            "threads": self.threads,
            "listeners": listeners.map(|one| one.spec.address.to_string()).collect::<Vec<_>>(),
            "clusters": serving.clusters.len(),
        })
    }

    /// Whether it has served everything once.
    pub(crate) fn is_live(&self) -> bool {
        self.shared.live.load(Ordering::Relaxed)
    }

    /// The number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.shared.registry.len()
    }
}
