//! Removes what is in namespaces and partitions that were deleted, in steps. One server does it for all,
//! and goes on with what another one has begun.

use std::time::Duration;

use legate_runtime::{BoxError, CancellationToken};
use legate_store::{Store, Tenant, Unavailable};
use tokio::time::sleep;

/// How many rows are removed in one transaction.
pub(crate) const AT_ONCE: usize = 1000;

/// How often is looked whether this server is still the one that does this, and how soon what could
/// not be stored is tried again.
const ROUND: Duration = Duration::from_secs(1);

/// Removes what was deleted, until `stop`.
///
/// # Errors
/// Never: what cannot be stored is tried again.
pub(crate) async fn remove_deleted(store: Store, stop: CancellationToken) -> Result<(), BoxError> {
    let removing = async {
        loop {
            store.leadership().held().await;
            step(&store).await;
        }
    };
    let _: Option<()> = stop.run_until_cancelled(removing).await;
    Ok(())
}

/// Removes a part of each, or waits for one to be deleted.
async fn step(store: &Store) {
    let (deleted, mut watch) = {
        let state = store.state();
        let txn = state.read();
        (txn.tenants_to_remove(), store.watch(&txn.into_reads()))
    };
    if deleted.is_empty() {
        tokio::select! {
            () = watch.changed() => {}
            () = sleep(ROUND) => {}
        }
    }
    for tenant in deleted {
        if let Err(error) = remove(store, tenant.clone()).await {
            tracing::warn!(?tenant, %error, "a deleted tenant is not removed yet");
            sleep(ROUND).await;
        }
    }
}

async fn remove(store: &Store, tenant: Tenant) -> Result<(), Unavailable> {
    let removed = store.write(move |txn| Ok::<_, Unavailable>(txn.remove_tenant(&tenant, AT_ONCE)));
    removed.await.map(|_| ())
}
