//! The tables at one index. A state is immutable; the next one shares its unchanged parts.
//!
//! Contains rows, index entries and the indexes of removals. [`crate::ReadTxn`] and
//! [`crate::WriteTxn`] interpret the rows.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;

use crate::key::Key;
use crate::mirror;
use crate::query::Queries;
use crate::removals::Removals;
use crate::row::Stored;

/// The index of the empty tables. Clients never see an index below 1, and the first write must be
/// newer.
const FIRST_INDEX: u64 = 1;

/// The maximum number of removals that are remembered individually.
const MAX_TOMBSTONES: usize = 16 * 1024;

/// The tables at one index. Names are case-insensitive.
#[derive(Clone)]
pub struct State {
    index: u64,
    rows: OrdMap<Key, Stored>,
    /// Index entries, each with the key of its row.
    entries: OrdMap<Key, Key>,
    tombstones: Tombstones,
    /// The index at which all rows were loaded or replaced together.
    replaced_at: u64,
    /// The number of states that were published before, of this process alone: unlike the index, it grows with each,
    /// whatever has changed. Of a state that is not published, that of the one it was made from.
    pub(crate) revision: u64,
    /// What is known of other datacenters.
    pub(crate) mirror: mirror::Values,
    /// Results that readers of this store share.
    pub(crate) queries: Arc<Queries>,
}

/// When rows and index entries were removed, so that the index of a read never decreases.
#[derive(Clone)]
struct Tombstones {
    by_key: Removals,
    by_age: OrdMap<(u64, Key), ()>,
    /// The index of the newest removal that is no longer remembered.
    floor: u64,
}

/// The changes of transactions.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Keys of the rows that were written or removed.
    pub(crate) rows: BTreeMap<Key, ()>,
    /// The same with their old and new index entries.
    pub(crate) touched: HashSet<Key>,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds the changes of a later transaction.
    pub(crate) fn extend(&mut self, later: Changes) {
        self.rows.extend(later.rows);
        self.touched.extend(later.touched);
    }
}

impl State {
    pub(crate) fn empty() -> Self {
        Self {
            index: FIRST_INDEX,
            rows: OrdMap::new(),
            entries: OrdMap::new(),
            tombstones: Tombstones {
                by_key: Removals::default(),
                by_age: OrdMap::new(),
                floor: FIRST_INDEX,
            },
            replaced_at: FIRST_INDEX,
            revision: 0,
            mirror: mirror::Values::default(),
            queries: Arc::default(),
        }
    }

    /// A state from its rows. Earlier removals are not known.
    pub(crate) fn restored(index: u64, rows: impl IntoIterator<Item = (Key, Stored)>) -> Self {
        let mut state = Self::empty();
        state.index = index.max(FIRST_INDEX);
        state.tombstones.floor = state.index;
        state.replaced_at = state.index;
        for (key, row) in rows {
            state.insert(key, row);
        }
        state
    }

    /// A state with other rows for the readers of this one, and the changes: everything.
    pub(crate) fn replaced(
        &self,
        index: u64,
        rows: impl IntoIterator<Item = (Key, Stored)>,
    ) -> (Self, Changes) {
        let mut next = Self::restored(index, rows);
        next.queries = Arc::clone(&self.queries);
        let mut changes = Changes::default();
        for state in [self, &next] {
            changes
                .rows
                .extend(state.rows.keys().map(|key| (key.clone(), ())));
            changes.touched.extend(state.rows.keys().cloned());
            changes.touched.extend(state.entries.keys().cloned());
        }
        (next, changes)
    }

    /// The index of the last change, at least 1.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The index at which all rows were loaded or replaced together.
    pub(crate) fn replaced_at(&self) -> u64 {
        self.replaced_at
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&Key, &Stored)> {
        self.rows.iter()
    }

    /// The rows after a key, or all of them.
    pub(crate) fn rows_after(&self, after: Option<&Key>) -> impl Iterator<Item = (&Key, &Stored)> {
        let start = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        self.rows.range((start, Bound::Unbounded))
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Stored> {
        self.rows.get(key)
    }

    pub(crate) fn below<'a>(
        &'a self,
        prefix: &'a Key,
    ) -> impl Iterator<Item = (&'a Key, &'a Stored)> {
        let rows = self.rows.range(prefix.clone()..);
        rows.take_while(|(key, _)| key.is_below(prefix))
    }

