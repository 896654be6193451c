//! The routes that name a gateway as their parent.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_model::{ConfigEntry, ConfigKind, ServiceName, Tenancy};
use legate_store::ReadTxn;

use super::route::{Route, RouteId};

/// A route that names a gateway.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub(super) id: RouteId,
    pub(super) entry: Arc<ConfigEntry>,
}

impl PartialEq for Attached {
    /// All entries but those that were written are the same `Arc`, and need not be compared.
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && (Arc::ptr_eq(&self.entry, &other.entry) || self.entry == other.entry)
    }
}

/// By gateway: the routes that name it, the oldest first.
type ByGateway = BTreeMap<ServiceName, Vec<Attached>>;

/// The routes that name a gateway, the oldest first: of two rules for the same requests, that of
/// the older route applies.
pub(super) fn routes(txn: &ReadTxn<'_>, gateway: &ServiceName) -> Arc<Vec<Attached>> {
    txn.in_tenancy(&gateway.tenancy, |txn| {
        txn.shared("routes of an API gateway", &gateway.name, |txn| {
            by_gateway(txn).get(gateway).cloned().unwrap_or_default()
        })
    })
}

/// One list for all gateways, because routes of every tenancy may name a gateway of any other.
fn by_gateway(txn: &ReadTxn<'_>) -> Arc<ByGateway> {
    txn.in_tenancy(&Tenancy::default(), |txn| {
        txn.shared("routes by API gateway", "", |txn| {
            let mut found = ByGateway::new();
            for kind in [ConfigKind::HttpRoute, ConfigKind::TcpRoute] {
                for entry in txn.config_entries_of_all(kind) {
                    let name = entry.full_name();
                    let parents = Route::of(&entry).map_or(&[][..], |route| route.parents());
                    let mut gateways: Vec<_> = parents
                        .iter()
                        .map(|one| one.resolve(&name.tenancy))
                        .collect();
                    gateways.sort_unstable();
                    gateways.dedup();
                    let http = kind == ConfigKind::HttpRoute;
                    for gateway in gateways {
                        let id = RouteId {
                            http,
                            name: name.clone(),
                        };
                        let entry = Arc::clone(&entry);
                        found
                            .entry(gateway)
                            .or_default()
                            .push(Attached { id, entry });
                    }
                }
            }
            for routes in found.values_mut() {
                routes.sort_unstable_by(|a, b| {
                    let age = |one: &Attached| one.entry.create_index();
                    age(a).cmp(&age(b)).then_with(|| a.id.cmp(&b.id))
                });
            }
            found
        })
    })
}
