//! Peerings with other clusters: tokens, streams, what is exported and imported.
//!
//! The cluster that generated a token accepts streams, at any of its servers; that of the other one which leads dials.
//! A stream is a row: the newest one of a peering is the only one that may write, whichever servers hold streams. So a
//! server that was lost is replaced by the next stream, and no lock is needed. What a stream does is
//! [`legate_peering::Session`]'s decision.

mod addresses;
mod dial;
mod dialer;
mod establish;
mod exports;
mod imports;
mod metrics;
mod pace;
mod removal;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use legate_model::{Peering, PeeringRemote, PeeringStream, Secret, TrustDomain};
use legate_peering::{Refusal, code};
use legate_runtime::{CancellationToken, Clock, Spawner};
use legate_store::{ReadTxn, SecretRefused, State, Store, Unavailable, WriteTxn};

use crate::config::ServerConfig;

pub(crate) use dialer::{LARGEST, QUEUE};
pub(crate) use metrics::register as register_metrics;
pub(crate) use removal::remove_deleted;
pub(crate) use stream::Stream;

/// The peerings of this server. Clones share them.
#[derive(Clone)]
pub(crate) struct Peerings {
    config: Arc<ServerConfig>,
    store: Store,
    clock: Clock,
    spawner: Spawner,
}

impl Peerings {
    pub(crate) fn new(
        config: Arc<ServerConfig>,
        store: Store,
        clock: Clock,
        spawner: Spawner,
    ) -> Self {
        Self {
            config,
            store,
            clock,
            spawner,
        }
    }

    /// Dials other clusters while this server leads, and removes what was imported from deleted peers, until `stop`.
    pub(crate) fn run(&self, stop: &CancellationToken) {
        if !self.config.peering {
            return;
        }
        let removing = remove_deleted(self.store.clone(), stop.clone());
        self.spawner.spawn("imports of deleted peers", removing);
        let dialing = dialer::dial_all(self.clone(), stop.clone());
        self.spawner.spawn("streams to peers", dialing);
    }

    /// Whether this server takes part in peerings.
    pub(crate) fn are_enabled(&self) -> bool {
        self.config.peering
    }

    pub(crate) fn state(&self) -> Arc<State> {
        self.store.state()
    }

    /// Whether this cluster has the CA that other clusters are to trust, or no mesh.
    pub(crate) fn has_authority(&self) -> bool {
        !self.config.connect || trust_domain(&self.store.state().read()).is_some()
    }

    pub(crate) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// Makes the pending secret of a peering that of its streams, and notes where the other cluster is.
    pub(crate) async fn promote_secret(
        &self,
        id: String,
        given: Secret,
        remote: PeeringRemote,
    ) -> Result<Result<(), SecretRefused>, Unavailable> {
        let promote = move |txn: &mut WriteTxn| {
            let promoted = txn.promote_peering_secret(&id, &given);
            if promoted.is_ok() {
                txn.change_peering(&id, |peering| peering.remote.clone_from(&remote));
            }
            Ok(promoted)
        };
        self.store
            .write::<_, Unavailable>(promote)
            .await
            .map(|(_, promoted)| promoted)
    }

    /// Exchanges the secret of a token for one that opens a stream.
    pub(crate) async fn exchange_secret(
        &self,
        id: String,
        given: Secret,
        pending: Secret,
    ) -> Result<Result<(), SecretRefused>, Unavailable> {
        let exchange =
            move |txn: &mut WriteTxn| Ok(txn.exchange_peering_secret(&id, &given, pending.clone()));
        self.store
            .write::<_, Unavailable>(exchange)
            .await
            .map(|(_, exchanged)| exchanged)
    }
}

/// The trust domain of this cluster; `None` while it has no CA.
fn trust_domain(txn: &ReadTxn<'_>) -> Option<TrustDomain> {
    txn.ca_roots()?.trust_domain.parse().ok()
}

/// An error that ends a stream and has no code of its own.
fn refusal(message: impl Into<String>) -> Refusal {
    Refusal {
        code: code::UNKNOWN,
        message: message.into(),
    }
}

/// The time for what a stream writes when it opens and ends.
const WRITE: Duration = Duration::from_secs(10);

/// The row of a stream that a server opens.
fn new_stream(peering: &Peering, config: &ServerConfig, clock: &Clock) -> PeeringStream {
    PeeringStream {
        peer: peering.name.clone(),
        id: uuid::Uuid::new_v4().to_string(),
        server: config.node_name.clone(),
        is_connected: true,
        was_connected: true,
        written_at: Some(clock.now()),
        ..PeeringStream::default()
    }
}
