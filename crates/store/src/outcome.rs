//! What comes of a write: it is applied, or the tables refuse it, or it cannot be stored.

use std::sync::Arc;

use crate::rejected::Rejected;

/// What a transaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The index of the tables afterwards.
    pub index: u64,
    /// Whether anything changed. A write of what is there already changes nothing, takes no index
    /// and wakes nobody.
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

/// A write that could not be stored. Reads go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the change could not be stored: {reason}")]
pub struct Unavailable {
    /// Why, and what to do.
    pub reason: Arc<str>,
}

impl Unavailable {
    pub(crate) fn new(reason: impl Into<Arc<str>>) -> Self {
        Self {
            reason: reason.into(),
        }
    }

    pub(crate) fn gone() -> Self {
        Self::new("the server is stopping; ask another one")
    }
}
