//! What a row is: its key, the index entries it is found by, and its stored form.
//!
//! A new kind of row is one `impl Row` and one line in `READERS`.

use std::any::Any;
use std::sync::Arc;

use legate_identity::IdentityError;
use legate_model::Tenancy;
use legate_model::acl::{AuthMethod, BindingRule, Policy, Role, Token};
use legate_model::{
    AutopilotConfiguration, CaConfiguration, ConfigEntry, ConfigKind, HealthCheck, KvEntry,
    Namespace, Node, Partition, Peering, PreparedQuery,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::key::{Key, Scope, Table};
use crate::rows::{
    AgentCheckRow, CaRow, CoordinateRow, FileServiceRow, FreedVirtualIpRow, InstanceRow,
    LastVirtualIpRow, LockDelayRow, ManagementRow, SessionRow, VirtualIpRow,
};

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

/// A stored row that cannot be read.
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

/// The numbers of all tables that are stored, which are the first bytes of the keys in a snapshot.
pub fn stored_tables() -> impl Iterator<Item = u8> {
    READERS.iter().map(|table| table.number)
}

/// The row behind a key, from its stored form.
pub(crate) fn decode(key: &Key, bytes: &[u8]) -> Result<Stored, BadRow> {
    let tenancy = key.tenancy().ok_or(BadRow::Key)?;
    let table = key.table();
    let known = READERS.iter().find(|known| known.number == table);
    let known = known.ok_or(BadRow::Table(table))?;
    Ok((known.read)(bytes, &tenancy)?)
}

/// Whether a row is sealed when it is stored: all those of some tables, and certificates with their
/// keys among the config entries.
pub(crate) fn is_secret(key: &Key) -> bool {
    let table = READERS.iter().find(|table| table.number == key.table());
    if table.is_some_and(|table| table.secret) {
        return true;
    }
    let is_key = || {
        let kind = key.parts().and_then(|parts| parts.into_iter().nth(TENANCY));
        kind.as_deref() == Some(ConfigKind::InlineCertificate.as_str())
    };
    key.table() == Table::ConfigEntries as u8 && is_key()
}

/// How many parts of a key are its tenancy; the names of the row stand after them.
const TENANCY: usize = 3;

/// A table that is stored.
struct StoredTable {
    table: Table,
    number: u8,
    secret: bool,
    read: fn(&[u8], &Tenancy) -> serde_json::Result<Stored>,
}

/// Every table that is stored.
const READERS: &[StoredTable] = &[
    stored::<Node>(),
    stored::<InstanceRow>(),
    stored::<HealthCheck>(),
    stored::<ConfigEntry>(),
    stored::<Token>(),
    stored::<AuthMethod>(),
    stored::<BindingRule>(),
    stored::<CaRow>(),
    stored::<ManagementRow>(),
    stored::<VirtualIpRow>(),
    stored::<FreedVirtualIpRow>(),
    stored::<LastVirtualIpRow>(),
    stored::<Policy>(),
    stored::<Role>(),
    stored::<AgentCheckRow>(),
    stored::<PreparedQuery>(),
    stored::<KvEntry>(),
    stored::<SessionRow>(),
    stored::<LockDelayRow>(),
    stored::<CoordinateRow>(),
    stored::<AutopilotConfiguration>(),
    stored::<Peering>(),
    stored::<FileServiceRow>(),
    stored::<CaConfiguration>(),
    stored::<Namespace>(),
    stored::<Partition>(),
];

/// The stored tables whose rows are of a namespace, or of a partition.
pub(crate) fn tables(scope: Scope) -> impl Iterator<Item = Table> {
    let tables = READERS.iter().map(|stored| stored.table);
    tables.filter(move |table| table.scope() == scope)
}

const fn stored<R: Row>() -> StoredTable {
    StoredTable {
        table: R::TABLE,
        number: R::TABLE as u8,
        secret: R::SECRET,
        read: read::<R>,
    }
}

fn read<R: Row>(bytes: &[u8], tenancy: &Tenancy) -> serde_json::Result<Stored> {
    let row: R = serde_json::from_slice(bytes)?;
    Ok(Stored::new(Arc::new(row), tenancy))
}
