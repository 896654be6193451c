//! A cache of the objects of one kind, fed by a watch. Pure.

use std::collections::btree_map::{self, BTreeMap};
use std::collections::{BTreeSet, btree_map::Entry};
use std::ops::RangeBounds;

/// An event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<T> {
    /// A list starts: objects that are not in it no longer exist.
    Begin,
    /// An object of the list.
    Listed(T),
    /// The list is complete.
    Complete,
    /// An object was created or changed.
    Applied(T),
    /// An object was deleted.
    Gone(T),
}

/// All objects of one kind, complete after the first list.
#[derive(Clone, Debug)]
pub struct Objects<K, T> {
    all: BTreeMap<K, T>,
    /// The keys in the list that is in progress.
    listed: BTreeSet<K>,
    complete: bool,
}

impl<K, T> Default for Objects<K, T> {
    fn default() -> Objects<K, T> {
        Objects {
            all: BTreeMap::new(),
            listed: BTreeSet::new(),
            complete: false,
        }
    }
}

impl<K: Ord + Clone, T: PartialEq> Objects<K, T> {
    /// Applies an event and returns the keys of changed objects.
    pub fn apply(&mut self, change: Change<T>, key: impl Fn(&T) -> K) -> Vec<K> {
        match change {
            Change::Begin => {
                self.listed.clear();
                Vec::new()
            }
            Change::Listed(object) => {
                self.listed.insert(key(&object));
                self.put(key(&object), object)
            }
            Change::Complete => {
                self.complete = true;
                let listed = std::mem::take(&mut self.listed);
                let gone = self.all.keys().filter(|key| !listed.contains(*key));
                let gone: Vec<K> = gone.cloned().collect();
                for key in &gone {
                    self.all.remove(key);
                }
                gone
            }
            Change::Applied(object) => self.put(key(&object), object),
            Change::Gone(object) => {
                let gone = key(&object);
                match self.all.remove(&gone) {
                    Some(_) => vec![gone],
                    None => Vec::new(),
                }
            }
        }
    }

    fn put(&mut self, key: K, object: T) -> Vec<K> {
        match self.all.entry(key.clone()) {
            Entry::Occupied(entry) if *entry.get() == object => return Vec::new(),
            Entry::Occupied(mut entry) => drop(entry.insert(object)),
            Entry::Vacant(entry) => drop(entry.insert(object)),
        }
        vec![key]
    }

    /// Whether the objects were listed once: then an object that is not here does not exist.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.complete
    }

    /// The object of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&T> {
        self.all.get(key)
    }

    /// All objects.
    pub fn iter(&self) -> btree_map::Iter<'_, K, T> {
        self.all.iter()
    }

    /// The objects in a range of keys.
    pub fn range(&self, keys: impl RangeBounds<K>) -> btree_map::Range<'_, K, T> {
        self.all.range(keys)
    }
}
