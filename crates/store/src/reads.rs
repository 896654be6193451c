//! What a reader has looked at: what it waits for, and what its results depend on.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

use crate::key::Key;

/// What was looked at, and when that changed last.
#[derive(Debug, Clone, Default)]
pub struct Reads {
    pub(crate) keys: HashSet<Key>,
    /// The shared results among it. A result is forgotten when nobody holds it, and then no change
    /// reaches those who depend on it; so they hold it.
    pub(crate) results: Vec<Arc<dyn Any + Send + Sync>>,
    /// The index of the last change of anything that was looked at.
    pub(crate) newest: u64,
    /// The index of the state that was read.
    pub(crate) at: u64,
}

impl Reads {
    /// The index of the last change of what was read, at least 1. It never goes back; after
    /// removals it may move forward without a change.
    pub fn index(&self) -> u64 {
        self.newest.max(1)
    }
}
