//! The routes that name a gateway as their parent.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_model::{ConfigKind, ServiceName, Tenancy};
use legate_store::ReadTxn;

use super::route::{Route, RouteId};

/// By gateway: the routes that name it, the oldest first.
type ByGateway = BTreeMap<ServiceName, Vec<RouteId>>;

/// The routes that name a gateway, the oldest first: of two rules for the same requests, that of
/// the older route applies.
pub(super) fn routes(txn: &ReadTxn<'_>, gateway: &ServiceName) -> Vec<RouteId> {
    by_gateway(txn).get(gateway).cloned().unwrap_or_default()
}

/// One list for all gateways, because routes of every tenancy may name a gateway of any other.
fn by_gateway(txn: &ReadTxn<'_>) -> Arc<ByGateway> {
    txn.in_tenancy(&Tenancy::default(), |txn| {
        txn.shared("routes by API gateway", "", |txn| {
            let mut found: BTreeMap<ServiceName, Vec<(u64, RouteId)>> = BTreeMap::new();
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
                        let known = found.entry(gateway).or_default();
                        known.push((entry.create_index(), id));
                    }
                }
            }
            let sorted = found.into_iter().map(|(gateway, mut routes)| {
                routes.sort_unstable();
                (gateway, routes.into_iter().map(|(_, id)| id).collect())
            });
            sorted.collect::<ByGateway>()
        })
    })
}
