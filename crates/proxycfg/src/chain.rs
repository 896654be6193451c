//! What becomes of what is sent to a service: its compiled discovery chain, and the instances of
//! each target that the chain ends at.
//!
//! Computed once for all callers of a service that want nothing otherwise. Which entries make which
//! chain is decided in `legate-discovery-chain`; nothing here makes resources of it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use legate_discovery_chain::{
    Chain, ChainError, Entries, NodeKind, Overrides, Request, Target, compile,
};
use legate_model::{
    CheckServiceNode, ConfigEntry, ConfigKind, Protocol, ProxyDefaults, ServiceDefaults,
    ServiceName, ServiceResolver, ServiceRouter, ServiceSplitter, Subset, Tenancy, TrustDomain,
};
use legate_store::ReadTxn;
use tracing::warn;

use crate::same;

/// Instances through which a service is reached in the mesh: all of them, or those of a subset. Two
/// lists are equal when they make no difference to those who call them.
#[derive(Debug, Clone, Default)]
pub struct Instances {
    list: Vec<CheckServiceNode>,
    /// Instances with a warning get no traffic.
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

impl PartialEq for Instances {
    fn eq(&self, other: &Self) -> bool {
        self.only_passing == other.only_passing && same::instances(self, other)
    }
}

/// A compiled chain with the instances of its targets.
#[derive(Debug, Clone)]
pub struct ResolvedChain {
    /// The chain, or which entries do not fit together. Writes that would lead to that are refused,
    /// but what was stored before a rule came stays.
    pub chain: Result<Arc<Chain>, ChainError>,
    /// The instances of each target, in the order of the chain's targets.
    instances: Box<[Arc<Instances>]>,
    /// About how many values resources are made from. It is asked for with every change of a caller.
    size: usize,
}

impl ResolvedChain {
    /// A chain with the instances of its targets, in the order of those.
    pub fn new(chain: Arc<Chain>, instances: impl IntoIterator<Item = Arc<Instances>>) -> Self {
        let instances: Box<[Arc<Instances>]> = instances.into_iter().collect();
        let found: usize = instances.iter().map(|one| one.len()).sum();
        Self {
            size: parts(&chain) + found,
            chain: Ok(chain),
            instances,
        }
    }

    fn failed(error: ChainError) -> Self {
        Self {
            chain: Err(error),
            instances: Box::default(),
            size: 0,
        }
    }

    /// The instances of a target; none of one that the chain does not have.
    pub fn instances(&self, target: &str) -> Option<&Arc<Instances>> {
        let chain = self.chain.as_ref().ok()?;
        let place = chain.targets.keys().position(|id| id == target)?;
        self.instances.get(place)
    }

    /// What is spoken all the way. `tcp` where there is no chain.
    pub fn protocol(&self) -> Protocol {
        let chain = self.chain.as_ref();
        chain.map_or_else(|_| Protocol::default(), |chain| chain.protocol)
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }
}

/// How many nodes, routes and splits there are; each route repeats the splits that it leads to.
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
            && self.instances.len() == other.instances.len()
            && pairs().all(|(a, b)| same::shared(a, b))
    }
}

