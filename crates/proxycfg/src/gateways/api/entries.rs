//! Config entries as clients read them: with the status of gateways and routes, and with the
//! `bound-api-gateway` of each gateway, neither of which is stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_model::{
    ApiGateway, BoundApiGateway, BoundListener, ConfigEntry, ConfigKind, ResourceReference,
    ServiceName,
};
use legate_store::ReadTxn;

use super::binding::{Binding, binding};
use super::conditions;
use super::route::{Route, RouteId};

/// A config entry. `datacenter` is that of the catalog.
pub fn config_entry(
    txn: &ReadTxn<'_>,
    kind: ConfigKind,
    name: &str,
    datacenter: &str,
) -> Option<Arc<ConfigEntry>> {
    let stored = match kind {
        ConfigKind::BoundApiGateway => ConfigKind::ApiGateway,
        kind => kind,
    };
    let entry = txn.config_entry(stored, name)?;
    shown(txn, kind, entry, datacenter)
}

/// The config entries of a kind, ordered by name.
pub fn config_entries(
    txn: &ReadTxn<'_>,
    kind: ConfigKind,
    datacenter: &str,
) -> Vec<Arc<ConfigEntry>> {
    let stored = match kind {
        ConfigKind::BoundApiGateway => ConfigKind::ApiGateway,
        kind => kind,
    };
    let entries = txn.config_entries(stored).into_iter();
    let shown = entries.filter_map(|entry| shown(txn, kind, entry, datacenter));
    shown.collect()
}

/// A stored entry as one of this kind.
fn shown(
    txn: &ReadTxn<'_>,
    kind: ConfigKind,
    stored: Arc<ConfigEntry>,
    datacenter: &str,
) -> Option<Arc<ConfigEntry>> {
    let name = stored.full_name();
    let of_route = |http, route| {
        let name = name.clone();
        conditions::of_route(txn, &RouteId { http, name }, &route, datacenter)
    };
    let computed = match &*stored {
        ConfigEntry::ApiGateway(gateway) => {
            let binding = binding(txn, &name, datacenter);
            let binding = binding.as_ref().as_ref()?;
            match kind {
                ConfigKind::BoundApiGateway => {
                    ConfigEntry::BoundApiGateway(bound(txn, &name, gateway, binding))
                }
                _ => {
                    let mut gateway = gateway.clone();
                    gateway.status.conditions = conditions::of_gateway(&name, binding);
                    ConfigEntry::ApiGateway(gateway)
                }
            }
        }
        ConfigEntry::HttpRoute(route) => {
            let conditions = of_route(true, Route::Http(route));
            let mut route = route.clone();
            route.status.conditions = conditions;
            ConfigEntry::HttpRoute(route)
        }
        ConfigEntry::TcpRoute(route) => {
            let conditions = of_route(false, Route::Tcp(route));
            let mut route = route.clone();
            route.status.conditions = conditions;
            ConfigEntry::TcpRoute(route)
        }
        _ => return Some(stored),
    };
    Some(Arc::new(computed))
}

/// What is bound to a gateway, as an entry.
fn bound(
    txn: &ReadTxn<'_>,
    name: &ServiceName,
    gateway: &ApiGateway,
    binding: &Binding,
) -> BoundApiGateway {
    let listeners = binding.listeners.iter().map(|one| BoundListener {
        name: one.name.clone(),
        routes: one.bound().map(RouteId::reference).collect(),
        certificates: one.references.certificates.clone(),
    });
    let mut services: BTreeMap<String, Vec<ResourceReference>> = BTreeMap::new();
    let mut modify_index = gateway.modify_index;
    for attempt in binding.attempts.iter().filter(|one| one.bound) {
        let id = &attempt.route;
        let Some(entry) = id.read(txn) else {
            continue;
        };
        modify_index = modify_index.max(entry.modify_index());
        let route = Route::of(&entry);
        for service in route.iter().flat_map(|route| route.services(&id.name)) {
            let routes = services.entry(service.to_string()).or_default();
            if !routes.contains(&id.reference()) {
                routes.push(id.reference());
            }
        }
    }
    BoundApiGateway {
        name: gateway.name.clone(),
        namespace: name.tenancy.shown_namespace(),
        partition: name.tenancy.shown_partition(),
        listeners: listeners.collect(),
        services,
        create_index: gateway.create_index,
        modify_index,
        ..BoundApiGateway::default()
    }
}
