//! Chains of services that are exported to peers. A peer knows the services to which such a chain leads, and reaches them
//! by the mesh gateways of one partition and datacenter. A write after which one would lead elsewhere is rejected. Consul's
//! rules and texts.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use legate_discovery_chain::{Chain, Entries, NodeKind, Overrides, Request, compile};
use legate_model::{
    ConfigEntry, ConfigKind, ExportedService, ProxyDefaults, ServiceDefaults, ServiceName,
    ServiceResolver, ServiceRouter, ServiceSplitter, Tenancy, TenancyName, WILDCARD,
};
use legate_proxycfg::StoredEntries;
use legate_store::ReadTxn;

use super::graph;
use crate::api_error::ApiError;

/// The kinds whose entries lead a chain somewhere.
const LEADING: [ConfigKind; 3] = [
    ConfigKind::ServiceRouter,
    ConfigKind::ServiceSplitter,
    ConfigKind::ServiceResolver,
];

/// The services to which the chains of exported services without requests led before a write.
pub(super) type Before = BTreeMap<ServiceName, BTreeSet<ServiceName>>;

/// The targets before a write of this entry.
pub(super) fn before(
    state: &ReadTxn<'_>,
    (kind, name): (ConfigKind, &str),
    datacenter: &str,
) -> Before {
    if kind != ConfigKind::ProxyDefaults && !graph::is_in_chains(kind) {
        return Before::new();
    }
    if exported_lines(state).is_empty() {
        return Before::new();
    }
    let name = ServiceName::new(state.tenancy(), name);
    // The write may also export it.
    let services = graph::services(state, kind, &name).into_iter();
    let targets = services.filter_map(|service| {
        let (chain, _) = read(state, &service, datacenter)?;
        let targets = targets(&chain);
        Some((service, targets.into_values().collect()))
    });
    targets.collect()
}

/// Rejects a write after which the chain of an exported service leads elsewhere. `state` includes the write.
pub(super) fn refuse_unsafe(
    state: &ReadTxn<'_>,
    before: &Before,
    (kind, name): (ConfigKind, &str),
    datacenter: &str,
) -> Result<(), ApiError> {
    let is_in_chain = kind == ConfigKind::ProxyDefaults || graph::is_in_chains(kind);
    if !is_in_chain && kind != ConfigKind::ExportedServices {
        return Ok(());
    }
    let exported = exported(state);
    let affected = match is_in_chain && !exported.is_empty() {
        true => {
            let name = ServiceName::new(state.tenancy(), name);
            let mut affected = graph::services(state, kind, &name);
            affected.retain(|service| exported.contains(service));
            affected
        }
        false if is_in_chain => return Ok(()),
        false => exported,
    };
    for service in &affected {
        let Some((chain, entries)) = read(state, service, datacenter) else {
            continue;
        };
        for entry in &entries {
            if let Some(what) = unsafe_part(entry, service) {
                let text = format!(
                    "peer exported service {:?} contains {what}",
                    service.to_string()
                );
                return Err(ApiError::bad_request(text));
            }
        }
        if is_in_chain && !chain.protocol.is_http() {
            refuse_new_targets(before, service, &chain)?;
        }
    }
    Ok(())
}

/// A peer that calls it end to end knows only the services to which it led before.
fn refuse_new_targets(
    before: &Before,
    service: &ServiceName,
    chain: &Chain,
) -> Result<(), ApiError> {
    let own = || BTreeSet::from([service.clone()]);
    let known = before.get(service).cloned().unwrap_or_else(own);
    let targets = targets(chain);
    match targets.iter().find(|(_, target)| !known.contains(*target)) {
        None => Ok(()),
        Some((id, _)) => Err(ApiError::bad_request(format!(
            "peer exported service {:?} uses protocol=\"{}\" and cannot introduce new discovery chain targets \
             like {id:?}",
            service.to_string(),
            chain.protocol,
        ))),
    }
}

/// The services to which a chain leads without failover, by the id of the target.
fn targets(chain: &Chain) -> BTreeMap<String, ServiceName> {
    let resolvers = chain.nodes.values().filter_map(|node| match &node.kind {
        NodeKind::Resolver(resolver) => Some(&resolver.target),
        NodeKind::Router(_) | NodeKind::Splitter(_) => None,
    });
    let targets = resolvers.filter_map(|id| {
        let target = chain.targets.get(id)?;
        Some((id.clone(), target.service_name()))
    });
    targets.collect()
}

