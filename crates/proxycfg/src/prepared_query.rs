//! The routing of traffic to a prepared query: one cluster with the instances in the mesh that the
//! query finds.
//!
//! The result has the form of a compiled chain without config entries, so that resources are made
//! from it in the same way. A query is executed once for all callers, and again when the query or
//! an instance that it may find has changed. Consul's proxies poll instead.

use std::sync::Arc;
use std::time::Duration;

use legate_discovery_chain::Target;
use legate_model::{
    CheckServiceNode, HealthCheck, QueryFailover, ServiceInstance, ServiceName, Tenancy, sni,
};
use legate_store::{Range, ReadTxn, Remote};
use tracing::warn;

use crate::chain::{Callers, Instances, ResolvedChain};
use crate::gateways;
use crate::peers;
use crate::remote;

/// The default connect timeout, as in Consul.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The chain of a query. The query need not exist.
pub(crate) fn resolved(txn: &ReadTxn<'_>, query: &str, callers: Callers<'_>) -> Arc<ResolvedChain> {
    let Callers {
        datacenter,
        local,
        trust_domain,
        overrides,
        ..
    } = callers;
    let argument = format!("{}/{datacenter}/{trust_domain}/{overrides:?}", exact(query));
    txn.shared("resolved prepared query", &argument, |txn| {
        let is_own = datacenter.eq_ignore_ascii_case(local);
        let found = match is_own {
            true => reached(txn, query),
            false => found_elsewhere(txn, query, datacenter, local),
        };
        let instances = Arc::clone(&found.instances);
        let owner = found.datacenter.as_deref().unwrap_or(local);
        let peer = &*found.peer;
        let service = service(txn, query, is_own, &instances);
        // Separate from the instances, which change far more often. The argument has all inputs of
        // the chain, besides what it reads.
        let argument = format!("{argument}/{}/{owner}/{peer}", exact(&service.to_string()));
        let chain = txn.shared("chain of a prepared query", &argument, |txn| {
            let sni = sni::query(query, datacenter, trust_domain);
            let target = target(txn, &service, sni, (owner, peer), callers);
            let named = ServiceName::new(&service.tenancy, query);
            let protocol = overrides.protocol.unwrap_or_default();
            peers::to_one_target(&named, target, protocol, callers)
        });
        let bundles = peers::trust_bundles(txn, &chain);
        ResolvedChain::new(chain, [instances]).with_trust_bundles(bundles)
    })
}

/// What a query has found, in a datacenter or from a peer.
fn target(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    sni: String,
    (datacenter, peer): (&str, &str),
    callers: Callers<'_>,
) -> Target {
    let connect_timeout = match callers.overrides.connect_timeout {
        Duration::ZERO => CONNECT_TIMEOUT,
        wanted => wanted,
    };
    let mut target = Target {
        id: sni.clone(),
        service: service.name.as_ref().to_owned(),
        tenancy: service.tenancy.clone(),
        peer: peer.to_owned(),
        connect_timeout,
        ..Target::default()
    };
    match peer {
        "" => {
            datacenter.clone_into(&mut target.datacenter);
            target.sni.clone_from(&sni);
        }
        _ => peers::complete(txn, &mut target, callers.partition),
    }
    // Whatever is found, the cluster is that of the query.
    target.name = sni;
    target
}

