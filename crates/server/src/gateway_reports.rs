//! Notes in the store what the proxies of gateways of Kubernetes clusters have acknowledged and rejected, so
//! that every server can tell. Each server does it for the proxies that are connected to it.
//!
//! Nothing is queued: what is not in the store is found by a comparison, after each change of either side. So
//! reports are combined while a write is under way, and repeated when one has failed.

use std::time::Duration;

use legate_runtime::{Backoff, BackoffPolicy, BoxError, CancellationToken};
use legate_store::{GatewayReport, Store, Unavailable, Watch};
use legate_xds::Proxies;
use tokio::time::sleep;

/// The pause after a write: five a second.
const PAUSE: Duration = Duration::from_millis(200);

/// The delays before a failed write is retried.
const RETRY: BackoffPolicy = BackoffPolicy {
    cap: Duration::from_secs(5),
    ..BackoffPolicy::SERVER
};

/// Notes reports until `stop`.
///
/// # Errors
/// Never: failed writes are retried.
pub(crate) async fn note(
    store: Store,
    proxies: Proxies,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    let noting = async {
        let mut backoff = Backoff::new(RETRY);
        loop {
            let (reports, mut watch) = unnoted(&store, &proxies);
            if reports.is_empty() {
                tokio::select! {
                    () = proxies.outcome_changed() => {}
                    () = watch.changed() => {}
                }
                continue;
            }
            let count = reports.len();
            let written = store.write(move |txn| {
                txn.note_gateway_reports(&reports);
                Ok::<_, Unavailable>(())
            });
            let pause = match written.await {
                Ok(_) => {
                    backoff.reset();
                    PAUSE
                }
                Err(error) => {
                    tracing::warn!(count, %error, "what proxies of gateways have acknowledged is not stored; retrying");
                    backoff.next(rand::random())
                }
            };
            sleep(pause).await;
        }
    };
    let _: Option<()> = stop.run_until_cancelled(noting).await;
    Ok(())
}

/// The reports that say something new, and a watch of what they were compared with.
fn unnoted(store: &Store, proxies: &Proxies) -> (Vec<GatewayReport>, Watch) {
    let state = store.state();
    let txn = state.read();
    let reports = proxies.outcomes().into_iter();
    let reports = reports.map(|(proxy, gateway, outcome)| GatewayReport {
        tenancy: proxy.tenancy,
        gateway,
        node: proxy.node.as_ref().to_owned(),
        proxy: proxy.service_id.as_ref().to_owned(),
        acknowledged: outcome.acknowledged,
        rejected: outcome.rejected,
    });
    let reports = reports.filter(|report| !txn.is_noted(report)).collect();
    (reports, store.watch(&txn.into_reads()))
}
