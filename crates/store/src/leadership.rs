//! Which of several servers does what one must do.

use std::sync::Arc;

use tokio::sync::watch;
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
    lease: Option<Arc<watch::Sender<Option<Instant>>>>,
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
        match &self.lease {
            Some(lease) => lasts(*lease.borrow()),
            None => true,
        }
    }

    /// Waits until it is this server. Cancel safe.
    pub async fn held(&self) {
        if let Some(lease) = &self.lease {
            let mut lease = lease.subscribe();
            // It fails only when the sender is gone, which this holds.
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
    async fn the_wait_for_the_lease_ends_when_it_is_gained() {
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
