//! The decoding of the rows of stored tables.

use std::sync::Arc;

use legate_identity::IdentityError;
use legate_model::{ConfigKind, Tenancy};

use crate::key::{Key, Scope, Table};
use crate::row::{Row, Stored};
use crate::rows::STORED_TABLES;

/// A stored row that cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadRow {
    #[error("its key is malformed")]
    Key,
    #[error("table {0} is not known")]
    Table(u8),
    #[error("its text cannot be read: {0}")]
    Text(#[from] serde_json::Error),
    #[error(transparent)]
    Sealed(#[from] IdentityError),
}

/// The numbers of all stored tables, the first bytes of keys in a snapshot.
pub fn stored_tables() -> impl Iterator<Item = u8> {
    STORED_TABLES.iter().map(|table| table.number)
}

/// Decodes the row of a key.
pub(crate) fn decode(key: &Key, bytes: &[u8]) -> Result<Stored, BadRow> {
    let tenancy = key.tenancy().ok_or(BadRow::Key)?;
    let table = key.table();
    let known = STORED_TABLES.iter().find(|known| known.number == table);
    let known = known.ok_or(BadRow::Table(table))?;
    Ok((known.read)(bytes, &tenancy)?)
}

/// Whether a row is sealed in stored form: all rows of some tables, and `inline-certificate` config
/// entries.
pub(crate) fn is_secret(key: &Key) -> bool {
    let table = STORED_TABLES
        .iter()
        .find(|table| table.number == key.table());
    if table.is_some_and(|table| table.secret) {
        return true;
    }
    let is_key = || {
        let kind = key.parts().and_then(|parts| parts.into_iter().nth(TENANCY));
        kind.as_deref() == Some(ConfigKind::InlineCertificate.as_str())
    };
    key.table() == Table::ConfigEntries as u8 && is_key()
}

/// The number of parts of a key that are its tenancy, before the names.
const TENANCY: usize = 3;

/// A stored table.
pub(crate) struct StoredTable {
    table: Table,
    number: u8,
    secret: bool,
    read: fn(&[u8], &Tenancy) -> serde_json::Result<Stored>,
}

/// The stored tables of one scope.
pub(crate) fn tables(scope: Scope) -> impl Iterator<Item = Table> {
    let tables = STORED_TABLES.iter().map(|stored| stored.table);
    tables.filter(move |table| table.scope() == scope)
}

impl StoredTable {
    /// The table of a type of rows.
    pub(crate) const fn of<R: Row>() -> Self {
        Self {
            table: R::TABLE,
            number: R::TABLE as u8,
            secret: R::SECRET.is_some(),
            read: read::<R>,
        }
    }
}

fn read<R: Row>(bytes: &[u8], tenancy: &Tenancy) -> serde_json::Result<Stored> {
    let row: R = serde_json::from_slice(bytes)?;
    Ok(Stored::new(Arc::new(row), tenancy))
}
