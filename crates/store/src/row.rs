//! What a row is: its key, the index entries it is found by, and its stored form.

use std::any::Any;
use std::sync::Arc;

use legate_model::Tenancy;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::key::{Key, Table};

/// A value of one table.
pub(crate) trait Row: Any + Send + Sync + Serialize + DeserializeOwned {
    /// Where it is kept.
    const TABLE: Table;
    /// Whether its stored form is sealed: it holds a key or a token.
    const SECRET: bool = false;

    /// Its key in the table.
    fn key(&self, tenancy: &Tenancy) -> Key;

    /// The index entries that lead to it.
    fn indexes(&self, _tenancy: &Tenancy) -> Vec<Key> {
        Vec::new()
    }

    /// How large it is, in bytes, where the sum of a table is bounded; 0 elsewhere.
    fn size(&self) -> usize {
        0
    }

    /// The index of the write that changed it last.
    fn modify_index(&self) -> u64;
}

/// A row as the tables hold it, whatever its type.
#[derive(Clone)]
pub(crate) struct Stored {
    row: Arc<dyn Any + Send + Sync>,
    encode: fn(&Stored) -> serde_json::Result<Vec<u8>>,
    pub(crate) modify_index: u64,
    /// See [`Row::size`].
    pub(crate) size: usize,
    /// The index entries that lead to it.
    pub(crate) indexes: Arc<[Key]>,
}

impl Stored {
    pub(crate) fn new<R: Row>(row: Arc<R>, tenancy: &Tenancy) -> Self {
        Self {
            modify_index: row.modify_index(),
            size: row.size(),
            indexes: row.indexes(tenancy).into(),
            encode: encode::<R>,
            row,
        }
    }

    /// The row, for those who know the table's type.
    pub(crate) fn get<R: Row>(&self) -> Option<Arc<R>> {
        Arc::clone(&self.row).downcast().ok()
    }

    /// What is stored: JSON, so that people can read it and fields can be added.
    pub(crate) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        (self.encode)(self)
    }
}

fn encode<R: Row>(stored: &Stored) -> serde_json::Result<Vec<u8>> {
    match stored.get::<R>() {
        Some(row) => serde_json::to_vec(&*row),
        None => Ok(Vec::new()),
    }
}
