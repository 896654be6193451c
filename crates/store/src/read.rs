//! Reads: every read is recorded as a dependency.
//!
//! Every getter records the key or key prefix that it read, including those of rows that do not
//! exist. [`crate::Store::watch`] takes these records, so that dependencies are never listed by
//! hand.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use legate_model::Tenancy;

use crate::key::{Key, Table};
use crate::query::DependsOn;
use crate::reads::Reads;
use crate::row::{Row, Stored};
use crate::state::State;

/// A read transaction on one state. Names are case-insensitive.
#[derive(Debug)]
pub struct ReadTxn<'s> {
    pub(crate) state: &'s State,
    pub(crate) tenancy: Tenancy,
    reads: RefCell<Reads>,
    /// Whether the state is committed and visible to all readers, unlike that of a running
    /// transaction.
    pub(crate) committed: bool,
}

impl State {
    /// Starts a read transaction on this state.
    pub fn read(&self) -> ReadTxn<'_> {
        ReadTxn::new(self, true)
    }
}

impl<'s> ReadTxn<'s> {
    pub(crate) fn new(state: &'s State, committed: bool) -> Self {
        Self {
            state,
            tenancy: Tenancy::default(),
            reads: RefCell::new(Reads {
                at: state.revision,
                ..Reads::default()
            }),
            committed,
        }
    }

    /// Changes the current tenancy.
    #[must_use]
    pub fn within(mut self, tenancy: Tenancy) -> Self {
        self.tenancy = tenancy;
        self
    }

    /// The current tenancy.
    pub fn tenancy(&self) -> &Tenancy {
        &self.tenancy
    }

