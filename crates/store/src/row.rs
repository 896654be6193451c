//! Rows: their keys, their index entries and their stored form.

use std::any::Any;
use std::sync::Arc;

use legate_model::Tenancy;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::key::{Key, Table};

/// A row type of one table.
pub(crate) trait Row: Any + Send + Sync + Serialize + DeserializeOwned {
    /// The table of the row.
    const TABLE: Table;
    /// Why the stored form is sealed: what the row contains. `None`: it is not.
    const SECRET: Option<&'static str> = None;

    /// Its key in the table.
    fn key(&self, tenancy: &Tenancy) -> Key;

    /// Its index entries.
    fn indexes(&self, _tenancy: &Tenancy) -> Vec<Key> {
        Vec::new()
    }

    /// Its size in bytes for tables with a limited total size, 0 for others.
    fn size(&self) -> usize {
        0
    }

    /// The index of the last write that changed it.
    fn modify_index(&self) -> u64;
}

/// A type-erased row.
#[derive(Clone)]
pub(crate) struct Stored {
    row: Arc<dyn Any + Send + Sync>,
    encode: fn(&Stored) -> serde_json::Result<Vec<u8>>,
    pub(crate) modify_index: u64,
    /// See [`Row::size`].
    pub(crate) size: usize,
    /// Its index entries.
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

    /// The row as its type. `None` if it has another type.
    pub(crate) fn get<R: Row>(&self) -> Option<Arc<R>> {
        Arc::clone(&self.row).downcast().ok()
    }

    /// The stored form: JSON, so that it is readable and fields can be added.
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
