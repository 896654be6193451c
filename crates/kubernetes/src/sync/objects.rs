//! Objects of one kind as a watch reports them. Pure.

use std::collections::btree_map::{self, BTreeMap};
use std::collections::{BTreeSet, btree_map::Entry};
use std::ops::RangeBounds;

/// What a watch reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<T> {
    /// A list begins: what is not in it is gone.
    Begin,
    /// An object of the list.
    Listed(T),
    /// The list is complete.
    Complete,
    /// An object is new or another one.
    Applied(T),
    /// An object is gone.
    Gone(T),
}

/// All objects of one kind, once they were listed.
#[derive(Clone, Debug)]
pub struct Objects<K, T> {
    all: BTreeMap<K, T>,
    /// Those of the list that is under way.
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
    /// Takes over a change and returns the objects that are others now.
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

    /// Whether they were listed once: what is not here does not exist.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.complete
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&T> {
        self.all.get(key)
    }

    /// All of them.
    pub fn iter(&self) -> btree_map::Iter<'_, K, T> {
        self.all.iter()
    }

    /// Those of a range of keys.
    pub fn range(&self, keys: impl RangeBounds<K>) -> btree_map::Range<'_, K, T> {
        self.all.range(keys)
    }
}
