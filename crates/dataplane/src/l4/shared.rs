//! What the tasks of the built-in proxy share: what is served, the open connections, counters and limits.
//!
//! It decides nothing.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use legate_l4::rbac::Peer;
use legate_runtime::Throttle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::logs::Logs;
use super::registry::{Registry, Times};
use super::serving::Serving;
use super::stats::Stats;

/// Descriptors that connections leave to the rest of the process.
const RESERVED: u64 = 512;

/// At most one line in this time says that a caller was denied.
const DENIED: Duration = Duration::from_millis(100);

/// What the data threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stats: Stats,
    pub(super) registry: Arc<Registry>,
    pub(super) logs: Logs,
    pub(super) host_name: String,
    /// Whether everything that was configured has been served once.
    pub(super) live: AtomicBool,
    /// Throttles the log when connections cannot be accepted.
    pub(super) refused: Throttle,
    denied: Throttle,
    /// Throttles the log when a cluster has as many connections as it may have.
    pub(super) overflown: Throttle,
    serving: RwLock<Arc<Serving>>,
    slots: Arc<Semaphore>,
    started: Instant,
}

impl Shared {
    pub(super) fn new(options: &Options) -> Shared {
        let connections = (options.files.saturating_sub(RESERVED) / 2).max(1);
        let connections = usize::try_from(connections).unwrap_or(usize::MAX);
        Shared {
            stats: Stats::default(),
            registry: Arc::new(Registry::new(options.times.clone())),
            logs: Logs::default(),
            host_name: options.host_name.clone(),
            live: AtomicBool::new(false),
            refused: Throttle::new(Duration::from_secs(60)),
            denied: Throttle::new(DENIED),
            overflown: Throttle::new(Duration::from_secs(10)),
            serving: RwLock::default(),
            slots: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            started: Instant::now(),
        }
    }

    /// What is served now.
    pub(super) fn serving(&self) -> Arc<Serving> {
        let serving = self.serving.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&serving)
    }

    pub(super) fn replace(&self, serving: Arc<Serving>) {
        let mut current = self.serving.write().unwrap_or_else(PoisonError::into_inner);
        *current = serving;
    }

    /// Time since the start of the proxy.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until the process may have another connection.
    pub(super) async fn slot(&self) -> OwnedSemaphorePermit {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return slot;
        }
        self.stats.own.accept_pauses.inc();
        match Arc::clone(&self.slots).acquire_owned().await {
            Ok(slot) => slot,
            // It is never closed.
            Err(_) => std::future::pending().await,
        }
    }

    /// Logs that a caller was denied, unless there are too many.
    pub(super) fn log_denied(
        &self,
        listener: &str,
        remote: Option<SocketAddr>,
        peer: Option<&Peer>,
        policy: &str,
    ) {
        if let Some(suppressed) = self.denied.pass() {
            let peer = peer.and_then(|peer| peer.uris.first());
            let peer = peer.map_or("without certificate", String::as_str);
            let remote = remote.map(|remote| remote.to_string()).unwrap_or_default();
            tracing::info!(
                listener,
                remote,
                peer,
                policy,
                suppressed,
                "denied a connection"
            );
        }
    }
}

/// Settings of the built-in proxy.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The number of data threads. At least 1.
    pub(crate) threads: usize,
    /// The limit of open files of the process.
    pub(crate) files: u64,
    /// The name of the machine, for access logs.
    pub(crate) host_name: String,
    /// Limits on the time of connections.
    pub(crate) times: Times,
}
