//! The services that a gateway's config entry names, by name or by `*`.

use std::collections::BTreeSet;
use std::sync::Arc;

use legate_model::{
    ConfigEntry, ConfigKind, IngressGateway, IngressListener, IngressService, LinkedService,
    Protocol, ServiceKind, ServiceName, Tenancy, TerminatingGateway, WILDCARD,
};
use legate_store::ReadTxn;

use super::every;
use crate::protocol;

/// The kinds of config entries that name services of a gateway.
const LINKING: [ConfigKind; 2] = [ConfigKind::TerminatingGateway, ConfigKind::IngressGateway];

/// A service of a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayService {
    /// The gateway.
    pub gateway: ServiceName,
    /// The service. It need not exist.
    pub service: ServiceName,
    /// What the name stands for in the catalog.
    pub origin: Origin,
    /// Whether the entry includes the service by `*` rather than by name.
    pub from_wildcard: bool,
    /// The settings in the gateway's entry.
    pub link: Link,
    /// Index of the write that created the gateway's entry.
    pub create_index: u64,
    /// Index of the last write of the gateway's entry.
    pub modify_index: u64,
}

/// What the name of a gateway's service stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nothing yet.
    #[default]
    Unknown,
    /// A service with instances in the catalog.
    Service,
    /// A service outside the mesh, described by its `service-defaults`.
    Destination,
}

/// The settings of a service in the entry of its gateway.
#[derive(Clone, Debug, PartialEq)]
pub enum Link {
    /// Of a terminating gateway: how it connects to the service.
    Terminating(Arc<LinkedService>),
    /// Of an ingress gateway: where it exposes the service.
    Ingress {
        /// The port of the listener.
        port: u16,
        /// The protocol of the listener.
        protocol: Protocol,
        /// Host names of the service's requests.
        hosts: Vec<String>,
    },
}

impl Link {
    /// The kind of the gateway.
    pub fn gateway_kind(&self) -> ServiceKind {
        match self {
            Self::Terminating(_) => ServiceKind::TerminatingGateway,
            Self::Ingress { .. } => ServiceKind::IngressGateway,
        }
    }

    /// The port at which the service is exposed; 0 for a terminating gateway.
    pub fn port(&self) -> u16 {
        match self {
            Self::Terminating(_) => 0,
            Self::Ingress { port, .. } => *port,
        }
    }
}

/// The services of a terminating or ingress gateway in the current tenancy, ordered by name and
/// port. As in Consul, an API gateway has none here: routes name its services.
pub fn services(txn: &ReadTxn<'_>, gateway: &str) -> Arc<Vec<GatewayService>> {
    txn.shared("services of a gateway", gateway, |txn| {
        // Gateways of the two kinds cannot have the same name.
        let mut entries = LINKING.iter();
        let entry = entries.find_map(|kind| txn.config_entry(*kind, gateway));
        let mut found = entry.map_or_else(Vec::new, |entry| named_by(txn, &entry));
        found.sort_by(|a, b| place(a).cmp(&place(b)));
        found
    })
}

fn place(one: &GatewayService) -> (&ServiceName, u16) {
    (&one.service, one.link.port())
}

/// The services of all gateways in the current tenancy.
pub fn in_namespace(txn: &ReadTxn<'_>) -> Vec<GatewayService> {
    let entries = LINKING.iter().flat_map(|kind| txn.config_entries(*kind));
    entries.flat_map(|entry| named_by(txn, &entry)).collect()
}

/// A name in the entry of a gateway, with its settings.
pub(super) struct Listed {
    /// The name of a service, or `*`.
    pub(super) name: String,
    /// Where the services are.
    pub(super) tenancy: Tenancy,
    /// Whether they are in all namespaces of that partition.
    pub(super) every_namespace: bool,
    link: Link,
}

/// The names in the entry of a gateway, in groups: within a group, a name takes precedence over `*`.
pub(super) fn listed(entry: &ConfigEntry) -> Vec<Vec<Listed>> {
    match entry {
        ConfigEntry::TerminatingGateway(entry) => vec![of_terminating(entry)],
        ConfigEntry::IngressGateway(entry) => of_ingress(entry),
        _ => Vec::new(),
    }
}

