//! Which of several servers does what one must do.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// Says whether this server is the one that does what only one must do at a time: removing what has
/// expired, renewing what is shared.
///
/// A store in memory or on disk has one server, which always is. Servers over etcd hold a lease;
/// one that is gone is followed by another within ten seconds or so. It spares double work and is
/// no lock: what has to hold is checked in transactions.
#[derive(Debug, Clone, Default)]
pub struct Leadership {
    /// Until when the lease is certainly held. `None`: there is nobody else.
    lease: Option<Arc<Mutex<Option<Instant>>>>,
}

impl Leadership {
    /// Nobody else uses the store.
    pub(crate) fn alone() -> Self {
        Self::default()
    }

    /// Held for as long as somebody says so.
    pub(crate) fn leased() -> Self {
        Self {
            lease: Some(Arc::default()),
        }
    }

    /// Whether it is this server, now.
    pub fn is_held(&self) -> bool {
        let Some(lease) = &self.lease else {
            return true;
        };
        let until = *lease.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    pub(crate) fn hold_until(&self, until: Option<Instant>) {
        if let Some(lease) = &self.lease {
            *lease.lock().unwrap_or_else(PoisonError::into_inner) = until;
        }
    }
}
