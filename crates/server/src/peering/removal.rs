//! Removes what was imported from clusters whose peering was deleted on either side, in steps. The leader does it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use legate_model::{Peering, PeeringState, Tenancy, TenancyName};
use legate_runtime::CancellationToken;
use legate_store::{ReadTxn, Store, Unavailable};
use tokio::time::sleep;

/// The largest number of instances that are removed in one transaction.
const AT_ONCE: usize = 1000;
/// How often leadership is checked again, and the delay before a failed write is repeated.
const ROUND: Duration = Duration::from_secs(1);

/// Removes it until `stop`.
///
/// # Errors
/// Never: failed writes are repeated.
pub(crate) async fn remove_deleted(
    store: Store,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    let removing = async {
        loop {
            store.leadership().held().await;
            let (deleted, mut watch) = {
                let state = store.state();
                let txn = state.read();
                let mut deleted = txn.peerings_of_all();
                deleted.retain(|peering| has_remains(&txn, peering));
                (deleted, store.watch(&txn.into_reads()))
            };
            if deleted.is_empty() {
                tokio::select! {
                    () = watch.changed() => {}
                    () = sleep(ROUND) => {}
                }
            }
            for peering in deleted {
                let name = peering.name.clone();
                if let Err(error) = remove_step(&store, peering).await {
                    tracing::warn!(peer = name, %error, "what was imported from a deleted peer is not removed yet");
                    sleep(ROUND).await;
                }
            }
        }
    };
    let _: Option<()> = stop.run_until_cancelled(removing).await;
    Ok(())
}

/// The tenancy of a peering.
pub(super) fn home(peering: &Peering) -> Tenancy {
    Tenancy::new(&peering.partition, &TenancyName::default())
}

/// Whether a deleted peering has something to remove.
fn has_remains(txn: &ReadTxn<'_>, peering: &Peering) -> bool {
    if peering.is_active() {
        return false;
    }
    let home = home(peering);
    let is_marked = peering.state == PeeringState::Deleting;
    is_marked
        || txn.in_tenancy(&home, |txn| txn.trust_bundle(&peering.name).is_some())
        || txn.in_tenancy(&home.of_peer(&peering.name), |txn| !txn.nodes().is_empty())
}

async fn remove_step(store: &Store, peering: Arc<Peering>) -> Result<(), Unavailable> {
    let removed = store.write(move |txn| {
        let home = home(&peering);
        // It may have been established again.
        let now = txn.read().peering_by_id(&peering.id);
        let Some(now) = now.filter(|now| !now.is_active()) else {
            return Ok(());
        };
        let of_peer = home.of_peer(&peering.name);
        if !txn.in_tenancy(&of_peer, |txn| txn.remove_imported(AT_ONCE)) {
            return Ok(());
        }
        txn.in_tenancy(&home, |txn| match now.state {
            PeeringState::Deleting => txn.remove_peering(&peering.name),
            _ => txn.remove_peering_roots(&peering.name),
        });
        Ok(())
    });
    removed.await.map(|_| ())
}