    /// The row of an index entry.
    pub(crate) fn found(&self, entry: &Key) -> Option<&Stored> {
        self.rows.get(self.entries.get(entry)?)
    }

    /// The rows of the index entries below a prefix.
    pub(crate) fn found_below<'a>(&'a self, prefix: &'a Key) -> impl Iterator<Item = &'a Stored> {
        let entries = self.entries.range(prefix.clone()..);
        let below = entries.take_while(|(entry, _)| entry.is_below(prefix));
        below.filter_map(|(_, key)| self.rows.get(key))
    }

    /// The rows of the index entries below a prefix, from an entry on.
    pub(crate) fn found_from(
        &self,
        prefix: Key,
        from: Key,
    ) -> impl Iterator<Item = (&Key, &Stored)> {
        let entries = self.entries.range(from..);
        let below = entries.take_while(move |(entry, _)| entry.is_below(&prefix));
        below.filter_map(|(_, key)| self.rows.get_key_value(key))
    }

    /// The index of the last removal below the prefix, or that of the newest forgotten removal.
    pub(crate) fn removed_below(&self, prefix: &Key) -> u64 {
        let Tombstones { by_key, floor, .. } = &self.tombstones;
        by_key.newest_below(prefix).max(*floor)
    }
}

// Mutations, used only while a transaction is built.
impl State {
    pub(crate) fn set_index(&mut self, index: u64) {
        self.index = index;
    }

    /// Upserts a row, and returns its old and new index entries.
    pub(crate) fn put(&mut self, key: Key, row: Stored, index: u64) -> Vec<Key> {
        let mut touched = self.unlink(&key, Some(&row), index);
        touched.extend(row.indexes.iter().cloned());
        self.tombstones.remove(&key);
        for entry in row.indexes.iter() {
            self.tombstones.remove(entry);
        }
        self.insert(key, row);
        touched
    }

    /// Removes a row, and returns its index entries. `None` if it does not exist.
    pub(crate) fn delete(&mut self, key: &Key, index: u64) -> Option<Vec<Key>> {
        self.rows.get(key)?;
        let touched = self.unlink(key, None, index);
        self.rows.remove(key);
        self.tombstones.add(key.clone(), index);
        Some(touched)
    }

    fn insert(&mut self, key: Key, row: Stored) {
        for entry in row.indexes.iter() {
            self.entries.insert(entry.clone(), key.clone());
        }
        self.rows.insert(key, row);
    }

    fn unlink(&mut self, key: &Key, next: Option<&Stored>, index: u64) -> Vec<Key> {
        let Some(old) = self.rows.get(key) else {
            return Vec::new();
        };
        let old = Arc::clone(&old.indexes);
        for entry in old.iter() {
            if next.is_some_and(|next| next.indexes.contains(entry)) {
                continue;
            }
            // Another row may have taken the entry within the same transaction.
            if self.entries.get(entry) == Some(key) {
                self.entries.remove(entry);
            }
            self.tombstones.add(entry.clone(), index);
        }
        old.to_vec()
    }

    /// The number of removals that are remembered.
    #[cfg(test)]
    pub(crate) fn tombstones(&self) -> usize {
        self.tombstones.by_age.len()
    }
}

impl Tombstones {
    fn add(&mut self, key: Key, index: u64) {
        if let Some(older) = self.by_key.insert(key.clone(), index) {
            self.by_age.remove(&(older, key.clone()));
        }
        self.by_age.insert((index, key), ());
        if self.by_age.len() > MAX_TOMBSTONES
            && let (Some(((oldest, key), ())), rest) = self.by_age.without_min_with_key()
        {
            self.by_age = rest;
            self.by_key.remove(&key);
            self.floor = self.floor.max(oldest);
        }
    }

    /// The row exists again; its own index now has the time of the change.
    fn remove(&mut self, key: &Key) {
        if let Some(index) = self.by_key.remove(key) {
            self.by_age.remove(&(index, key.clone()));
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("index", &self.index)
            .field("rows", &self.rows.len())
            .finish_non_exhaustive()
    }
}
