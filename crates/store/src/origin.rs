//! Where rows come from: what errors call that, and whether a server with this key can read them.

use std::path::PathBuf;

use legate_identity::SealingKey;

use crate::codec::{FORMAT, Header};
use crate::open_error::OpenError;

/// What errors name, and the key.
pub(crate) struct Origin {
    /// The file, or the place, that keeps the rows.
    pub(crate) store: String,
    pub(crate) key: SealingKey,
    pub(crate) key_file: PathBuf,
}

impl Origin {
    /// The format of rows with such a header, when this server can read them.
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

    /// The error for rows that are not what was written.
    pub(crate) fn damaged(&self, reason: String) -> OpenError {
        OpenError::Damaged {
            store: self.store.clone(),
            reason,
        }
    }
}
