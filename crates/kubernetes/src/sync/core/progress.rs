//! How the work goes on, for whoever watches it from outside. Nothing is decided by it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::facts::Key;

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Pods of the mesh.
    pub pods: usize,
    /// Services of the cluster.
    pub services: usize,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// This operator's instances in the catalog.
    pub instances: usize,
    /// Pods that wait to be looked at.
    pub waiting: usize,
    /// Jobs under way.
    pub jobs: usize,
    /// Pods that are tried again.
    pub failing: usize,
}

/// Since when changes of pods are known that the catalog does not have yet.
#[derive(Debug, Default)]
pub(super) struct Lags {
    open: BTreeMap<Key, Open>,
    closed: Vec<Duration>,
}

#[derive(Debug)]
struct Open {
    since: Instant,
    written: bool,
}

impl Lags {
    /// The pod is to be looked at because something has changed.
    pub(super) fn changed(&mut self, key: &Key, now: Instant) {
        self.open.entry(key.clone()).or_insert(Open {
            since: now,
            written: false,
        });
    }

    /// The servers have taken something.
    pub(super) fn written(&mut self, key: &Key) {
        if let Some(open) = self.open.get_mut(key) {
            open.written = true;
        }
    }

    /// From the arrival of each change until the catalog had it, of those since the last time.
    pub(super) fn take(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.closed)
    }

    /// There is nothing to do for the pod. A change that had nothing to do with the catalog counts for
    /// nothing.
    pub(super) fn settled(&mut self, key: &Key, now: Instant) {
        if let Some(open) = self.open.remove(key).filter(|open| open.written) {
            self.closed.push(now.saturating_duration_since(open.since));
        }
    }
}
