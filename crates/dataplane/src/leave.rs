//! What a pod needs before it ends: clients of inbound connections are asked to close them, and
//! after a while new ones are refused, so that callers turn to other pods. Outbound connections are
//! not touched, and nothing ends: that is asked for later, by a signal.

use std::sync::Arc;
use std::time::Duration;

use legate_envoy::admin::{AdminClient, AdminError};
use legate_runtime::Spawner;
use tokio::sync::Mutex;

/// Longest time for which connections are still accepted: pods that end have no more.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Drains inbound connections of the running Envoy on request. Copies are about the same Envoy.
#[derive(Debug, Clone)]
pub struct Drainer {
    admin: AdminClient,
    spawner: Spawner,
    /// Locked while connections are still accepted, for as long as the last request said.
    accepting: Arc<Mutex<()>>,
}

impl Drainer {
    /// For the Envoy whose admin interface this is. What takes time runs in the scope of `spawner`.
    pub fn new(admin: AdminClient, spawner: Spawner) -> Drainer {
        Drainer {
            admin,
            spawner,
            accepting: Arc::default(),
        }
    }

    /// Begins to drain, and refuses new inbound connections after `accept`, [`LONGEST`] at most.
    /// Without a time they are refused when this returns. While an earlier request still accepts
    /// connections, others change nothing.
    ///
    /// # Errors
    /// When Envoy does not confirm; then it can be asked again.
    pub async fn drain(&self, accept: Duration) -> Result<(), AdminError> {
        let Ok(accepting) = Arc::clone(&self.accepting).try_lock_owned() else {
            return Ok(());
        };
        tracing::info!(?accept, "draining inbound connections");
        self.admin.drain_listeners().await?;
        if accept.is_zero() {
            return self.admin.close_inbound_listeners().await;
        }
        let admin = self.admin;
        let close = async move {
            tokio::time::sleep(accept.min(LONGEST)).await;
            if let Err(error) = admin.close_inbound_listeners().await {
                tracing::warn!(%error, "inbound connections are still accepted");
            }
            drop(accepting);
        };
        self.spawner
            .spawn_until_stop("close inbound listeners", close);
        Ok(())
    }
}