fn of_terminating(entry: &TerminatingGateway) -> Vec<Listed> {
    let own = entry.tenancy();
    let of = |linked: &LinkedService| Listed {
        name: linked.name.clone(),
        tenancy: own.resolve(&linked.partition, &linked.namespace),
        every_namespace: linked.namespace.is_every(),
        link: Link::Terminating(Arc::new(linked.clone())),
    };
    entry.services.iter().map(of).collect()
}

fn of_ingress(entry: &IngressGateway) -> Vec<Vec<Listed>> {
    let own = Tenancy::new(&entry.partition, &entry.namespace);
    let of_listener = |listener: &IngressListener| {
        let of = |service: &IngressService| Listed {
            name: service.name.clone(),
            tenancy: own.resolve(&service.partition, &service.namespace),
            every_namespace: service.namespace.is_every(),
            link: Link::Ingress {
                port: listener.port,
                protocol: listener.protocol().unwrap_or_default(),
                hosts: service.hosts.clone(),
            },
        };
        listener.services.iter().map(of).collect()
    };
    entry.listeners.iter().map(of_listener).collect()
}

fn named_by(txn: &ReadTxn<'_>, entry: &ConfigEntry) -> Vec<GatewayService> {
    let gateway = entry.full_name();
    let mut found = Vec::new();
    for group in listed(entry) {
        let is_every = |one: &&Listed| one.name == WILDCARD;
        let folded =
            |name: &ServiceName| ServiceName::new(&name.tenancy, &name.name.to_lowercase());
        let mut named = BTreeSet::new();
        for one in group.iter().filter(|one| !is_every(one)) {
            let service = ServiceName::new(&one.tenancy, &one.name);
            named.insert(folded(&service));
            found.push(behind(txn, entry, &gateway, (service, false, &one.link)));
        }
        for one in group.iter().filter(is_every) {
            let services = every_of(txn, one).into_iter();
            let others = services.filter(|service| !named.contains(&folded(service)));
            found.extend(
                others.map(|service| behind(txn, entry, &gateway, (service, true, &one.link))),
            );
        }
    }
    found
}

fn behind(
    txn: &ReadTxn<'_>,
    entry: &ConfigEntry,
    gateway: &ServiceName,
    (service, from_wildcard, link): (ServiceName, bool, &Link),
) -> GatewayService {
    GatewayService {
        gateway: gateway.clone(),
        origin: txn.in_tenancy(&service.tenancy, |txn| origin(txn, &service.name)),
        service,
        from_wildcard,
        link: link.clone(),
        create_index: entry.create_index(),
        modify_index: entry.modify_index(),
    }
}

/// The services that a `*` stands for. Of the services in the mesh, those with the protocol of the
/// ingress gateway's listener.
fn every_of(txn: &ReadTxn<'_>, one: &Listed) -> Vec<ServiceName> {
    let tenancies = match one.every_namespace {
        true => txn.in_tenancy(&one.tenancy.of_partition(), ReadTxn::tenancies_here),
        false => vec![one.tenancy.clone()],
    };
    let fits = |txn: &ReadTxn<'_>, name: &str| match one.link {
        Link::Terminating(_) => true,
        Link::Ingress {
            protocol: wanted, ..
        } => protocol::of(txn, name) == wanted,
    };
    let of = |tenancy: &Tenancy| {
        txn.in_tenancy(tenancy, |txn| {
            let names = every::names(txn, one.link.gateway_kind());
            let names = names.iter().filter(|name| fits(txn, name));
            names
                .map(|name| ServiceName::new(tenancy, name))
                .collect::<Vec<_>>()
        })
    };
    tenancies.iter().flat_map(of).collect()
}

/// What a name stands for in the current tenancy. A shared query, because instances change more
/// often than the answer.
fn origin(txn: &ReadTxn<'_>, name: &str) -> Origin {
    *txn.shared("origin of a gateway's service", name, |txn| {
        if !txn.service(name).is_empty() {
            return Origin::Service;
        }
        match txn
            .config_entry(ConfigKind::ServiceDefaults, name)
            .as_deref()
        {
            Some(ConfigEntry::ServiceDefaults(entry)) if entry.destination.is_some() => {
                Origin::Destination
            }
            _ => Origin::Unknown,
        }
    })
}
