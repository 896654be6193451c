//! The services that `*` stands for in the entry of a gateway.
//!
//! As in Consul: services in the mesh for ingress gateways, services with instances outside the mesh
//! for terminating gateways, and destinations for both.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_model::{ConfigEntry, ConfigKind, ServiceInstance, ServiceKind};
use legate_store::ReadTxn;

use crate::queries::CONTROL_PLANE;

/// What decides whether `*` includes a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Facts {
    has_destination: bool,
    has_instance: bool,
    /// Whether an instance is not mesh-native.
    is_outside: bool,
    is_in_mesh: bool,
}

impl Facts {
    /// Adds an instance that is registered under the service's name.
    fn add(&mut self, instance: &ServiceInstance) {
        self.has_instance |= instance.kind == ServiceKind::Typical;
        self.is_outside |= !instance.connect.native;
    }

    fn is_behind_every(self, kind: ServiceKind) -> bool {
        let is_reached = match kind {
            ServiceKind::IngressGateway => self.is_in_mesh,
            _ => self.is_outside,
        };
        self.has_destination || (self.has_instance && is_reached)
    }
}

/// Whether `*` in the entry of a gateway of this kind includes a service of the current tenancy.
pub(super) fn is_behind_every(txn: &ReadTxn<'_>, kind: ServiceKind, name: &str) -> bool {
    if has_destination(txn.config_entry(ConfigKind::ServiceDefaults, name)) {
        return true;
    }
    if name == CONTROL_PLANE {
        return false;
    }
    let mut facts = Facts {
        is_in_mesh: kind == ServiceKind::IngressGateway && !txn.connect(name).is_empty(),
        ..Facts::default()
    };
    for instance in txn.service(name) {
        facts.add(&instance.service);
    }
    facts.is_behind_every(kind)
}

fn has_destination(entry: Option<Arc<ConfigEntry>>) -> bool {
    matches!(entry.as_deref(), Some(ConfigEntry::ServiceDefaults(entry)) if entry.destination.is_some())
}

/// The names of the services of the current tenancy that `*` includes, sorted without regard to
/// case.
pub(super) fn names(txn: &ReadTxn<'_>, kind: ServiceKind) -> Arc<Vec<String>> {
    txn.shared("services behind every gateway", kind.as_str(), |txn| {
        let mut all = BTreeMap::<String, (String, Facts)>::new();
        let mut facts_of = |name: &str, change: &dyn Fn(&mut Facts)| {
            let known = all.entry(name.to_ascii_lowercase());
            change(
                &mut known
                    .or_insert_with(|| (name.to_owned(), Facts::default()))
                    .1,
            );
        };
        for (_, instance) in txn.instances_with_nodes() {
            if *instance.service != *CONTROL_PLANE {
                facts_of(&instance.service, &|facts| facts.add(&instance));
            }
            if let Some(name) = instance.destination() {
                facts_of(name, &|facts| facts.is_in_mesh = true);
            }
        }
        for entry in txn.config_entries(ConfigKind::ServiceDefaults) {
            let name = entry.name().to_owned();
            if has_destination(Some(entry)) {
                facts_of(&name, &|facts| facts.has_destination = true);
            }
        }
        let all = all.into_values();
        let behind = all.filter(|(_, facts)| facts.is_behind_every(kind));
        behind.map(|(name, _)| name).collect::<Vec<_>>()
    })
}
