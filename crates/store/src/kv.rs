//! The KV store: keys, values and locks, with Consul's semantics. This file makes no access
//! decisions.

use std::sync::Arc;

use legate_model::{KvEntry, KvValue};

use crate::key::Table;
use crate::read::ReadTxn;
use crate::rows::LockDelayRow;
use crate::write::WriteTxn;

/// A write of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvWrite {
    /// The key.
    pub key: String,
    /// An opaque number for applications.
    pub flags: u64,
    /// Any bytes.
    pub value: KvValue,
}

/// Why a lock request is invalid. The texts are Consul's, which its clients match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// No session is named.
    #[error("missing session")]
    NoSession,
    /// The session does not exist.
    #[error("invalid session {0:?}")]
    UnknownSession(String),
}

impl ReadTxn<'_> {
    /// A key.
    pub fn kv(&self, key: &str) -> Option<Arc<KvEntry>> {
        self.get_path(key)
    }

    /// The keys with this prefix, in order; all for an empty prefix.
    pub fn kv_below(&self, prefix: &str) -> Vec<Arc<KvEntry>> {
        self.scan_paths(prefix)
    }

    /// Whether the key is within the lock delay of a session that has ended.
    pub fn is_lock_delayed(&self, key: &str) -> bool {
        self.get_path::<LockDelayRow>(key).is_some()
    }

    /// The keys that are locked by a session.
    pub(crate) fn kv_locked_by(&self, session: &str) -> Vec<Arc<KvEntry>> {
        self.find_all(Table::KvBySession, &[session])
    }
}

impl WriteTxn {
    /// Writes a key. Its lock is unchanged.
    pub fn kv_set(&mut self, write: KvWrite) -> Arc<KvEntry> {
        let existing = self.read().kv(&write.key);
        let held = existing.as_ref().map(|old| old.session.clone());
        let locked = existing.as_ref().map_or(0, |old| old.lock_index);
        self.put_kv(existing, write, locked, held.unwrap_or_default())
    }

    /// Writes a key if its modify index is `index`; 0: if it does not exist.
    pub fn kv_cas(&mut self, write: KvWrite, index: u64) -> Option<Arc<KvEntry>> {
        let existing = self.read().kv(&write.key);
        let actual = existing.map_or(0, |old| old.modify_index);
        (actual == index).then(|| self.kv_set(write))
    }

    /// Writes a key and locks it for a session, unless another session holds the lock.
    ///
    /// # Errors
    /// [`LockError`]
    pub fn kv_lock(
        &mut self,
        write: KvWrite,
        session: &str,
    ) -> Result<Option<Arc<KvEntry>>, LockError> {
        if session.is_empty() {
            return Err(LockError::NoSession);
        }
        let Some(session) = self.read().session(session) else {
            return Err(LockError::UnknownSession(session.to_owned()));
        };
        let existing = self.read().kv(&write.key);
        let locked = match existing.as_deref() {
            None => 1,
            Some(old) if old.session == session.id => old.lock_index,
            Some(old) if old.session.is_empty() => old.lock_index + 1,
            Some(_) => return Ok(None),
        };
        Ok(Some(self.put_kv(
            existing,
            write,
            locked,
            session.id.clone(),
        )))
    }

    /// Writes a key and releases its lock, if the session holds it.
    ///
    /// # Errors
    /// [`LockError`]
    pub fn kv_unlock(
        &mut self,
        write: KvWrite,
        session: &str,
    ) -> Result<Option<Arc<KvEntry>>, LockError> {
        if session.is_empty() {
            return Err(LockError::NoSession);
        }
        let existing = self.read().kv(&write.key);
        let held = existing.filter(|old| old.session.eq_ignore_ascii_case(session));
        let Some(held) = held else {
            return Ok(None);
        };
        let locked = held.lock_index;
        Ok(Some(self.put_kv(Some(held), write, locked, String::new())))
    }

    /// Removes a key. A no-op if it does not exist.
    pub fn kv_delete(&mut self, key: &str) {
        self.remove_path::<KvEntry>(key);
    }

    /// Removes a key if its modify index is `index`. Returns whether the key is gone.
    pub fn kv_delete_cas(&mut self, key: &str, index: u64) -> bool {
        let existing = self.read().kv(key);
        let gone = existing.is_none_or(|old| old.modify_index == index);
        if gone {
            self.kv_delete(key);
        }
        gone
    }

    /// Removes the keys with this prefix; all for an empty prefix.
    pub fn kv_delete_tree(&mut self, prefix: &str) {
        for entry in self.read().kv_below(prefix) {
            self.kv_delete(&entry.key);
        }
    }

    /// Writing existing values is a no-op.
    fn put_kv(
        &mut self,
        existing: Option<Arc<KvEntry>>,
        write: KvWrite,
        lock_index: u64,
        session: String,
    ) -> Arc<KvEntry> {
        let index = self.index();
        let entry = KvEntry {
            lock_index,
            key: write.key,
            flags: write.flags,
            value: write.value,
            session,
            namespace: self.tenancy.shown_namespace(),
            partition: self.tenancy.shown_partition(),
            create_index: existing.as_ref().map_or(index, |old| old.create_index),
            modify_index: existing.as_ref().map_or(index, |old| old.modify_index),
        };
        if let Some(old) = existing.filter(|old| **old == entry) {
            return old;
        }
        let entry = Arc::new(KvEntry {
            modify_index: index,
            ..entry
        });
        self.put::<KvEntry>(Arc::clone(&entry));
        entry
    }

    /// Releases the lock of a key whose session ends.
    pub(crate) fn release_kv(&mut self, held: &KvEntry) {
        self.put(KvEntry {
            session: String::new(),
            modify_index: self.index(),
            ..held.clone()
        });
    }
}
