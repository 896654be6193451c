//! Leadership: which of several servers runs the tasks that only one of them should run.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

/// Whether this server is the leader, which runs the tasks that only one server should run at a
/// time, such as removing expired data and renewing shared data.
///
/// A store in memory or on disk has a single server, which is always the leader. Servers with etcd
/// compete for a lease; another server takes over within five seconds after the leader is gone.
/// Leadership avoids duplicate work, but is not a lock: invariants are checked in transactions.
#[derive(Debug, Clone, Default)]
pub struct Leadership {
    /// The time until which the lease is certainly held. `None` if there is only one server.
    lease: Option<Arc<watch::Sender<Option<Instant>>>>,
}

impl Leadership {
    /// For a store with a single server.
    pub(crate) fn alone() -> Self {
        Self::default()
    }

    /// For a leader with a lease, see [`Self::hold_until`].
    pub(crate) fn leased() -> Self {
        Self {
            lease: Some(Arc::default()),
        }
    }

    /// Whether this server is the leader now.
    pub fn is_held(&self) -> bool {
        match &self.lease {
            Some(lease) => lasts(*lease.borrow()),
            None => true,
        }
    }

    /// Waits until this server is the leader. Cancel-safe.
    pub async fn held(&self) {
        if let Some(lease) = &self.lease {
            let mut lease = lease.subscribe();
            // Never fails, because `self` holds the sender.
            let _ = lease.wait_for(|until| lasts(*until)).await;
        }
    }

    pub(crate) fn hold_until(&self, until: Option<Instant>) {
        if let Some(lease) = &self.lease {
            lease.send_replace(until);
        }
    }
}

fn lasts(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() < until)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn held_returns_when_the_lease_is_gained() {
        let leadership = Leadership::leased();
        let mut held = std::pin::pin!(leadership.held());
        assert_eq!(held.as_mut().now_or_never(), None);
        let ttl = Duration::from_secs(10);
        leadership.hold_until(Some(Instant::now() + ttl));
        held.await;
        tokio::time::advance(ttl).await;
        assert_eq!(leadership.held().now_or_never(), None, "it is lost again");
        assert_eq!(Leadership::alone().held().now_or_never(), Some(()));
    }
}
