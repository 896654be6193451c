//! The source of the certificate in a snapshot: the CA, or an earlier snapshot.

use std::sync::Arc;

use legate_ca::Leaf;
use legate_model::ServiceName;

/// Provides the current certificate of a service, `None` until there is one.
pub(crate) trait Leaves {
    fn current(&mut self, service: &ServiceName) -> Option<Arc<Leaf>>;
}
