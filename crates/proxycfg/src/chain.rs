//! The routing of traffic to a service: its compiled discovery chain, and the instances of each of
//! the chain's targets.
//!
//! Computed once for all callers of a service without overrides. `legate-discovery-chain` compiles
//! the config entries; this file builds no resources.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use legate_discovery_chain::{
    Chain, ChainError, Entries, NodeKind, Overrides, Request, Target, compile,
};
use legate_model::{
    CheckServiceNode, ConfigEntry, ConfigKind, Locality, PeerTrustBundle, Protocol, ProxyDefaults,
    SamenessGroup, ServiceDefaults, ServiceKind, ServiceName, ServiceResolver, ServiceRouter,
    ServiceSplitter, Subset, Tenancy, TrustDomain,
};
use legate_store::ReadTxn;
use tracing::warn;

use crate::gateways;
use crate::peers;
use crate::prepared_query::exact;
use crate::remote;
use crate::same;

/// Instances through which a service is reached in the mesh: all of them, or those of a subset. Two
/// lists are equal when callers would see no difference.
#[derive(Debug, Clone, Default)]
pub struct Instances {
    list: Vec<CheckServiceNode>,
    /// Instances with a warning receive no traffic.
    pub only_passing: bool,
}

impl Deref for Instances {
    type Target = [CheckServiceNode];

    fn deref(&self) -> &[CheckServiceNode] {
        &self.list
    }
}

impl From<Vec<CheckServiceNode>> for Instances {
    fn from(list: Vec<CheckServiceNode>) -> Self {
        Self {
            list,
            only_passing: false,
        }
    }
}

impl Instances {
    /// Those of a subset of a service, which its resolver defines.
    pub(crate) fn of_subset(
        all: Vec<CheckServiceNode>,
        service: &str,
        name: &str,
        subset: &Subset,
    ) -> Self {
        let Subset {
            filter,
            only_passing,
        } = subset;
        // Without a filter the subset has all instances; `only_passing` may still exclude some by
        // health. Gateways that represent the service route each subset by its server name.
        let filter = (!filter.is_empty()).then(|| CheckServiceNode::filter(filter));
        if let Some(Err(error)) = &filter {
            warn!(service, subset = name, %error, "cannot parse a stored filter; the subset is empty");
        }
        let has = |instance: &CheckServiceNode| match &filter {
            None => true,
            Some(_) if instance.service.kind == ServiceKind::TerminatingGateway => true,
            Some(Ok(filter)) => instance.matches(filter),
            Some(Err(_)) => false,
        };
        Self {
            list: all.into_iter().filter(has).collect(),
            only_passing: *only_passing,
        }
    }
}

impl PartialEq for Instances {
    fn eq(&self, other: &Self) -> bool {
        self.only_passing == other.only_passing && same::instances(self, other)
    }
}

/// A compiled chain with the instances of its targets.
#[derive(Debug, Clone)]
pub struct ResolvedChain {
    /// The chain, or the error about conflicting entries. Writes that would cause one are refused,
    /// but entries that were stored before a validation rule existed remain.
    pub chain: Result<Arc<Chain>, ChainError>,
    /// The instances of each target, in the order of the chain's targets.
    instances: Box<[Arc<Instances>]>,
    /// The roots of the peers of its targets, each peer once.
    trust_bundles: Box<[Arc<PeerTrustBundle>]>,
    /// About how many values resources are made from. Cached, because each change of a caller reads
    /// it.
    size: usize,
}

impl ResolvedChain {
    /// A chain with the instances of its targets, in the order of the targets.
    pub fn new(chain: Arc<Chain>, instances: impl IntoIterator<Item = Arc<Instances>>) -> Self {
        let instances: Box<[Arc<Instances>]> = instances.into_iter().collect();
        let found: usize = instances.iter().map(|one| one.len()).sum();
        Self {
            size: parts(&chain) + found,
            chain: Ok(chain),
            instances,
            trust_bundles: Box::default(),
        }
    }

    /// The same with the roots of the peers of its targets.
    #[must_use]
    pub fn with_trust_bundles(mut self, trust_bundles: Box<[Arc<PeerTrustBundle>]>) -> Self {
        self.trust_bundles = trust_bundles;
        self
    }

    /// The roots of the peers that its targets are imported from, each peer once. There are none of peers of which it
    /// is not known how the target is reached.
    pub fn trust_bundles(&self) -> &[Arc<PeerTrustBundle>] {
        &self.trust_bundles
    }

    fn failed(error: ChainError) -> Self {
        Self {
            chain: Err(error),
            instances: Box::default(),
            trust_bundles: Box::default(),
            size: 0,
        }
    }

    /// The instances of a target; `None` for a target that is not in the chain.
    pub fn instances(&self, target: &str) -> Option<&Arc<Instances>> {
        let chain = self.chain.as_ref().ok()?;
        let place = chain.targets.keys().position(|id| id == target)?;
        self.instances.get(place)
    }

    /// The protocol of the chain, `tcp` where there is no chain.
    pub fn protocol(&self) -> Protocol {
        let chain = self.chain.as_ref();
        chain.map_or_else(|_| Protocol::default(), |chain| chain.protocol)
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }
}

