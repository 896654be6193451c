//! Recorded reads: the dependencies of a reader and of its results.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

use crate::key::Key;

/// Keys that were read, with the index of their last change.
#[derive(Debug, Clone, Default)]
pub struct Reads {
    pub(crate) keys: HashSet<Key>,
    /// The shared results among the dependencies. They are held here, because a dropped result no
    /// longer forwards changes.
    pub(crate) results: Vec<Arc<dyn Any + Send + Sync>>,
    /// The index of the last change of anything that was read.
    pub(crate) newest: u64,
    /// The revision of the state that was read.
    pub(crate) at: u64,
    /// Whether something that was read is not known yet.
    pub(crate) is_pending: bool,
}

impl Reads {
    /// The index of the last change of anything that was read, at least 1. It never decreases.
    /// After removals it may increase without a change.
    pub fn index(&self) -> u64 {
        self.newest.max(1)
    }
}
