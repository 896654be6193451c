//! Prepares a pod for its end: asks clients of inbound connections to close them and, after a
//! while, refuses new ones, so that callers turn to other pods. Outbound connections are not
//! touched and no process ends; a later signal does that, and then need not wait for callers to learn
//! about it.

use std::sync::Arc;
use std::time::Duration;

use legate_envoy::admin::{AdminClient, AdminError};
use legate_envoy::supervision::{EnvoyConfig, Handle};
use legate_runtime::Spawner;
use tokio::sync::Mutex;

/// Longest time for which connections are still accepted. A pod's termination leaves no more.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Drains inbound connections of the running Envoy on request. Clones share the state.
#[derive(Debug, Clone)]
pub struct Drainer {
    admin: AdminClient,
    /// The supervisor, which is notified of a drain.
    envoy: Handle<EnvoyConfig>,
    spawner: Spawner,
    /// Locked while a previous request still accepts connections.
    accepting: Arc<Mutex<()>>,
}

impl Drainer {
    /// Drains through this admin interface. Delayed steps run in the scope of `spawner`.
    pub fn new(admin: AdminClient, envoy: Handle<EnvoyConfig>, spawner: Spawner) -> Drainer {
        Drainer {
            admin,
            envoy,
            spawner,
            accepting: Arc::default(),
        }
    }

    /// Starts to drain, and refuses new inbound connections after `accept`, at most [`LONGEST`]. If
    /// `accept` is zero, they are refused when this returns. Further requests are no-ops until an
    /// earlier one has stopped accepting connections.
    ///
    /// # Errors
    /// When Envoy does not confirm; the request can be repeated.
    pub async fn drain(&self, accept: Duration) -> Result<(), AdminError> {
        let Ok(accepting) = Arc::clone(&self.accepting).try_lock_owned() else {
            return Ok(());
        };
        tracing::info!(?accept, "draining inbound connections");
        self.admin.drain_listeners().await?;
        self.envoy.drained();
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