/// Whose chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callers<'a> {
    /// Their partition.
    pub(crate) partition: &'a str,
    /// The datacenter that is asked for.
    pub(crate) datacenter: &'a str,
    /// The one whose catalog this is.
    pub(crate) local: &'a str,
    pub(crate) trust_domain: &'a TrustDomain,
    /// What they want otherwise.
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
    // A service's name has no slash in it.
    let mut argument = format!("{}/{datacenter}/{trust_domain}", service.name);
    if overrides != Overrides::default() {
        argument.push_str(&format!("/{overrides:?}"));
    }
    // Each partition exports to others what it wants.
    let of_callers = match *partition == *service.tenancy.partition {
        true => argument.clone(),
        false => format!("{argument}/from {partition}"),
    };
    let compiled = |entries: &dyn Entries| {
        let request = Request {
            service,
            datacenter,
            trust_domain,
            overrides,
        };
        // No caller is configured by what is for people, or by what is for the service's own proxies.
        let used = |chain: Chain| Chain {
            service_meta: BTreeMap::new(),
            envoy_extensions: Vec::new(),
            ..chain
        };
        compile(&request, entries).map(used).map(Arc::new)
    };
    txn.shared("resolved chain", &of_callers, |txn| {
        // Apart from the instances, which change far more often.
        let chain = match txn.is_exported(service, partition) {
            true => txn.shared("chain", &argument, |txn| compiled(&StoredEntries(txn))),
            false => txn.shared("chain without routes", &argument, |txn| {
                compiled(&NotExported(StoredEntries(txn)))
            }),
        };
        let chain = match &*chain {
            Ok(chain) => Arc::clone(chain),
            Err(error) => return ResolvedChain::failed(error.clone()),
        };
        let instances = chain.targets.values();
        let instances = instances.map(|target| of_target(txn, target, partition, local));
        ResolvedChain::new(Arc::clone(&chain), instances.collect::<Vec<_>>())
    })
}

/// The catalog holds one datacenter. A partition shows others what it exports to them.
fn of_target(txn: &ReadTxn<'_>, target: &Target, partition: &str, local: &str) -> Arc<Instances> {
    let is_here = target.peer.is_empty() && target.datacenter.eq_ignore_ascii_case(local);
    if !is_here || !txn.is_exported(&target.service_name(), partition) {
        return Arc::default();
    }
    txn.in_tenancy(&target.tenancy, |txn| {
        match target.service_subset.as_str() {
            "" => instances(txn, &target.service),
            subset => of_subset(txn, &target.service, subset, &target.subset),
        }
    })
}

/// All instances of a service.
pub(crate) fn instances(txn: &ReadTxn<'_>, service: &str) -> Arc<Instances> {
    txn.shared("instances", service, |txn| txn.connect(service).into())
}

/// The instances of a subset, which the service's resolver defines.
fn of_subset(txn: &ReadTxn<'_>, service: &str, name: &str, subset: &Subset) -> Arc<Instances> {
    // The definition is part of the name: two chains may have been compiled from different ones.
    let Subset {
        filter,
        only_passing,
    } = subset;
    let argument = format!("{service}/{name}/{only_passing}/{filter}");
    txn.shared("instances of a subset", &argument, |txn| {
        // Not the list that all callers share: it stays the same while they see no difference, and
        // filters look at more than callers do, at tags and at the node's meta.
        let all = txn.connect(service);
        // Without a filter all instances are in it, of which some may be left out for their health.
        let filter = (!filter.is_empty()).then(|| CheckServiceNode::filter(filter));
        if let Some(Err(error)) = &filter {
            warn!(service, subset = name, %error, "a stored filter cannot be read: the subset is empty");
        }
        let has = |instance: &CheckServiceNode| match &filter {
            None => true,
            Some(Ok(filter)) => instance.matches(filter),
            Some(Err(_)) => false,
        };
        Instances {
            list: all.into_iter().filter(has).collect(),
            only_passing: *only_passing,
        }
    })
}

/// The config entries of the catalog.
#[derive(Clone, Copy, Debug)]
pub struct StoredEntries<'t, 's>(pub &'t ReadTxn<'s>);

/// Reads an entry of a kind, whose type has the kind's name.
macro_rules! stored {
    ($entries:expr, $kind:ident, $tenancy:expr, $name:expr) => {{
        let read = |txn: &ReadTxn<'_>| txn.config_entry(ConfigKind::$kind, $name);
        match &*$entries.0.in_tenancy($tenancy, read)? {
            ConfigEntry::$kind(entry) => Some(entry.clone()),
            _ => None,
        }
    }};
}

/// What other partitions are shown of the entries of a service that is not exported to them: what it
/// speaks, and not where its requests go.
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
}
