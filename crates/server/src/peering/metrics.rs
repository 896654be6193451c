//! Metrics of peerings, computed from the store when they are read: every server shows all of them.

use std::time::SystemTime;

use legate_model::{PeeringState, PeeringStream};
use legate_runtime::Clock;
use legate_runtime::metrics::proto::MetricFamily;
use legate_runtime::metrics::{Collector, Desc, Error, IntGaugeVec, Opts, Registry};
use legate_store::Store;

use super::removal::home;

/// The labels, as in Consul.
const LABELS: [&str; 3] = ["peer_name", "peer_id", "partition"];

/// Adds the metrics to a registry.
///
/// # Errors
/// If it has them already.
pub(crate) fn register(registry: &Registry, store: &Store, clock: &Clock) -> Result<(), Error> {
    registry.register(Box::new(Peers {
        store: store.clone(),
        clock: clock.clone(),
        unset: Gauges::new()?,
    }))
}

struct Peers {
    store: Store,
    clock: Clock,
    /// For their descriptions.
    unset: Gauges,
}

struct Gauges {
    healthy: IntGaugeVec,
    imported: IntGaugeVec,
    exported: IntGaugeVec,
}

impl Gauges {
    fn new() -> Result<Self, Error> {
        let gauges = |name: &str, help: &str| {
            IntGaugeVec::new(Opts::new(format!("legate_peering_{name}"), help), &LABELS)
        };
        Ok(Self {
            healthy: gauges("healthy", "Whether the stream of a peering is open.")?,
            imported: gauges(
                "imported_services",
                "Services that a peer exports to this cluster.",
            )?,
            exported: gauges(
                "exported_services",
                "Services that this cluster exports to a peer.",
            )?,
        })
    }

    fn all(&self) -> [&IntGaugeVec; 3] {
        [&self.healthy, &self.imported, &self.exported]
    }

    fn set(&self, store: &Store, now: SystemTime) {
        let state = store.state();
        let txn = state.read();
        for peering in txn.peerings_of_all() {
            let home = home(&peering);
            let stream = txn.in_tenancy(&home, |txn| txn.peering_stream(&peering.name));
            let (shown, _) = peering.shown_state(stream.as_deref(), now);
            let count = |names: fn(&PeeringStream) -> &Vec<String>| {
                let count = stream.as_ref().map_or(0, |stream| names(stream).len());
                i64::try_from(count).unwrap_or(i64::MAX)
            };
            let labels = [&*peering.name, &*peering.id, &*home.partition];
            let set = |gauge: &IntGaugeVec, value| gauge.with_label_values(&labels).set(value);
            set(&self.healthy, i64::from(shown == PeeringState::Active));
            set(&self.imported, count(|stream| &stream.imported));
            set(&self.exported, count(|stream| &stream.exported));
        }
    }
}

impl Collector for Peers {
    fn desc(&self) -> Vec<&Desc> {
        let all = self.unset.all().into_iter();
        all.flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // New ones, so that peerings that are gone are not shown.
        let Ok(gauges) = Gauges::new() else {
            return Vec::new();
        };
        gauges.set(&self.store, self.clock.now());
        let all = gauges.all().into_iter();
        all.flat_map(Collector::collect).collect()
    }
}
