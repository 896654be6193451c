//! Outcomes of a write: applied, refused by the tables, or not stored.

use std::sync::Arc;

use crate::rejected::Rejected;

/// The result of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The index of the tables afterwards.
    pub index: u64,
    /// Whether anything changed. A write of existing values is a no-op: it uses no index and wakes
    /// no reader.
    pub changed: bool,
}

/// Why a write was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The tables do not allow it.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// It could not be stored.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// A write could not be stored. Reads still work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the change could not be stored: {reason}")]
pub struct Unavailable {
    /// The reason, and what to do.
    pub reason: Arc<str>,
}

impl Unavailable {
    pub(crate) fn new(reason: impl Into<Arc<str>>) -> Self {
        Self {
            reason: reason.into(),
        }
    }

    pub(crate) fn gone() -> Self {
        Self::new("the server is stopping; use another one")
    }
}