/// A text as the argument of a shared query. Hex, because arguments ignore case but query templates and
/// filters do not.
pub(crate) fn exact(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// The instances that a query finds, all of them in one datacenter or imported from one peer.
#[derive(Debug, Default, PartialEq)]
pub struct QueryResult {
    /// The instances. The checks are those that the query does not ignore.
    pub instances: Arc<Instances>,
    /// The datacenter. `None`: this one.
    pub datacenter: Option<String>,
    /// The peer in lower case; empty means none.
    pub peer: String,
}

/// What a query finds, at the addresses by which callers here reach it.
fn reached(txn: &ReadTxn<'_>, query: &str) -> Arc<QueryResult> {
    let as_found = found(txn, query);
    if as_found.datacenter.is_none() {
        return as_found;
    }
    txn.shared("instances of a prepared query", &exact(query), |txn| {
        let found = found(txn, query);
        QueryResult {
            instances: Arc::new(remote::at_wan_addresses(&found.instances).into()),
            datacenter: found.datacenter.clone(),
            peer: String::new(),
        }
    })
}

/// What a query of another datacenter finds there for callers of this partition, as its servers say. That may be in a third
/// datacenter, or in this one.
fn found_elsewhere(txn: &ReadTxn<'_>, query: &str, owner: &str, local: &str) -> Arc<QueryResult> {
    let argument = format!("{}/{owner}", exact(query));
    txn.shared(
        "instances of a prepared query elsewhere",
        &argument,
        |txn| {
            let range = Range::query(owner, &txn.tenancy().partition, query);
            let all = match txn.remote(&range) {
                Remote::Known(all) => all,
                // The driver reports why.
                Remote::Pending | Remote::Failed(_) => Arc::default(),
            };
            let first = all.first().map(|one| one.node.datacenter.as_str());
            let datacenter = first.filter(|name| !name.is_empty()).unwrap_or(owner);
            if datacenter.eq_ignore_ascii_case(local) {
                return QueryResult {
                    instances: Arc::new(all.to_vec().into()),
                    datacenter: None,
                    peer: String::new(),
                };
            }
            QueryResult {
                instances: Arc::new(remote::at_wan_addresses(&all).into()),
                datacenter: Some(datacenter.to_ascii_lowercase()),
                peer: String::new(),
            }
        },
    )
}

/// The instances that a query of this datacenter finds, if they are exported to the callers' partition. Their addresses are
/// those that they have where they are. Checks that the query ignores are removed, so that callers ignore them, too.
pub fn found(txn: &ReadTxn<'_>, query: &str) -> Arc<QueryResult> {
    txn.shared("what a prepared query finds", &exact(query), |txn| {
        let query = match txn.find_prepared_query(query) {
            Ok(Some(query)) => query,
            Ok(None) => return QueryResult::default(),
            Err(error) => {
                warn!(query, %error, "an upstream's prepared query cannot be executed");
                return QueryResult::default();
            }
        };
        let wanted = &query.service;
        let fails_over = wanted.failover != QueryFailover::default();
        let nearest: Vec<String> = match fails_over {
            true => txn
                .other_datacenters()
                .iter()
                .map(ToString::to_string)
                .collect(),
            false => Vec::new(),
        };
        let (mut all, mut datacenter, mut peer) = (Vec::new(), None, "");
        // What was found in a datacenter that cannot be asked at present.
        let mut last_known = None;
        for scope in wanted.scopes(&nearest) {
            let there = Tenancy::new(scope.partition, scope.namespace);
            let service = ServiceName::new(&there, &wanted.service);
            if !txn.is_exported(&service, &txn.tenancy().partition) {
                continue;
            }
            let is_current;
            (all, is_current) = match (scope.datacenter, scope.peer) {
                (Some(datacenter), _) => remote::instances(txn, datacenter, &service),
                (None, "") => {
                    let here = |txn: &ReadTxn<'_>| gateways::connect_to(txn, &wanted.service);
                    (txn.in_tenancy(&there, here), true)
                }
                (None, peer) => (of_peer(txn, &service, peer), true),
            };
            all.retain(|instance| wanted.fits(instance));
            if all.is_empty() {
                continue;
            }
            datacenter = scope.datacenter.map(str::to_owned);
            if is_current {
                peer = scope.peer;
                last_known = None;
                break;
            }
            let found = (std::mem::take(&mut all), datacenter.take());
            last_known.get_or_insert(found);
        }
        if let Some(found) = last_known {
            (all, datacenter) = found;
        }
        for instance in &mut all {
            let counts = |check: &Arc<HealthCheck>| !wanted.ignores(&check.check_id);
            instance.checks.retain(counts);
        }
        QueryResult {
            instances: Arc::new(all.into()),
            datacenter,
            peer: peer.to_ascii_lowercase(),
        }
    })
}

/// The instances of a service of a peer, if it is known how they are reached from the current partition.
fn of_peer(txn: &ReadTxn<'_>, service: &ServiceName, peer: &str) -> Vec<CheckServiceNode> {
    let is_peered = service.tenancy.partition == txn.tenancy().partition;
    match is_peered && peers::is_known(txn, service, peer) {
        true => peers::imported(txn, service, peer),
        false => Vec::new(),
    }
}

/// The service of a query, by the name in the certificates of its instances. That of a query of another datacenter is known once it finds one.
fn service(txn: &ReadTxn<'_>, query: &str, is_own: bool, instances: &Instances) -> ServiceName {
    // Gateways have names of their own.
    let mut own = instances.iter().map(|one| &*one.service);
    let first = own.find(|service| service.destination().is_some());
    let proven = first.and_then(|service| service.destination());
    let own_query = || txn.find_prepared_query(query).ok().flatten();
    let found = is_own.then(own_query).flatten();
    let of_query = || {
        found
            .as_deref()
            .map(|query| query.service.tenancy())
            .unwrap_or_default()
    };
    let tenancy = first.map_or_else(of_query, ServiceInstance::tenancy);
    let tenancy = tenancy.of_peer("");
    let asked_for = || found.as_deref().map(|query| query.service.service.as_str());
    let name = proven.or_else(asked_for).unwrap_or_default();
    ServiceName::new(&tenancy, name)
}
