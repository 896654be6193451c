//! What a partition exports to peers: other clusters that it is peered with.
//!
//! Names are read from `exported-services` and the catalog. No result depends on the instances of a service, only on
//! whether there are some, so that a changed instance computes nothing here for other services. This module sends
//! nothing to peers, and does not decide which of their services may call: that is up to intentions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_model::{
    ConfigEntry, ConfigKind, ExportedServices, Protocol, ServiceConsumer, ServiceKind, ServiceName,
    SpiffeId, Tenancy, TenancyName, TrustDomain, WILDCARD,
};
use legate_store::ReadTxn;

use crate::chain;
use crate::gateways;
use crate::queries::CONTROL_PLANE;
pub use crate::remote::here as mesh_gateways;

/// The kinds of config entries that make a chain of a name without instances.
const CHAIN_KINDS: [ConfigKind; 3] = [
    ConfigKind::ServiceRouter,
    ConfigKind::ServiceSplitter,
    ConfigKind::ServiceResolver,
];

/// What is exported to a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerExports {
    /// The exported names, whether or not there are instances. Never the servers' own service.
    pub services: BTreeSet<ServiceName>,
    /// What the peer reaches in the mesh, by mesh gateways: those of the names that have proxies, a chain or a
    /// terminating gateway, and the names of chains that are exported by `*`, which may be in no catalog.
    pub in_mesh: BTreeMap<ServiceName, Arc<MeshExport>>,
}

/// How a peer reaches a service in the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshExport {
    /// The protocol of its chain. Mesh gateways apply the chain for HTTP, and pass on connections otherwise.
    pub protocol: Protocol,
    /// The targets of its chain in this cluster, sorted by their id.
    pub targets: Vec<MeshTarget>,
}

/// A service to which a chain leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshTarget {
    /// The service.
    pub service: ServiceName,
    /// The datacenter of its instances.
    pub datacenter: String,
}

