//! The source of the certificates in a snapshot.

use std::sync::Arc;

use legate_ca::{Leaf, LeafId};

/// Provides current certificates, `None` until there is one.
pub(crate) trait Leaves {
    fn current(&mut self, id: &LeafId) -> Option<Arc<Leaf>>;
}

impl<F: FnMut(&LeafId) -> Option<Arc<Leaf>>> Leaves for F {
    fn current(&mut self, id: &LeafId) -> Option<Arc<Leaf>> {
        self(id)
    }
}