/// What of an entry leads out of the partition, the datacenter or the cluster.
fn unsafe_part(entry: &ConfigEntry, service: &ServiceName) -> Option<&'static str> {
    let own = &service.tenancy.partition;
    let is_elsewhere = |partition: &TenancyName| {
        !partition.is_empty() && !partition.as_str().eq_ignore_ascii_case(own)
    };
    match entry {
        ConfigEntry::ServiceRouter(entry) => {
            let destinations = entry
                .routes
                .iter()
                .filter_map(|route| route.destination.as_ref());
            let mut elsewhere = destinations.filter(|one| is_elsewhere(&one.partition));
            elsewhere
                .next()
                .map(|_| "cross-partition route destination")
        }
        ConfigEntry::ServiceSplitter(entry) => {
            let mut elsewhere = entry
                .splits
                .iter()
                .filter(|split| is_elsewhere(&split.partition));
            elsewhere
                .next()
                .map(|_| "cross-partition split destination")
        }
        ConfigEntry::ServiceResolver(entry) => {
            let redirect = entry.redirect.as_ref();
            let redirect =
                redirect.and_then(|redirect| match (&*redirect.datacenter, &*redirect.peer) {
                    ("", "") if is_elsewhere(&redirect.partition) => {
                        Some("cross-partition resolver redirect")
                    }
                    ("", "") => None,
                    ("", _) => Some("cross-peer resolver redirect"),
                    _ => Some("cross-datacenter resolver redirect"),
                });
            let mut failover = entry.failover.values();
            redirect.or_else(|| {
                let is_far = failover.any(|one| {
                    !one.datacenters.is_empty()
                        || one
                            .targets
                            .iter()
                            .any(|target| !target.datacenter.is_empty())
                });
                is_far.then_some("cross-datacenter failover")
            })
        }
        _ => None,
    }
}

/// The lines of the partition's `exported-services` with a peer.
fn exported_lines(state: &ReadTxn<'_>) -> Vec<ExportedService> {
    let home = state.tenancy().of_partition();
    state.in_tenancy(&home, |state| {
        let entry = state.config_entry(ConfigKind::ExportedServices, &home.partition);
        let Some(ConfigEntry::ExportedServices(entry)) = entry.as_deref() else {
            return Vec::new();
        };
        let has_peer = |group: &str| {
            let entry = state.config_entry(ConfigKind::SamenessGroup, group);
            match entry.as_deref() {
                Some(ConfigEntry::SamenessGroup(group)) => {
                    group.members.iter().any(|member| !member.peer.is_empty())
                }
                _ => false,
            }
        };
        let mut lines = entry.services.clone();
        lines.retain(|line| {
            let mut consumers = line.consumers.iter();
            consumers.any(|one| !one.peer.is_empty() || has_peer(&one.sameness_group))
        });
        lines
    })
}

/// The services that are exported to peers: those with a name in `exported-services`, and for `*` those with entries that
/// lead somewhere. Whether there are such peers does not matter.
fn exported(state: &ReadTxn<'_>) -> BTreeSet<ServiceName> {
    let home = state.tenancy().of_partition();
    let mut found = BTreeSet::new();
    for line in exported_lines(state) {
        let namespaces = match line.namespace.is_every() {
            true => state.tenancies_here(),
            false => vec![home.resolve(&TenancyName::default(), &line.namespace)],
        };
        for tenancy in namespaces {
            if line.name != WILDCARD {
                found.insert(ServiceName::new(&tenancy, &line.name));
                continue;
            }
            let entries = state.in_tenancy(&tenancy, |state| {
                let kinds = LEADING.into_iter();
                kinds
                    .flat_map(|kind| state.config_entries(kind))
                    .collect::<Vec<_>>()
            });
            found.extend(entries.iter().map(|entry| entry.full_name()));
        }
    }
    found
}

/// The chain of a service, with the routers, splitters and resolvers that it was compiled from. `None` if it cannot be
/// compiled.
fn read(
    state: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
) -> Option<(Chain, Vec<ConfigEntry>)> {
    let entries = Recorded {
        stored: StoredEntries(state),
        seen: RefCell::default(),
    };
    let trust_domain = graph::any_trust_domain().ok()?;
    let request = Request {
        service,
        datacenter,
        trust_domain: &trust_domain,
        overrides: Overrides::default(),
    };
    let chain = compile(&request, &entries).ok()?;
    Some((chain, entries.seen.into_inner()))
}

/// Stored entries, and those of them that were read.
struct Recorded<'t, 's> {
    stored: StoredEntries<'t, 's>,
    seen: RefCell<Vec<ConfigEntry>>,
}

impl Recorded<'_, '_> {
    fn note<T: Clone>(&self, entry: Option<T>, of: fn(T) -> ConfigEntry) -> Option<T> {
        self.seen.borrow_mut().extend(entry.clone().map(of));
        entry
    }
}

impl Entries for Recorded<'_, '_> {
    fn router(&self, service: &ServiceName) -> Option<ServiceRouter> {
        self.note(self.stored.router(service), ConfigEntry::ServiceRouter)
    }

    fn splitter(&self, service: &ServiceName) -> Option<ServiceSplitter> {
        self.note(self.stored.splitter(service), ConfigEntry::ServiceSplitter)
    }

    fn resolver(&self, service: &ServiceName) -> Option<ServiceResolver> {
        self.note(self.stored.resolver(service), ConfigEntry::ServiceResolver)
    }

    fn defaults(&self, service: &ServiceName) -> Option<ServiceDefaults> {
        self.stored.defaults(service)
    }

    fn proxy_defaults(&self, tenancy: &Tenancy) -> Option<ProxyDefaults> {
        self.stored.proxy_defaults(tenancy)
    }
}
