//! Config entries that settings bring along.

use legate_model::ConfigEntry;
use legate_store::WriteTxn;

use super::change::Change;
use super::config::acceptable_entry;
use crate::api_error::ApiError;

/// Adds an entry unless there is one of its kind and name, by the rules of every write.
pub(crate) fn bootstrap_entry(
    txn: &mut WriteTxn,
    mut entry: ConfigEntry,
    datacenter: &str,
) -> Result<(), ApiError> {
    acceptable_entry(&entry)?;
    entry.normalise();
    let read = txn.read().within(entry.full_name().tenancy);
    if read.config_entry(entry.kind(), entry.name()).is_some() {
        return Ok(());
    }
    drop(read);
    let entry = Box::new(entry);
    Change::Put { entry, cas: None }
        .apply(txn, datacenter)
        .map(|_| ())
}
