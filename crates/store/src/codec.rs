//! Encodes and decodes stored rows: JSON, sealed in tables with secrets.

use std::sync::Arc;

use legate_identity::SealingKey;
use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::outcome::Unavailable;
use crate::row::Stored;
use crate::state::State;
use crate::stored_tables::{BadRow, decode, is_secret};

/// The storage format. A server refuses newer formats than its own, and rewrites older ones
/// ([`crate::upgrade`]). It is incremented if servers with the previous number would not understand
/// the stored data, for example with a new table.
pub(crate) const FORMAT: u32 = 13;

/// The associated data of the key's proof. Not a row's key: no table has the number 0.
const PROOF: &[u8] = b"\0proof of the key";

/// The header, needed to decode the rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The format of keys and rows.
    pub(crate) format: u32,
    /// Data sealed with the key of the rows, to detect a wrong key at once.
    pub(crate) proof: Vec<u8>,
}

impl Header {
    pub(crate) fn new(key: &SealingKey) -> Result<Self, legate_identity::IdentityError> {
        Ok(Self {
            format: FORMAT,
            proof: key.seal(PROOF, b"")?,
        })
    }

    /// Whether the rows are sealed with this key.
    pub(crate) fn is_sealed_with(&self, key: &SealingKey) -> bool {
        key.open(PROOF, &self.proof).is_ok()
    }
}

/// Key and value of a row in stored form.
pub(crate) type StoredRow = (Arc<[u8]>, Vec<u8>);

/// Encodes and decodes rows.
#[derive(Debug, Clone)]
pub(crate) struct Codec {
    pub(crate) key: SealingKey,
}

impl Codec {
    /// The stored form of a row.
    pub(crate) fn encode(&self, key: &Key, row: &Stored) -> Result<Vec<u8>, Unavailable> {
        let text = row.to_bytes();
        let text = text.map_err(|error| Unavailable::new(format!("{key:?}: {error}")))?;
        if !is_secret(key) {
            return Ok(text);
        }
        let sealed = self.key.seal(&key.to_bytes(), &text);
        sealed.map_err(|error| Unavailable::new(error.to_string()))
    }

    /// The stored form of all rows.
    pub(crate) fn encode_all(&self, state: &State) -> Result<Vec<StoredRow>, Unavailable> {
        let rows = state.all();
        rows.map(|(key, row)| Ok((key.to_bytes(), self.encode(key, row)?)))
            .collect()
    }

    /// A row from its stored form.
    pub(crate) fn decode(&self, key: Arc<[u8]>, value: &[u8]) -> Result<(Key, Stored), BadRow> {
        let key = Key::from_bytes(key);
        let stored = if is_secret(&key) {
            decode(&key, &self.key.open(&key.to_bytes(), value)?)?
        } else {
            decode(&key, value)?
        };
        Ok((key, stored))
    }
}
