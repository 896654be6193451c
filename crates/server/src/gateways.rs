//! Finds the proxies of a service, and the gateways whose config entries name it. Used by HTTP, DNS and
//! prepared queries.

use legate_model::{
    CheckServiceNode, ConfigEntry, ConfigKind, ServiceInstance, ServiceKind, ServiceName, Tenancy,
    TenancyName, WILDCARD,
};
use legate_store::ReadTxn;

use crate::own_node::OWN_SERVICE;

/// The mesh endpoints of a service: its proxies and mesh-native instances, and the terminating gateways that
/// expose it.
pub(crate) fn connect_to(state: &ReadTxn<'_>, service: &str) -> Vec<CheckServiceNode> {
    let mut found = state.connect(service);
    found.extend(gateways_to(state, ConfigKind::TerminatingGateway, service));
    found
}

/// The instances of the ingress gateways that expose a service.
pub(crate) fn ingress_to(state: &ReadTxn<'_>, service: &str) -> Vec<CheckServiceNode> {
    gateways_to(state, ConfigKind::IngressGateway, service)
}

/// The instances of gateways whose entries of `kind` name a service, in all namespaces of its partition.
fn gateways_to(state: &ReadTxn<'_>, kind: ConfigKind, service: &str) -> Vec<CheckServiceNode> {
    let service = ServiceName::new(state.tenancy(), service);
    let entries = |tenancy: &Tenancy| state.in_tenancy(tenancy, |state| state.config_entries(kind));
    let mut found = Vec::new();
    for entry in state.tenancies_here().iter().flat_map(entries) {
        let gateway = entry.full_name();
        let (kind, links) = links_of(&entry);
        let is_there = |link: &Listed<'_>| {
            let tenancy = gateway.tenancy.resolve(link.partition, link.namespace);
            tenancy == service.tenancy
                || link.namespace.is_every()
                    && tenancy.of_partition() == service.tenancy.of_partition()
        };
        let any = |name: &str| {
            let is_named = |link: &Listed<'_>| link.name.eq_ignore_ascii_case(name);
            links.iter().any(|link| is_named(link) && is_there(link))
        };
        if any(&service.name) || any(WILDCARD) && is_behind_every(state, kind, &service.name) {
            let instances =
                state.in_tenancy(&gateway.tenancy, |state| state.service(&gateway.name));
            found.extend(instances.into_iter().filter(|one| one.service.kind == kind));
        }
    }
    found
}

/// A service named by a gateway's entry.
struct Listed<'a> {
    name: &'a str,
    partition: &'a TenancyName,
    namespace: &'a TenancyName,
}

/// The kind of gateway that an entry configures, and the services that it names.
fn links_of(entry: &ConfigEntry) -> (ServiceKind, Vec<Listed<'_>>) {
    match entry {
        ConfigEntry::IngressGateway(entry) => {
            let services = entry.listeners.iter().flat_map(|one| &one.services);
            let links = services.map(|one| Listed {
                name: &one.name,
                partition: &one.partition,
                namespace: &one.namespace,
            });
            (ServiceKind::IngressGateway, links.collect())
        }
        ConfigEntry::TerminatingGateway(entry) => {
            let links = entry.services.iter().map(|one| Listed {
                name: &one.name,
                partition: &one.partition,
                namespace: &one.namespace,
            });
            (ServiceKind::TerminatingGateway, links.collect())
        }
        _ => (ServiceKind::Typical, Vec::new()),
    }
}

/// Whether `*` in a gateway's entry includes a service. As in Consul: services in the mesh for ingress
/// gateways, services with instances outside the mesh for terminating gateways, and destinations for both.
pub(crate) fn is_behind_every(state: &ReadTxn<'_>, kind: ServiceKind, name: &str) -> bool {
    let defaults = state.config_entry(ConfigKind::ServiceDefaults, name);
    if let Some(ConfigEntry::ServiceDefaults(entry)) = defaults.as_deref()
        && entry.destination.is_some()
    {
        return true;
    }
    let instances = state.service(name);
    let any = |is: fn(&ServiceInstance) -> bool| instances.iter().any(|one| is(&one.service));
    name != OWN_SERVICE
        && any(|one| one.kind == ServiceKind::Typical)
        && match kind {
            ServiceKind::IngressGateway => !state.connect(name).is_empty(),
            _ => any(|one| !one.connect.native),
        }
}