    /// Reads in another tenancy. Its reads are recorded here.
    pub fn in_tenancy<T>(&self, tenancy: &Tenancy, look: impl FnOnce(&ReadTxn<'s>) -> T) -> T {
        if *tenancy == self.tenancy {
            return look(self);
        }
        let other = Self::new(self.state, self.committed).within(tenancy.clone());
        let value = look(&other);
        self.note_all(&other.into_reads());
        value
    }

    /// The same transaction with separately recorded reads.
    pub(crate) fn apart(&self) -> Self {
        Self::new(self.state, self.committed).within(self.tenancy.clone())
    }

    /// The reads so far.
    pub fn reads(&self) -> Reads {
        self.reads.borrow().clone()
    }

    /// The reads.
    pub fn into_reads(self) -> Reads {
        self.reads.into_inner()
    }

    /// Whether something that was read so far, also through shared results, is not known yet: a range of another
    /// datacenter whose first attempt has not ended. Its watchers are woken when it has.
    pub fn is_pending(&self) -> bool {
        self.reads.borrow().is_pending
    }

    pub(crate) fn set_pending(&self) {
        self.reads.borrow_mut().is_pending = true;
    }

    /// Records a key that has no index, and what is to be held while anything depends on it.
    pub(crate) fn note_remote(&self, key: Key, held: Option<Arc<dyn Any + Send + Sync>>) {
        let mut reads = self.reads.borrow_mut();
        if reads.keys.insert(key) {
            reads.results.extend(held);
        }
    }

    /// A shared result: computed once for all readers with the same argument, until one of its
    /// inputs changes. If a recomputed value is equal, it is the same `Arc` as before. The result
    /// is stored while it is held, or while something that depends on it is watched.
    ///
    /// `name` identifies the query: one name always stands for the same computation and type.
    pub fn shared<T: PartialEq + Any + Send + Sync>(
        &self,
        name: &'static str,
        argument: &str,
        compute: impl FnOnce(&ReadTxn<'s>) -> T,
    ) -> Arc<T> {
        let compute = || {
            let inner = self.apart();
            let value = compute(&inner);
            (value, inner.into_reads())
        };
        if !self.committed {
            let (value, reads) = compute();
            self.note_all(&reads);
            return Arc::new(value);
        }
        let key = Key::new(Table::Queries, &self.tenancy, &[name, argument]);
        let (value, depends) = self.state.queries.get(&key, self.state.revision, compute);
        match depends {
            DependsOn::Result { newest, is_pending } => {
                let mut reads = self.reads.borrow_mut();
                reads.newest = reads.newest.max(newest);
                reads.is_pending |= is_pending;
                if reads.keys.insert(key) {
                    reads.results.push(value.clone());
                }
            }
            DependsOn::Reads(reads) => self.note_all(&reads),
        }
        value
    }

    fn note_all(&self, other: &Reads) {
        let mut reads = self.reads.borrow_mut();
        reads.newest = reads.newest.max(other.newest);
        reads.is_pending |= other.is_pending;
        reads.keys.extend(other.keys.iter().cloned());
        reads.results.extend(other.results.iter().cloned());
    }

    /// Records a prefix: every write below it affects the reader.
    pub(crate) fn note(&self, prefix: Key) {
        let removed = self.state.removed_below(&prefix);
        let mut reads = self.reads.borrow_mut();
        reads.newest = reads.newest.max(removed);
        reads.keys.insert(prefix);
    }

    pub(crate) fn seen(&self, row: &Stored) {
        let mut reads = self.reads.borrow_mut();
        reads.newest = reads.newest.max(row.modify_index);
    }

    pub(crate) fn key(&self, table: Table, names: &[&str]) -> Key {
        Key::new(table, &self.tenancy, names)
    }

    pub(crate) fn get<R: Row>(&self, names: &[&str]) -> Option<Arc<R>> {
        let key = self.key(R::TABLE, names);
        let row = self.state.get(&key);
        self.note(key);
        self.read_row(row?)
    }

    /// Rows below a prefix, ordered by key.
    pub(crate) fn scan<R: Row>(&self, names: &[&str]) -> Vec<Arc<R>> {
        let prefix = self.key(R::TABLE, names);
        let rows = self.state.below(&prefix);
        let rows = rows.filter_map(|(_, row)| self.read_row(row)).collect();
        self.note(prefix);
        rows
    }

    /// The row at a path.
    pub(crate) fn get_path<R: Row>(&self, path: &str) -> Option<Arc<R>> {
        let key = Key::path(R::TABLE, &self.tenancy, &[], path);
        let row = self.state.get(&key);
        self.note(key);
        self.read_row(row?)
    }

    /// The rows whose paths have this prefix, ordered by path. Other writes in the same directory
    /// also wake the reader, but do not change the index.
    pub(crate) fn scan_paths<R: Row>(&self, prefix: &str) -> Vec<Arc<R>> {
        let below = Key::path_prefix(R::TABLE, &self.tenancy, prefix);
        let rows = self.state.below(&below);
        let rows = rows.filter_map(|(_, row)| self.read_row(row)).collect();
        let removed = self.state.removed_below(&below);
        let mut reads = self.reads.borrow_mut();
        reads.newest = reads.newest.max(removed);
        let directory = Key::path_directory(R::TABLE, &self.tenancy, prefix);
        reads.keys.insert(directory);
        drop(reads);
        rows
    }

    /// The row of an index entry.
    pub(crate) fn find<R: Row>(&self, entry: Key) -> Option<Arc<R>> {
        let row = self.state.found(&entry);
        self.note(entry);
        self.read_row(row?)
    }

    /// The rows of the index entries below a prefix, ordered by entry.
    pub(crate) fn find_all<R: Row>(&self, index: Table, names: &[&str]) -> Vec<Arc<R>> {
        let prefix = self.key(index, names);
        let rows = self.peek_all(&prefix);
        self.note(prefix);
        rows
    }

    /// The first of these rows that `accept` accepts. Later ones are not read.
    pub(crate) fn find_first<R: Row>(
        &self,
        index: Table,
        names: &[&str],
        mut accept: impl FnMut(&R) -> bool,
    ) -> Option<Arc<R>> {
        let prefix = self.key(index, names);
        let rows = self.state.found_below(&prefix);
        let found = rows
            .filter_map(|row| self.read_row(row))
            .find(|row| accept(row));
        self.note(prefix);
        found
    }

    /// As [`Self::find_all`], for rows whose changes are recorded by a wider prefix.
    pub(crate) fn peek_all<R: Row>(&self, prefix: &Key) -> Vec<Arc<R>> {
        let rows = self.state.found_below(prefix);
        rows.filter_map(|row| self.read_row(row)).collect()
    }

    fn read_row<R: Row>(&self, row: &Stored) -> Option<Arc<R>> {
        self.seen(row);
        row.get()
    }
}
