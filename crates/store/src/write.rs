//! Changing: a transaction sees its own writes, has one index, and is applied wholly or not at all.
//!
//! A transaction is a function of the state that it is applied to. Where several servers write, it
//! may run more than once, each time on a newer state; rules that span rows therefore hold for the
//! state that is really changed.

use std::sync::Arc;

use legate_model::Tenancy;

use crate::key::Key;
use crate::read::ReadTxn;
use crate::row::{Row, Stored};
use crate::state::{Changes, State};

/// A state that is being changed.
#[derive(Debug)]
pub struct WriteTxn {
    state: State,
    index: u64,
    pub(crate) tenancy: Tenancy,
    changes: Changes,
}

impl State {
    /// The state as it would be after a transaction, for those who only look. Nothing is stored,
    /// nobody hears of it, and results that readers of it share are shared with nobody else.
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

    /// Whose rows are read and written from here on.
    pub fn set_tenancy(&mut self, tenancy: Tenancy) {
        self.tenancy = tenancy;
    }

    /// Writes another tenancy's rows for a moment.
    pub fn in_tenancy<T>(&mut self, tenancy: &Tenancy, write: impl FnOnce(&mut Self) -> T) -> T {
        let own = std::mem::replace(&mut self.tenancy, tenancy.clone());
        let value = write(self);
        self.tenancy = own;
        value
    }

    /// The index that the rows written by this transaction get.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Reads the state as it is after the writes so far.
    pub fn read(&self) -> ReadTxn<'_> {
        ReadTxn::new(&self.state, false).within(self.tenancy.clone())
    }

    /// The state with the writes, and what they changed. Without writes it is the state it was.
    pub(crate) fn into_parts(mut self) -> (State, Changes) {
        if !self.changes.is_empty() {
            self.state.set_index(self.index);
        }
        (self.state, self.changes)
    }

    /// Adds or replaces a row.
    pub(crate) fn put<R: Row>(&mut self, row: impl Into<Arc<R>>) {
        let row = row.into();
        let key = row.key(&self.tenancy);
        let stored = Stored::new(row, &self.tenancy);
        let touched = self.state.put(key.clone(), stored, self.index);
        self.changed(key, touched);
    }

    /// Removes a row. Says whether there was one.
    pub(crate) fn remove<R: Row>(&mut self, names: &[&str]) -> bool {
        self.remove_key(Key::new(R::TABLE, &self.tenancy, names))
    }

    /// Removes the row at a path. Says whether there was one.
    pub(crate) fn remove_path<R: Row>(&mut self, path: &str) -> bool {
        self.remove_key(Key::path(R::TABLE, &self.tenancy, &[], path))
    }

    /// Some keys of rows below a prefix.
    pub(crate) fn keys_below(&self, prefix: &Key, limit: usize) -> Vec<Key> {
        let rows = self.state.below(prefix);
        rows.map(|(key, _)| key.clone()).take(limit).collect()
    }

    /// Removes the row of a key. Says whether there was one.
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

/// Applies rows that another server wrote.
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
