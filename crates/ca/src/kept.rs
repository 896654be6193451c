//! Leaves of services for callers that come again and again, and not through a proxy: a leaf that was
//! asked for is kept and renewed until nobody has asked for it for a long time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use legate_model::ServiceName;
use tokio::time::{Instant, timeout_at};

use crate::leaf::Leaf;
use crate::leaves::{LeafStore, LeafWatch};
use crate::{Ca, CaError};

/// A leaf is kept this long after somebody has asked for it. Consul's.
const KEPT: Duration = Duration::from_secs(72 * 3600);
/// The most leaves that are kept. Of more, those that nobody has asked for the longest go.
const MOST: usize = 4096;
/// How long the first certificate may take.
const FIRST: Duration = Duration::from_secs(10);

/// Yields leaves of services, and nothing else. Clones are handles to the same ones.
#[derive(Clone)]
pub struct ServiceLeaves {
    ca: Ca,
    leaves: LeafStore,
    kept: Arc<Mutex<HashMap<ServiceName, Kept>>>,
}

struct Kept {
    watch: LeafWatch,
    asked: Instant,
}

impl std::fmt::Debug for ServiceLeaves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceLeaves").finish_non_exhaustive()
    }
}

impl ServiceLeaves {
    /// Leaves of this CA, the same as those of proxies.
    #[must_use]
    pub fn new(ca: Ca, leaves: LeafStore) -> ServiceLeaves {
        let kept = Arc::default();
        ServiceLeaves { ca, leaves, kept }
    }

    /// The leaf of a service; if it is the one with index `seen`, the next one, unless `deadline` comes
    /// first. Who has seen none (0) gets one that the present root has signed. Cancel safe.
    ///
    /// # Errors
    ///
    /// When there is none, and none can be issued soon.
    pub async fn leaf(
        &self,
        service: &ServiceName,
        seen: u64,
        deadline: Instant,
    ) -> Result<Arc<Leaf>, CaError> {
        let mut watch = self.watch(service).await?;
        let soon = Instant::now() + FIRST;
        let (signer, _) = self.ca.watch_signing_key();
        let stale = |leaf: &Leaf| seen == 0 && Some(&leaf.authority_key_id) != signer.as_ref();
        if watch.current().is_some_and(|leaf| stale(&leaf)) {
            self.leaves.hurry(service);
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
        if !self.leaves.has(service) {
            self.ca.turn().await?;
        }
        let watch = self.leaves.watch(service);
        let mut kept = self.lock();
        let now = Instant::now();
        kept.retain(|_, kept| now.duration_since(kept.asked) < KEPT);
        if kept.len() >= MOST {
            let oldest = kept.iter().min_by_key(|(_, kept)| kept.asked);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                kept.remove(&name);
            }
        }
        let one = Kept {
            watch: watch.clone(),
            asked: now,
        };
        kept.insert(service.clone(), one);
        Ok(watch)
    }

    fn known(&self, service: &ServiceName) -> Option<LeafWatch> {
        let mut kept = self.lock();
        let known = kept.get_mut(service)?;
        known.asked = Instant::now();
        Some(known.watch.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ServiceName, Kept>> {
        // Every change of the map is complete before anything can panic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
