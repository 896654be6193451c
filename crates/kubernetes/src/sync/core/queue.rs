//! The queue of pods to be processed, in order of arrival.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::sync::facts::Key;

/// The pods to be processed, each once.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<Key>,
    known: BTreeSet<Key>,
    /// Pods that wait for a catalog node.
    parked: BTreeMap<String, BTreeSet<Key>>,
}

impl Queue {
    pub(super) fn push(&mut self, key: Key) {
        if self.known.insert(key.clone()) {
            self.order.push_back(key);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Key> {
        let key = self.order.pop_front()?;
        self.known.remove(&key);
        Some(key)
    }

    pub(super) fn park(&mut self, node: String, key: Key) {
        self.parked.entry(node).or_default().insert(key);
    }

    pub(super) fn unpark(&mut self, node: &str) {
        for key in self.parked.remove(node).unwrap_or_default() {
            self.push(key);
        }
    }

    /// The number of waiting pods.
    pub(super) fn len(&self) -> usize {
        self.order.len() + self.parked.values().map(BTreeSet::len).sum::<usize>()
    }

    /// Whether no pod is waiting.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty() && self.parked.is_empty()
    }
}