/// The number of nodes, routes and splits; each route repeats the splits of its next node.
fn parts(chain: &Chain) -> usize {
    let splits = |key: &str| match chain.nodes.get(key).map(|node| &node.kind) {
        Some(NodeKind::Splitter(splits)) => splits.len(),
        _ => 1,
    };
    let routes = match chain.start().map(|start| &start.kind) {
        Some(NodeKind::Router(steps)) => steps.iter().map(|step| splits(&step.next_node)).sum(),
        _ => 0,
    };
    chain.nodes.len() + routes
}

impl PartialEq for ResolvedChain {
    fn eq(&self, other: &Self) -> bool {
        let same_chain = match (&self.chain, &other.chain) {
            (Ok(a), Ok(b)) => same::shared(a, b),
            (Err(a), Err(b)) => a == b,
            _ => false,
        };
        let pairs = || self.instances.iter().zip(&other.instances);
        same_chain
            && self.trust_bundles == other.trust_bundles
            && self.instances.len() == other.instances.len()
            && pairs().all(|(a, b)| same::shared(a, b))
    }
}

/// The callers that a chain is compiled for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callers<'a> {
    /// Their partition.
    pub(crate) partition: &'a str,
    /// The datacenter of the service.
    pub(crate) datacenter: &'a str,
    /// The datacenter of this catalog.
    pub(crate) local: &'a str,
    pub(crate) trust_domain: &'a TrustDomain,
    /// Settings of the callers that override those of the chain.
    pub(crate) overrides: Overrides,
}

/// The chain of a service. It is the same for all callers of a partition.
pub(crate) fn resolved(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    callers: Callers<'_>,
) -> Arc<ResolvedChain> {
    txn.in_tenancy(&service.tenancy, |txn| resolve(txn, service, callers))
}

fn resolve(txn: &ReadTxn<'_>, service: &ServiceName, callers: Callers<'_>) -> Arc<ResolvedChain> {
    let Callers {
        partition,
        datacenter,
        local,
        trust_domain,
        overrides,
    } = callers;
    // Service names contain no slash.
    let mut argument = format!("{}/{datacenter}/{trust_domain}", service.name);
    if overrides != Overrides::default() {
        argument.push_str(&format!("/{overrides:?}"));
    }
    // Each partition decides what it exports to each other partition.
    let of_callers = match *partition == *service.tenancy.partition {
        true => argument.clone(),
        false => format!("{argument}/from {partition}"),
    };
    let request = Request {
        service,
        datacenter,
        trust_domain,
        overrides,
    };
    // Separate from the instances, which change far more often.
    let of_entries = |txn: &ReadTxn<'_>| match txn.is_exported(service, partition) {
        true => txn.shared("chain", &argument, |txn| {
            used(&request, &StoredEntries(txn))
        }),
        false => txn.shared("chain without routes", &argument, |txn| {
            used(&request, &NotExported(StoredEntries(txn)))
        }),
    };
    txn.shared("resolved chain", &of_callers, |txn| {
        let chain = match &*of_entries(txn) {
            Ok(chain) => Arc::clone(chain),
            Err(error) => return ResolvedChain::failed(error.clone()),
        };
        let has_peers = chain
            .targets
            .values()
            .any(|target| peers::is_target(target));
        let completed = has_peers.then(|| {
            txn.shared("chain with targets of peers", &of_callers, |txn| {
                let mut chain = Chain::clone((*of_entries(txn)).as_ref().ok()?);
                let targets = chain.targets.values_mut();
                for target in targets.filter(|target| peers::is_target(target)) {
                    peers::complete(txn, target, partition);
                }
                Some(Arc::new(chain))
            })
        });
        let completed = completed.and_then(|completed| Option::clone(&completed));
        let chain = completed.unwrap_or(chain);
        let instances = chain.targets.values();
        let instances = instances.map(|target| of_target(txn, target, partition, local));
        let instances: Vec<_> = instances.collect();
        let bundles = peers::trust_bundles(txn, &chain);
        ResolvedChain::new(chain, instances).with_trust_bundles(bundles)
    })
}

