//! Config entries that settings bring along.

use legate_model::ConfigEntry;
use legate_store::WriteTxn;

use super::error::ApiError;
use super::protocol;

/// Adds an entry unless there is one of its kind and name.
pub(crate) fn bootstrap_entry(txn: &mut WriteTxn, mut entry: ConfigEntry) -> Result<(), ApiError> {
    entry.validate()?;
    entry.normalise();
    if txn
        .read()
        .config_entry(entry.kind(), entry.name())
        .is_some()
    {
        return Ok(());
    }
    txn.put_config_entry(entry.clone(), None)?;
    protocol::refuse_mismatch(&txn.read(), &entry)
}
