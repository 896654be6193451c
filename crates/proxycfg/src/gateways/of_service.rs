//! From a service to the instances of the gateways that it belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use legate_model::{CheckServiceNode, ConfigKind, ServiceKind, ServiceName, Tenancy, WILDCARD};
use legate_store::ReadTxn;

use super::every;
use super::services::listed;
use crate::chain::Instances;

/// One `Arc` for all services, because snapshots of one store are compared by address.
static NONE: LazyLock<Arc<Instances>> = LazyLock::new(Arc::default);

/// The mesh endpoints of a service in the current tenancy: its proxies and mesh-native instances,
/// and the terminating gateways that represent it. As in Consul, a service may have both.
pub fn connect_to(txn: &ReadTxn<'_>, service: &str) -> Vec<CheckServiceNode> {
    let mut found = txn.connect(service);
    found.extend(terminating(txn, service).iter().cloned());
    found
}

/// The instances of the ingress gateways that expose a service of the current tenancy.
pub fn ingress_to(txn: &ReadTxn<'_>, service: &str) -> Vec<CheckServiceNode> {
    instances(txn, ConfigKind::IngressGateway, service)
}

/// The instances of the terminating gateways that represent a service of the current tenancy,
/// ordered by gateway.
pub(crate) fn terminating(txn: &ReadTxn<'_>, service: &str) -> Arc<Instances> {
    // Most meshes have none, and this runs for every service.
    if by_service(txn, ConfigKind::TerminatingGateway).is_empty() {
        return Arc::clone(&NONE);
    }
    txn.shared("terminating gateways of a service", service, |txn| {
        instances(txn, ConfigKind::TerminatingGateway, service).into()
    })
}

/// Whether the entry of a terminating gateway includes a service of the current tenancy.
pub(crate) fn is_linked(txn: &ReadTxn<'_>, service: &str) -> bool {
    let gateways = by_service(txn, ConfigKind::TerminatingGateway);
    let own = gateways.of(txn, ServiceKind::TerminatingGateway, service);
    !own.is_empty()
}

fn instances(txn: &ReadTxn<'_>, kind: ConfigKind, service: &str) -> Vec<CheckServiceNode> {
    let gateways = by_service(txn, kind);
    let kind = match kind {
        ConfigKind::IngressGateway => ServiceKind::IngressGateway,
        _ => ServiceKind::TerminatingGateway,
    };
    let of = |gateway: &ServiceName| {
        let mut found = txn.in_tenancy(&gateway.tenancy, |txn| txn.service(&gateway.name));
        found.retain(|one| one.service.kind == kind);
        found
    };
    gateways
        .of(txn, kind, service)
        .into_iter()
        .flat_map(of)
        .collect()
}

/// The gateways of one kind in a partition, by the names in their entries.
#[derive(Debug, Default, PartialEq, Eq)]
struct ByService {
    /// By the lower-case names of services.
    named: BTreeMap<ServiceName, BTreeSet<ServiceName>>,
    /// Of entries with `*`: by the namespace whose services it includes, or else all of them.
    every: BTreeMap<Option<Tenancy>, BTreeSet<ServiceName>>,
}

impl ByService {
    fn is_empty(&self) -> bool {
        self.named.is_empty() && self.every.is_empty()
    }

    /// The gateways of a service of the current tenancy.
    fn of<'a>(
        &'a self,
        txn: &ReadTxn<'_>,
        kind: ServiceKind,
        service: &str,
    ) -> BTreeSet<&'a ServiceName> {
        let own = txn.tenancy();
        let name = ServiceName::new(own, &service.to_lowercase());
        let named = self.named.get(&name).into_iter().flatten();
        let mut found: BTreeSet<_> = named.collect();
        let places = [Some(own.clone()), None];
        let mut every = places
            .iter()
            .filter_map(|place| self.every.get(place))
            .peekable();
        if every.peek().is_some() && every::is_behind_every(txn, kind, service) {
            found.extend(every.flatten());
        }
        found
    }
}

/// The gateways in all namespaces of the current partition. Names of every namespace are in the
/// same map as names of one, because few entries have any.
fn by_service(txn: &ReadTxn<'_>, kind: ConfigKind) -> Arc<ByService> {
    txn.in_tenancy(&txn.tenancy().of_partition(), |txn| {
        txn.shared("gateways by service", kind.as_str(), |txn| {
            let mut gateways = ByService::default();
            for entry in txn.config_entries_here(kind) {
                for one in listed(&entry).into_iter().flatten() {
                    let tenancies = match (one.every_namespace, one.name == WILDCARD) {
                        (true, true) => vec![None],
                        (true, false) => txn.tenancies_here().into_iter().map(Some).collect(),
                        (false, _) => vec![Some(one.tenancy)],
                    };
                    for tenancy in tenancies {
                        let places = match (tenancy, &*one.name) {
                            (tenancy, WILDCARD) => gateways.every.entry(tenancy).or_default(),
                            (Some(tenancy), name) => {
                                let name = ServiceName::new(&tenancy, &name.to_lowercase());
                                gateways.named.entry(name).or_default()
                            }
                            (None, _) => continue,
                        };
                        places.insert(entry.full_name());
                    }
                }
            }
            gateways
        })
    })
}
