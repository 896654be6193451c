//! Write transactions: they see their own writes, have one index, and are applied atomically.
//!
//! A transaction is a function of the state that it is applied to. If several servers write, it may
//! run more than once, each time on a newer state. So invariants across rows hold for the state
//! that is actually changed.

use std::sync::Arc;

use legate_model::Tenancy;

use crate::key::Key;
use crate::read::ReadTxn;
use crate::row::{Row, Stored};
use crate::state::{Changes, State};

/// A state with uncommitted changes.
#[derive(Debug)]
pub struct WriteTxn {
    state: State,
    index: u64,
    pub(crate) tenancy: Tenancy,
    changes: Changes,
}

impl State {
    /// The state after a transaction, for previews. Nothing is stored or published, and shared
    /// results of its readers are separate.
    ///
    /// # Errors
    ///
    /// That of the transaction.
    pub fn after<T, E>(
        &self,
        transaction: impl FnOnce(&mut WriteTxn) -> Result<T, E>,
    ) -> Result<(State, T), E> {
        let mut txn = WriteTxn::on(self);
        let value = transaction(&mut txn)?;
        let (mut state, _) = txn.into_parts();
        state.queries = Arc::default();
        Ok((state, value))
    }
}

impl WriteTxn {
    pub(crate) fn on(state: &State) -> Self {
        Self {
            index: state.index() + 1,
            state: state.clone(),
            tenancy: Tenancy::default(),
            changes: Changes::default(),
        }
    }

    /// Sets the current tenancy.
    pub fn set_tenancy(&mut self, tenancy: Tenancy) {
        self.tenancy = tenancy;
    }

    /// Runs `write` with another tenancy.
    pub fn in_tenancy<T>(&mut self, tenancy: &Tenancy, write: impl FnOnce(&mut Self) -> T) -> T {
        let own = std::mem::replace(&mut self.tenancy, tenancy.clone());
        let value = write(self);
        self.tenancy = own;
        value
    }

    /// The index of the rows that this transaction writes.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Reads the state including the writes so far.
    pub fn read(&self) -> ReadTxn<'_> {
        ReadTxn::new(&self.state, false).within(self.tenancy.clone())
    }

    /// The new state with the changes. Without writes it is the old state.
    pub(crate) fn into_parts(mut self) -> (State, Changes) {
        if !self.changes.is_empty() {
            self.state.set_index(self.index);
        }
        (self.state, self.changes)
    }

    /// Upserts a row.
    pub(crate) fn put<R: Row>(&mut self, row: impl Into<Arc<R>>) {
        let row = row.into();
        let key = row.key(&self.tenancy);
        let stored = Stored::new(row, &self.tenancy);
        let touched = self.state.put(key.clone(), stored, self.index);
        self.changed(key, touched);
    }

    /// Removes a row. Returns whether it existed.
    pub(crate) fn remove<R: Row>(&mut self, names: &[&str]) -> bool {
        self.remove_key(Key::new(R::TABLE, &self.tenancy, names))
    }

    /// Removes the row at a path. Returns whether it existed.
    pub(crate) fn remove_path<R: Row>(&mut self, path: &str) -> bool {
        self.remove_key(Key::path(R::TABLE, &self.tenancy, &[], path))
    }

    /// Up to `limit` keys of rows below a prefix.
    pub(crate) fn keys_below(&self, prefix: &Key, limit: usize) -> Vec<Key> {
        let rows = self.state.below(prefix);
        rows.map(|(key, _)| key.clone()).take(limit).collect()
    }

    /// Removes the row of a key. Returns whether it existed.
    pub(crate) fn remove_key(&mut self, key: Key) -> bool {
        let Some(touched) = self.state.delete(&key, self.index) else {
            return false;
        };
        self.changed(key, touched);
        true
    }

    fn changed(&mut self, key: Key, touched: Vec<Key>) {
        self.changes.touched.extend(touched);
        self.changes.touched.insert(key.clone());
        self.changes.rows.insert(key, ());
    }
}

/// Applies rows that another server committed.
pub(crate) fn replay(
    state: &State,
    index: u64,
    rows: impl IntoIterator<Item = (Key, Option<Stored>)>,
) -> (State, Changes) {
    let mut next = state.clone();
    let mut changes = Changes::default();
    for (key, row) in rows {
        let touched = match row {
            Some(row) => next.put(key.clone(), row, index),
            None => next.delete(&key, index).unwrap_or_default(),
        };
        changes.touched.extend(touched);
        changes.touched.insert(key.clone());
        changes.rows.insert(key, ());
    }
    next.set_index(index);
    (next, changes)
}