/// The chain of a service for callers of its own partition without overrides.
pub(crate) fn compiled(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<Result<Arc<Chain>, ChainError>> {
    let request = Request {
        service,
        datacenter,
        trust_domain,
        overrides: Overrides::default(),
    };
    // The same query as for callers.
    let argument = format!("{}/{datacenter}/{trust_domain}", service.name);
    txn.in_tenancy(&service.tenancy, |txn| {
        txn.shared("chain", &argument, |txn| {
            used(&request, &StoredEntries(txn))
        })
    })
}

/// Compiles a chain without what configures nothing in callers: meta and extensions are for operators and for the
/// service's own proxies.
fn used(request: &Request<'_>, entries: &dyn Entries) -> Result<Arc<Chain>, ChainError> {
    let used = |chain: Chain| Chain {
        service_meta: BTreeMap::new(),
        envoy_extensions: Vec::new(),
        ..chain
    };
    compile(request, entries).map(used).map(Arc::new)
}

/// Other partitions see only what a partition exports to them, in every datacenter.
fn of_target(txn: &ReadTxn<'_>, target: &Target, partition: &str, local: &str) -> Arc<Instances> {
    if peers::is_target(target) {
        return peers::of_target(txn, target, partition);
    }
    if !txn.is_exported(&target.service_name(), partition) {
        return Arc::default();
    }
    if !target.datacenter.eq_ignore_ascii_case(local) {
        return remote::of_target(txn, target, partition);
    }
    txn.in_tenancy(&target.tenancy, |txn| {
        match target.service_subset.as_str() {
            "" => instances(txn, &target.service),
            subset => of_subset(txn, &target.service, subset, &target.subset),
        }
    })
}

/// All instances through which a service is reached in the mesh: its own, and those of the
/// terminating gateways that represent it.
pub(crate) fn instances(txn: &ReadTxn<'_>, service: &str) -> Arc<Instances> {
    txn.shared("instances", service, |txn| {
        gateways::connect_to(txn, service).into()
    })
}

/// The instances of a subset, which the service's resolver defines, and those of the terminating
/// gateways that represent the service: these route each subset by its server name.
pub(crate) fn of_subset(
    txn: &ReadTxn<'_>,
    service: &str,
    name: &str,
    subset: &Subset,
) -> Arc<Instances> {
    // The definition is part of the key: two chains may have been compiled from different ones.
    let Subset {
        filter,
        only_passing,
    } = subset;
    let argument = format!("{service}/{name}/{only_passing}/{}", exact(filter));
    txn.shared("instances of a subset", &argument, |txn| {
        // Not the list that all callers share: that list stays the same while callers see no
        // difference, but filters also match fields that callers do not see, such as tags and the
        // node's meta.
        Instances::of_subset(gateways::connect_to(txn, service), service, name, subset)
    })
}

/// The config entries of the catalog.
#[derive(Clone, Copy, Debug)]
pub struct StoredEntries<'t, 's>(pub &'t ReadTxn<'s>);

/// Reads an entry of a kind; the entry's type has the kind's name.
macro_rules! stored {
    ($entries:expr, $kind:ident, $tenancy:expr, $name:expr) => {{
        let read = |txn: &ReadTxn<'_>| txn.config_entry(ConfigKind::$kind, $name);
        match &*$entries.0.in_tenancy($tenancy, read)? {
            ConfigEntry::$kind(entry) => Some(entry.clone()),
            _ => None,
        }
    }};
}

/// The config entries that other partitions see of a service that is not exported to them: its
/// protocol, but not its routing.
struct NotExported<'t, 's>(StoredEntries<'t, 's>);

impl Entries for NotExported<'_, '_> {
    fn router(&self, _: &ServiceName) -> Option<ServiceRouter> {
        None
    }

    fn splitter(&self, _: &ServiceName) -> Option<ServiceSplitter> {
        None
    }

    fn resolver(&self, _: &ServiceName) -> Option<ServiceResolver> {
        None
    }

    fn defaults(&self, service: &ServiceName) -> Option<ServiceDefaults> {
        self.0.defaults(service)
    }

    fn proxy_defaults(&self, tenancy: &Tenancy) -> Option<ProxyDefaults> {
        self.0.proxy_defaults(tenancy)
    }

    fn peer_locality(&self, tenancy: &Tenancy, peer: &str) -> Option<Locality> {
        self.0.peer_locality(tenancy, peer)
    }
}

impl Entries for StoredEntries<'_, '_> {
    fn router(&self, service: &ServiceName) -> Option<ServiceRouter> {
        stored!(self, ServiceRouter, &service.tenancy, &service.name)
    }

    fn splitter(&self, service: &ServiceName) -> Option<ServiceSplitter> {
        stored!(self, ServiceSplitter, &service.tenancy, &service.name)
    }

    fn resolver(&self, service: &ServiceName) -> Option<ServiceResolver> {
        stored!(self, ServiceResolver, &service.tenancy, &service.name)
    }

    fn defaults(&self, service: &ServiceName) -> Option<ServiceDefaults> {
        stored!(self, ServiceDefaults, &service.tenancy, &service.name)
    }

    fn proxy_defaults(&self, tenancy: &Tenancy) -> Option<ProxyDefaults> {
        stored!(self, ProxyDefaults, tenancy, ProxyDefaults::NAME)
    }

    fn default_sameness_group(&self, tenancy: &Tenancy) -> Option<SamenessGroup> {
        let groups = |txn: &ReadTxn<'_>| txn.config_entries(ConfigKind::SamenessGroup);
        let groups = self.0.in_tenancy(&tenancy.of_partition(), groups);
        groups.iter().find_map(|entry| match &**entry {
            ConfigEntry::SamenessGroup(group) if group.default_for_failover => Some(group.clone()),
            _ => None,
        })
    }

    fn peer_locality(&self, tenancy: &Tenancy, peer: &str) -> Option<Locality> {
        let peering = |txn: &ReadTxn<'_>| txn.peering(peer);
        let peering = self.0.in_tenancy(&tenancy.of_partition(), peering)?;
        peering.remote.locality.clone()
    }
}
