//! Removals by key, with the newest one below a prefix.
//!
//! A treap: a tree ordered by key, balanced by random priorities, in which each node knows the
//! newest removal of its subtree. Versions share their unchanged nodes, as those of all tables.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

use crate::key::Key;

/// Removed keys with the index of their removal.
#[derive(Clone, Default)]
pub(crate) struct Removals(Option<Arc<Node>>);

#[derive(Clone)]
struct Node {
    key: Key,
    index: u64,
    /// Higher than those of its children. Unpredictable, because clients choose keys.
    priority: u64,
    /// The newest removal in the subtree.
    newest: u64,
    /// Lower keys.
    left: Removals,
    /// Higher keys.
    right: Removals,
}

impl Removals {
    /// Adds or replaces a removal. Returns the index of a replaced one.
    pub(crate) fn insert(&mut self, key: Key, index: u64) -> Option<u64> {
        static PRIORITIES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let (left, replaced, right) = self.split(&key);
        let node = Node {
            priority: PRIORITIES.hash_one(&key),
            newest: index,
            key,
            index,
            left: Self::default(),
            right: Self::default(),
        };
        *self = Self(Some(Arc::new(node))).after(left).before(right);
        replaced
    }

    /// Removes a key. Returns the index of its removal.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<u64> {
        self.get(key)?;
        let (left, removed, right) = self.split(key);
        *self = left.before(right);
        removed
    }

    fn get(&self, key: &Key) -> Option<u64> {
        let mut next = self.0.as_deref();
        while let Some(node) = next {
            next = match key.cmp(&node.key) {
                std::cmp::Ordering::Equal => return Some(node.index),
                std::cmp::Ordering::Less => node.left.0.as_deref(),
                std::cmp::Ordering::Greater => node.right.0.as_deref(),
            };
        }
        None
    }

    /// The newest removal below a prefix, 0 if there is none.
    pub(crate) fn newest_below(&self, prefix: &Key) -> u64 {
        let Some(node) = &self.0 else { return 0 };
        if node.key < *prefix {
            node.right.newest_below(prefix)
        } else if node.key.is_below(prefix) {
            let left = node.left.newest_from(prefix);
            node.index.max(left).max(node.right.newest_until(prefix))
        } else {
            node.left.newest_below(prefix)
        }
    }

    /// The same, if no key is above those below the prefix.
    fn newest_from(&self, prefix: &Key) -> u64 {
        let Some(node) = &self.0 else { return 0 };
        if node.key < *prefix {
            return node.right.newest_from(prefix);
        }
        let left = node.left.newest_from(prefix);
        node.index.max(left).max(node.right.newest())
    }

    /// The same, if no key is lower than those below the prefix.
    fn newest_until(&self, prefix: &Key) -> u64 {
        let Some(node) = &self.0 else { return 0 };
        if !node.key.is_below(prefix) {
            return node.left.newest_until(prefix);
        }
        let right = node.right.newest_until(prefix);
        node.index.max(right).max(node.left.newest())
    }

    fn newest(&self) -> u64 {
        self.0.as_ref().map_or(0, |node| node.newest)
    }

    /// The lower keys, the index of this one, and the higher keys.
    fn split(&self, key: &Key) -> (Self, Option<u64>, Self) {
        let Some(node) = &self.0 else {
            return Self::none();
        };
        match key.cmp(&node.key) {
            std::cmp::Ordering::Equal => (node.left.clone(), Some(node.index), node.right.clone()),
            std::cmp::Ordering::Less => {
                let (left, found, rest) = node.left.split(key);
                (left, found, node.with(rest, node.right.clone()))
            }
            std::cmp::Ordering::Greater => {
                let (rest, found, right) = node.right.split(key);
                (node.with(node.left.clone(), rest), found, right)
            }
        }
    }

    fn none() -> (Self, Option<u64>, Self) {
        (Self::default(), None, Self::default())
    }

    /// This with lower keys.
    fn after(self, lower: Self) -> Self {
        lower.before(self)
    }

    /// This with higher keys.
    fn before(self, higher: Self) -> Self {
        let (Some(low), Some(high)) = (&self.0, &higher.0) else {
            return if self.0.is_some() { self } else { higher };
        };
        if low.priority >= high.priority {
            let right = low.right.clone().before(higher.clone());
            low.with(low.left.clone(), right)
        } else {
            let left = self.clone().before(high.left.clone());
            high.with(left, high.right.clone())
        }
    }
}

impl Node {
    /// The node with other children.
    fn with(&self, left: Removals, right: Removals) -> Removals {
        Removals(Some(Arc::new(Self {
            newest: self.index.max(left.newest()).max(right.newest()),
            left,
            right,
            ..self.clone()
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use legate_model::Tenancy;
    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;
    use crate::key::Table;

    fn key(path: &str) -> Key {
        Key::path(Table::Kv, &Tenancy::default(), &[], path)
    }

    proptest! {
        #[test]
        fn the_newest_below_a_prefix_is_found(
            steps in prop::collection::vec(("[ab/]{0,4}", any::<bool>()), 0..60),
            prefixes in prop::collection::vec("[ab/]{0,3}", 10),
        ) {
            let (mut removals, mut model) = (Removals::default(), BTreeMap::new());
            for (index, (path, adds)) in (1..).zip(steps) {
                let key = key(&path);
                match adds {
                    true => prop_assert_eq!(
                        removals.insert(key.clone(), index),
                        model.insert(key, index)
                    ),
                    false => prop_assert_eq!(removals.remove(&key), model.remove(&key)),
                }
            }
            for prefix in prefixes {
                let prefix = Key::path_prefix(Table::Kv, &Tenancy::default(), &prefix);
                let below = model.iter().filter(|(key, _)| key.is_below(&prefix));
                let newest = below.map(|(_, index)| *index).max().unwrap_or(0);
                prop_assert_eq!(removals.newest_below(&prefix), newest);
            }
        }
    }

    #[test]
    fn the_search_does_not_visit_every_removal() {
        let mut removals = Removals::default();
        for index in 0..16 * 1024 {
            removals.insert(key(&format!("jobs/{index:06}")), index);
        }
        let prefix = Key::path_prefix(Table::Kv, &Tenancy::default(), "jobs/0");
        // Searching in full takes minutes.
        let started = Instant::now();
        for _ in 0..50_000 {
            assert_eq!(removals.newest_below(&prefix), 16 * 1024 - 1);
        }
        assert!(started.elapsed().as_secs() < 5);
    }
}
