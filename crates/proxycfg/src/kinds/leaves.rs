//! The certificate that a snapshot is made with, wherever it comes from: from the CA, or from the snapshot
//! before.

use std::sync::Arc;

use legate_ca::Leaf;
use legate_model::ServiceName;

/// The certificate of a service, when there is one already.
pub(crate) trait Leaves {
    fn current(&mut self, service: &ServiceName) -> Option<Arc<Leaf>>;
}
