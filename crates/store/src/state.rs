//! The tables at one moment. A state never changes; the next one shares with it what stayed.
//!
//! It knows rows, index entries and when something below a prefix changed. What rows mean is the
//! business of [`crate::ReadTxn`] and [`crate::WriteTxn`].

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;

use crate::key::Key;
use crate::query::Queries;
use crate::row::Stored;

/// The index of the empty tables. The first write must be newer than what a client has seen, and
/// clients never see an index below 1.
const FIRST_INDEX: u64 = 1;

/// How many removals are remembered one by one.
const GRAVES: usize = 16 * 1024;

/// The tables at one moment. Names are compared without regard to case.
#[derive(Clone)]
pub struct State {
    index: u64,
    rows: OrdMap<Key, Stored>,
    /// Index entries, each with the key of its row.
    entries: OrdMap<Key, Key>,
    graves: Graves,
    /// Results that readers of this store share.
    pub(crate) queries: Arc<Queries>,
}

/// Which rows and index entries were removed when, so that an index never goes back.
#[derive(Clone)]
struct Graves {
    by_key: OrdMap<Key, u64>,
    by_age: OrdMap<(u64, Key), ()>,
    /// Stands for every removal that is not remembered any more.
    floor: u64,
}

/// What transactions changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Keys of the rows that were put or deleted.
    pub(crate) rows: BTreeMap<Key, ()>,
    /// The same and the index entries that lead or led to them.
    pub(crate) touched: HashSet<Key>,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds what a later transaction changed.
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
            graves: Graves {
                by_key: OrdMap::new(),
                by_age: OrdMap::new(),
                floor: FIRST_INDEX,
            },
            queries: Arc::default(),
        }
    }

    /// A state from its rows. What was removed before is not known any more.
    pub(crate) fn restored(index: u64, rows: impl IntoIterator<Item = (Key, Stored)>) -> Self {
        let mut state = Self::empty();
        state.index = index.max(FIRST_INDEX);
        state.graves.floor = state.index;
        for (key, row) in rows {
            state.insert(key, row);
        }
        state
    }

    /// A state with other rows for the readers of this one, and what that changes: everything.
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

    /// The index of the last change of anything, at least 1.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&Key, &Stored)> {
        self.rows.iter()
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

    /// The row that an index entry leads to.
    pub(crate) fn found(&self, entry: &Key) -> Option<&Stored> {
        self.rows.get(self.entries.get(entry)?)
    }

    /// The rows that the index entries below a prefix lead to.
    pub(crate) fn found_below<'a>(&'a self, prefix: &'a Key) -> impl Iterator<Item = &'a Stored> {
        let entries = self.entries.range(prefix.clone()..);
        let below = entries.take_while(|(entry, _)| entry.is_below(prefix));
        below.filter_map(|(_, key)| self.rows.get(key))
    }

    /// When something below the prefix was removed last, as far as it is remembered.
    pub(crate) fn removed_below(&self, prefix: &Key) -> u64 {
        let graves = self.graves.by_key.range(prefix.clone()..);
        let below = graves.take_while(|(key, _)| key.is_below(prefix));
        let newest = below.map(|(_, index)| *index).max();
        newest.unwrap_or_default().max(self.graves.floor)
    }
}

// Changing: only while a transaction is put together.
impl State {
    pub(crate) fn set_index(&mut self, index: u64) {
        self.index = index;
    }

    /// Adds or replaces a row, and returns the index entries that lead to it or led to it before.
    pub(crate) fn put(&mut self, key: Key, row: Stored, index: u64) -> Vec<Key> {
        let mut touched = self.unlink(&key, Some(&row), index);
        touched.extend(row.indexes.iter().cloned());
        self.graves.forget(&key);
        for entry in row.indexes.iter() {
            self.graves.forget(entry);
        }
        self.insert(key, row);
        touched
    }

    /// Removes a row, and returns the index entries that led to it. `None`: there was no such row.
    pub(crate) fn delete(&mut self, key: &Key, index: u64) -> Option<Vec<Key>> {
        self.rows.get(key)?;
        let touched = self.unlink(key, None, index);
        self.rows.remove(key);
        self.graves.bury(key.clone(), index);
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
            // Another row may have taken the entry over within the same transaction.
            if self.entries.get(entry) == Some(key) {
                self.entries.remove(entry);
            }
            self.graves.bury(entry.clone(), index);
        }
        old.to_vec()
    }

    /// How many removals are remembered.
    #[cfg(test)]
    pub(crate) fn graves(&self) -> usize {
        self.graves.by_key.len()
    }
}

impl Graves {
    fn bury(&mut self, key: Key, index: u64) {
        if let Some(older) = self.by_key.insert(key.clone(), index) {
            self.by_age.remove(&(older, key.clone()));
        }
        self.by_age.insert((index, key), ());
        if self.by_key.len() > GRAVES
            && let (Some(((oldest, key), ())), rest) = self.by_age.without_min_with_key()
        {
            self.by_age = rest;
            self.by_key.remove(&key);
            self.floor = self.floor.max(oldest);
        }
    }

    /// The row is there again; its own index says when that happened.
    fn forget(&mut self, key: &Key) {
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
