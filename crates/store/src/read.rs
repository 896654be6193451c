//! Reading: what a reader looks at is what it depends on.
//!
//! Every getter notes the key or the prefix of keys that it looked at, rows that do not exist
//! included. [`crate::Store::watch`] takes these notes; nobody lists by hand what to wait for.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use legate_model::Tenancy;

use crate::key::{Key, Table};
use crate::query::DependsOn;
use crate::reads::Reads;
use crate::row::{Row, Stored};
use crate::state::State;

/// A look at one state. Names are compared without regard to case.
#[derive(Debug)]
pub struct ReadTxn<'s> {
    pub(crate) state: &'s State,
    pub(crate) tenancy: Tenancy,
    reads: RefCell<Reads>,
    /// Whether the state is one that all readers see; a transaction's own is not.
    pub(crate) committed: bool,
}

impl State {
    /// Reads this state; what is read is noted.
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
                at: state.index(),
                ..Reads::default()
            }),
            committed,
        }
    }

    /// The same look at another tenancy's rows.
    #[must_use]
    pub fn within(mut self, tenancy: Tenancy) -> Self {
        self.tenancy = tenancy;
        self
    }

    /// Whose rows are read.
    pub fn tenancy(&self) -> &Tenancy {
        &self.tenancy
    }

    /// Looks at another tenancy's rows for a moment. What is read there is noted here.
    pub fn in_tenancy<T>(&self, tenancy: &Tenancy, look: impl FnOnce(&ReadTxn<'s>) -> T) -> T {
        if *tenancy == self.tenancy {
            return look(self);
        }
        let other = Self::new(self.state, self.committed).within(tenancy.clone());
        let value = look(&other);
        self.note_all(&other.into_reads());
        value
    }

    /// The same look, whose reads are noted apart.
    pub(crate) fn apart(&self) -> Self {
        Self::new(self.state, self.committed).within(self.tenancy.clone())
    }

    /// What has been looked at so far.
    pub fn reads(&self) -> Reads {
        self.reads.borrow().clone()
    }

    /// What was looked at.
    pub fn into_reads(self) -> Reads {
        self.reads.into_inner()
    }

    /// A result that readers share: computed once for all who ask with the same argument, until
    /// something that it was computed from changes. Computed anew to an equal value it is the same
    /// `Arc` as before. It is kept for as long as somebody holds it, or watches what was made of it.
    ///
    /// `name` tells queries apart; one name always stands for the same computation and type.
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
        let (value, depends) = self.state.queries.get(&key, self.state.index(), compute);
        match depends {
            DependsOn::Result { newest } => {
                let mut reads = self.reads.borrow_mut();
                reads.newest = reads.newest.max(newest);
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
        reads.keys.extend(other.keys.iter().cloned());
        reads.results.extend(other.results.iter().cloned());
    }

    /// Notes a prefix: whatever is written below it changes what is read.
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

    /// Rows below a prefix, in the order of their keys.
    pub(crate) fn scan<R: Row>(&self, names: &[&str]) -> Vec<Arc<R>> {
        let prefix = self.key(R::TABLE, names);
        let rows = self.state.below(&prefix);
        let rows = rows.filter_map(|(_, row)| self.read_row(row)).collect();
        self.note(prefix);
        rows
    }

    /// The rows of a table, whosever they are.
    pub(crate) fn scan_everywhere<R: Row>(&self) -> Vec<Arc<R>> {
        let all = Key::table_of(R::TABLE);
        let rows = self.state.below(&all);
        let rows = rows.filter_map(|(_, row)| self.read_row(row)).collect();
        self.note(all);
        rows
    }

    /// The row at a path.
    pub(crate) fn get_path<R: Row>(&self, path: &str) -> Option<Arc<R>> {
        let key = Key::path(R::TABLE, &self.tenancy, &[], path);
        let row = self.state.get(&key);
        self.note(key);
        self.read_row(row?)
    }

    /// The rows whose paths start with a text, in the order of the paths. What else stands in the same
    /// directory wakes the reader, too, and does not change the index.
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

    /// The row that an index entry leads to.
    pub(crate) fn find<R: Row>(&self, entry: Key) -> Option<Arc<R>> {
        let row = self.state.found(&entry);
        self.note(entry);
        self.read_row(row?)
    }

    /// The rows that the entries of an index below a prefix lead to, in the order of the entries.
    pub(crate) fn find_all<R: Row>(&self, index: Table, names: &[&str]) -> Vec<Arc<R>> {
        let prefix = self.key(index, names);
        let rows = self.peek_all(&prefix);
        self.note(prefix);
        rows
    }

    /// The first of these rows that is accepted. The others behind it are not looked at.
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

    /// As [`Self::find_all`], for rows whose changes are noted by a wider prefix.
    pub(crate) fn peek_all<R: Row>(&self, prefix: &Key) -> Vec<Arc<R>> {
        let rows = self.state.found_below(prefix);
        rows.filter_map(|row| self.read_row(row)).collect()
    }

    fn read_row<R: Row>(&self, row: &Stored) -> Option<Arc<R>> {
        self.seen(row);
        row.get()
    }
}
