//! Cache of service leaves for callers other than proxies, which send repeated requests. A cached
//! leaf is renewed until it has not been requested for a long time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use legate_model::ServiceName;
use tokio::time::{Instant, timeout_at};

use crate::leaf::Leaf;
use crate::leaves::{LeafStore, LeafWatch};
use crate::{Ca, CaError};

/// How long a leaf is cached after the last request, as in Consul.
const RETENTION: Duration = Duration::from_secs(72 * 3600);
/// The maximum number of cached leaves. Beyond it, the least recently requested ones are evicted.
const MAX_CACHED: usize = 4096;
/// Timeout for issuing the first certificate.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns leaves of services. Clones are handles to the same cache.
#[derive(Clone)]
pub struct ServiceLeaves {
    ca: Ca,
    leaves: LeafStore,
    cached: Arc<Mutex<HashMap<ServiceName, CachedLeaf>>>,
}

struct CachedLeaf {
    watch: LeafWatch,
    last_request: Instant,
}

impl std::fmt::Debug for ServiceLeaves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceLeaves").finish_non_exhaustive()
    }
}

impl ServiceLeaves {
    /// A cache for leaves of this CA, shared with those of proxies.
    #[must_use]
    pub fn new(ca: Ca, leaves: LeafStore) -> ServiceLeaves {
        let cached = Arc::default();
        ServiceLeaves { ca, leaves, cached }
    }

    /// The leaf of a service. If `seen` is the index of the current leaf, waits for the next one
    /// until `deadline`. With `seen` 0, the leaf is always signed by the current root. Cancel safe.
    ///
    /// # Errors
    ///
    /// When there is no leaf and none can be issued in time.
    pub async fn leaf(
        &self,
        service: &ServiceName,
        seen: u64,
        deadline: Instant,
    ) -> Result<Arc<Leaf>, CaError> {
        let mut watch = self.watch(service).await?;
        let soon = Instant::now() + FIRST_TIMEOUT;
        let (signer, _) = self.ca.watch_signing_key();
        let stale = |leaf: &Leaf| seen == 0 && Some(&leaf.authority_key_id) != signer.as_ref();
        if watch.current().is_some_and(|leaf| stale(&leaf)) {
            self.leaves.renew_now(&service.into());
        }
        loop {
            let current = watch.current();
            let until = match &current {
                None => soon,
                Some(leaf) if stale(leaf) => soon,
                Some(leaf) if leaf.index == seen => deadline,
                Some(leaf) => return Ok(Arc::clone(leaf)),
            };
            match (timeout_at(until, watch.changed()).await, current) {
                (Ok(Ok(())), _) => {}
                (Ok(Err(_)), _) => return Err(CaError::Stopping),
                (Err(_), Some(leaf)) => return Ok(leaf),
                (Err(_), None) => {
                    let service = service.to_string();
                    return Err(CaError::NotIssued { service });
                }
            }
        }
    }

    async fn watch(&self, service: &ServiceName) -> Result<LeafWatch, CaError> {
        if let Some(watch) = self.known(service) {
            return Ok(watch);
        }
        if !self.leaves.has(&service.into()) {
            self.ca.turn().await?;
        }
        let watch = self.leaves.watch(service);
        let mut cached = self.lock();
        let now = Instant::now();
        cached.retain(|_, leaf| now.duration_since(leaf.last_request) < RETENTION);
        if cached.len() >= MAX_CACHED {
            let oldest = cached.iter().min_by_key(|(_, leaf)| leaf.last_request);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                cached.remove(&name);
            }
        }
        let one = CachedLeaf {
            watch: watch.clone(),
            last_request: now,
        };
        cached.insert(service.clone(), one);
        Ok(watch)
    }

    fn known(&self, service: &ServiceName) -> Option<LeafWatch> {
        let mut cached = self.lock();
        let known = cached.get_mut(service)?;
        known.last_request = Instant::now();
        Some(known.watch.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ServiceName, CachedLeaf>> {
        // Every change of the map is complete before a panic is possible.
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