impl MeshExport {
    /// The identities that may answer a peer that calls `service`, in Consul's order: the service, the mesh gateways
    /// and, unless gateways apply the chain, the other targets of it.
    pub fn spiffe_ids(
        &self,
        service: &ServiceName,
        datacenter: &str,
        trust_domain: &TrustDomain,
    ) -> Vec<SpiffeId> {
        let of_service = |service: &ServiceName, datacenter: &str| SpiffeId::Service {
            trust_domain: trust_domain.clone(),
            tenancy: service.tenancy.clone(),
            datacenter: datacenter.to_owned(),
            service: service.name.as_ref().to_owned(),
        };
        let own = of_service(service, datacenter);
        let gateways = SpiffeId::MeshGateway {
            trust_domain: trust_domain.clone(),
            tenancy: service.tenancy.of_partition(),
            datacenter: datacenter.to_owned(),
        };
        let mut ids = vec![own, gateways];
        if !self.protocol.is_http() {
            for target in &self.targets {
                let id = of_service(&target.service, &target.datacenter);
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
        ids
    }
}

/// What the current partition exports to a peer by its local name. Nothing unless there is a peering of that name that
/// was deleted on neither side. `datacenter` is that of this catalog.
pub fn exports_to_peer(
    txn: &ReadTxn<'_>,
    peer: &str,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<PeerExports> {
    let argument = format!("{peer}/{datacenter}/{trust_domain}");
    in_partition(txn, |txn| {
        txn.shared("exports to a peer", &argument, |txn| {
            let names = names(txn);
            let Some(Names { services, chains }) = names.get(peer) else {
                return PeerExports::default();
            };
            let has_mesh_form =
                |service: &&ServiceName| chains.contains(*service) || is_in_mesh(txn, service);
            let in_mesh = services.iter().filter(has_mesh_form).chain(chains);
            let in_mesh = in_mesh.filter_map(|service| {
                let export = mesh_export(txn, service, datacenter, trust_domain);
                Some((service.clone(), (*export).clone()?))
            });
            PeerExports {
                in_mesh: in_mesh.collect(),
                services: services.clone(),
            }
        })
    })
}

/// The peers of the current partition that something may be exported to: all whose peering was deleted on neither side.
pub fn peers(txn: &ReadTxn<'_>) -> Arc<BTreeSet<Arc<str>>> {
    in_partition(txn, |txn| {
        txn.shared("active peers", "", |txn| {
            let peerings = txn.peerings().into_iter();
            let active = peerings.filter(|peering| peering.is_active());
            active.map(|peering| peering.name.as_str().into()).collect()
        })
    })
}

/// The peers that may call a service by mesh gateways: it is exported to them, or is a target of the chain of a service
/// that is. All lines of `exported-services` count.
pub fn peers_of(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<BTreeSet<Arc<str>>> {
    callers(
        txn,
        service,
        (datacenter, trust_domain),
        "peers of a service",
        |callers| callers.all.clone(),
    )
}

/// Those of [`peers_of`] whose proxies connect to the service end to end, because mesh gateways only pass on the
/// connections of its chain. Otherwise it sees mesh gateways alone.
pub fn peers_connecting_to(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<BTreeSet<Arc<str>>> {
    let name = "peers connecting to a service";
    callers(txn, service, (datacenter, trust_domain), name, |callers| {
        callers.connecting.clone()
    })
}

/// The peers that call a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Callers {
    all: BTreeSet<Arc<str>>,
    connecting: BTreeSet<Arc<str>>,
}

fn callers(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    (datacenter, trust_domain): (&str, &TrustDomain),
    name: &'static str,
    select: fn(&Callers) -> BTreeSet<Arc<str>>,
) -> Arc<BTreeSet<Arc<str>>> {
    let argument = format!("{}/{datacenter}/{trust_domain}", service.name);
    txn.in_tenancy(&service.tenancy, |txn| {
        // For each service, so that only its own proxies are woken.
        txn.shared(name, &argument, |txn| {
            let all = callers_of_all(txn, datacenter, trust_domain);
            all.get(&folded(service)).map(select).unwrap_or_default()
        })
    })
}

/// By the folded names of services.
fn callers_of_all(
    txn: &ReadTxn<'_>,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<BTreeMap<ServiceName, Callers>> {
    let argument = format!("{datacenter}/{trust_domain}");
    in_partition(txn, |txn| {
        txn.shared("peers of all services", &argument, |txn| {
            let mut all = BTreeMap::<_, Callers>::new();
            for peer in &*peers(txn) {
                let exports = exports_to_peer(txn, peer, datacenter, trust_domain);
                for (service, export) in &exports.in_mesh {
                    let targets = export.targets.iter().map(|target| &target.service);
                    for called in [service].into_iter().chain(targets) {
                        let callers = all.entry(folded(called)).or_default();
                        callers.all.insert(Arc::clone(peer));
                        if !export.protocol.is_http() {
                            callers.connecting.insert(Arc::clone(peer));
                        }
                    }
                }
            }
            all
        })
    })
}

/// Looks in the partition itself, whatever the namespace or the peer of the reader's tenancy are.
fn in_partition<'s, T>(txn: &ReadTxn<'s>, look: impl FnOnce(&ReadTxn<'s>) -> T) -> T {
    txn.in_tenancy(&txn.tenancy().of_peer("").of_partition(), look)
}

/// Names are case-insensitive.
fn folded(service: &ServiceName) -> ServiceName {
    ServiceName::new(&service.tenancy, &service.name.to_lowercase())
}

/// The names that are exported to one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names {
    services: BTreeSet<ServiceName>,
    /// The other names of chains that `*` includes.
    chains: BTreeSet<ServiceName>,
}

/// The names that the current partition exports, by peer.
fn names(txn: &ReadTxn<'_>) -> Arc<BTreeMap<Arc<str>, Names>> {
    txn.shared("names exported to peers", "", |txn| {
        let own = txn.tenancy();
        let entry = txn.config_entry(ConfigKind::ExportedServices, &own.partition);
        let Some(ConfigEntry::ExportedServices(entry)) = entry.as_deref() else {
            return BTreeMap::new();
        };
        let peers = peers(txn);
        let all = peers.iter().map(|peer| {
            let names = names_for(txn, entry, peer);
            (Arc::clone(peer), names)
        });
        all.collect()
    })
}

fn names_for(txn: &ReadTxn<'_>, entry: &ExportedServices, peer: &str) -> Names {
    let (mut services, mut chains) = (Spelled::new(), Spelled::new());
    for line in &entry.services {
        if !line.consumers.iter().any(|one| is_for(txn, one, peer)) {
            continue;
        }
        let namespaces = match line.namespace.is_every() {
            true => txn.tenancies_here(),
            false => vec![
                txn.tenancy()
                    .resolve(&TenancyName::default(), &line.namespace),
            ],
        };
        for tenancy in &namespaces {
            if line.name != WILDCARD {
                add(&mut services, tenancy, &line.name);
                continue;
            }
            for name in &*txn.in_tenancy(tenancy, applications) {
                add(&mut services, tenancy, name);
            }
            for name in &*txn.in_tenancy(tenancy, chain_names) {
                add(&mut chains, tenancy, name);
            }
        }
    }
    chains.retain(|name, _| !services.contains_key(name));
    Names {
        services: services.into_values().collect(),
        chains: chains.into_values().collect(),
    }
}

/// Services by their folded names, each in the first spelling: two spellings would be two services for the peer.
type Spelled = BTreeMap<ServiceName, ServiceName>;

fn add(to: &mut Spelled, tenancy: &Tenancy, name: &str) {
    if !name.eq_ignore_ascii_case(CONTROL_PLANE) {
        let service = ServiceName::new(tenancy, name);
        to.entry(folded(&service)).or_insert(service);
    }
}

/// Whether a consumer is the peer, or a sameness group with it.
fn is_for(txn: &ReadTxn<'_>, consumer: &ServiceConsumer, peer: &str) -> bool {
    if consumer.peer == peer {
        return true;
    }
    if consumer.sameness_group.is_empty() {
        return false;
    }
    let entry = txn.config_entry(ConfigKind::SamenessGroup, &consumer.sameness_group);
    match entry.as_deref() {
        Some(ConfigEntry::SamenessGroup(group)) => {
            group.members.iter().any(|member| member.peer == peer)
        }
        _ => false,
    }
}

/// The names of the services of the current tenancy with instances that are neither proxies nor gateways.
fn applications(txn: &ReadTxn<'_>) -> Arc<BTreeSet<String>> {
    txn.shared("names of applications", "", |txn| {
        txn.services_of_kind(ServiceKind::Typical)
    })
}

/// The names in the current tenancy with a router, a splitter or a resolver.
fn chain_names(txn: &ReadTxn<'_>) -> Arc<BTreeSet<String>> {
    txn.shared("names of chains", "", |txn| {
        let entries = CHAIN_KINDS
            .into_iter()
            .flat_map(|kind| txn.config_entries(kind));
        entries.map(|entry| entry.name().to_owned()).collect()
    })
}

/// Whether callers reach a service in the mesh, or its chain leads elsewhere.
fn is_in_mesh(txn: &ReadTxn<'_>, service: &ServiceName) -> bool {
    txn.in_tenancy(&service.tenancy, |txn| {
        // A shared query, because instances change more often than the answer.
        *txn.shared("is in the mesh", &service.name, |txn| {
            let name = &*service.name;
            let has_chain = |kind| txn.config_entry(kind, name).is_some();
            CHAIN_KINDS.into_iter().any(has_chain)
                || !txn.connect(name).is_empty()
                || gateways::is_linked(txn, name)
        })
    })
}

/// `None` for a chain that has an error or leads to the servers.
fn mesh_export(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<Option<Arc<MeshExport>>> {
    let argument = format!("{}/{datacenter}/{trust_domain}", service.name);
    txn.in_tenancy(&service.tenancy, |txn| {
        txn.shared("export in the mesh", &argument, |txn| {
            let chain = chain::compiled(txn, service, datacenter, trust_domain);
            let chain = chain.as_ref().as_ref().ok()?;
            let is_server = |name: &str| name.eq_ignore_ascii_case(CONTROL_PLANE);
            // By id.
            let targets = chain.targets.values();
            if targets.clone().any(|target| is_server(&target.service)) {
                return None;
            }
            let here = targets.filter(|target| target.peer.is_empty());
            Some(Arc::new(MeshExport {
                protocol: chain.protocol,
                targets: here
                    .map(|target| MeshTarget {
                        service: target.service_name(),
                        datacenter: target.datacenter.clone(),
                    })
                    .collect(),
            }))
        })
    })
}

#[cfg(test)]
mod tests;
