//! Progress of the work for metrics and events. No decision depends on it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::facts::Key;

/// Current numbers of objects and jobs.
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
    /// Pods waiting to be processed.
    pub waiting: usize,
    /// Jobs in flight.
    pub jobs: usize,
    /// Pods that are being retried.
    pub failing: usize,
}

/// The times since which changes of pods are not yet in the catalog.
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
    /// Records a change of the pod.
    pub(super) fn changed(&mut self, key: &Key, now: Instant) {
        self.open.entry(key.clone()).or_insert(Open {
            since: now,
            written: false,
        });
    }

    /// Records that the servers accepted a write for the pod.
    pub(super) fn written(&mut self, key: &Key) {
        if let Some(open) = self.open.get_mut(key) {
            open.written = true;
        }
    }

    /// From the arrival of each change until the catalog had it, of those since the last time.
    pub(super) fn take(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.closed)
    }

    /// Records that the pod needs no more work. A change without effect on the catalog is not counted.
    pub(super) fn settled(&mut self, key: &Key, now: Instant) {
        if let Some(open) = self.open.remove(key).filter(|open| open.written) {
            self.closed.push(now.saturating_duration_since(open.since));
        }
    }
}
