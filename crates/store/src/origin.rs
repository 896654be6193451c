//! The source of rows: its name in errors, its key, and the check whether this server can read it.

use std::path::PathBuf;

use legate_identity::SealingKey;

use crate::codec::{FORMAT, Header};
use crate::open_error::OpenError;

/// The name of a store in errors, and its key.
pub(crate) struct Origin {
    /// The file or the description of the store.
    pub(crate) store: String,
    pub(crate) key: SealingKey,
    pub(crate) key_file: PathBuf,
}

impl Origin {
    /// The format of rows with this header, if this server can read them.
    pub(crate) fn check(&self, header: &[u8]) -> Result<u32, OpenError> {
        let header: Header = serde_json::from_slice(header)
            .map_err(|error| self.damaged(format!("its header cannot be read: {error}")))?;
        if header.format > FORMAT {
            return Err(OpenError::Newer {
                found: header.format,
                known: FORMAT,
            });
        }
        if !header.is_sealed_with(&self.key) {
            return Err(OpenError::WrongKey {
                path: self.key_file.clone(),
            });
        }
        Ok(header.format)
    }

    /// The error for corrupt rows.
    pub(crate) fn damaged(&self, reason: String) -> OpenError {
        OpenError::Damaged {
            store: self.store.clone(),
            reason,
        }
    }
}
