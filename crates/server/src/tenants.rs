//! Deletes the contents of deleted namespaces and partitions, in batches. Only the server that holds the
//! store's leadership does it; after a change of leadership the next one continues.

use std::time::Duration;

use legate_runtime::{BoxError, CancellationToken};
use legate_store::{Store, Tenant, Unavailable};
use tokio::time::sleep;

/// Maximum rows deleted in one transaction.
pub(crate) const AT_ONCE: usize = 1000;

/// How often leadership is checked again, and the delay before a failed write is retried.
const ROUND: Duration = Duration::from_secs(1);

/// Deletes the contents of deleted tenants until `stop`.
///
/// # Errors
/// Never: failed writes are retried.
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

/// Deletes one batch of each deleted tenant, or waits until a tenant is deleted.
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
