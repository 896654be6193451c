//! Services of other datacenters: their instances and mesh gateways, which are read from their servers, as callers of
//! this datacenter reach them.
//!
//! Config entries are the same in all datacenters, so the chain says what a target is. Only who is there is remote.

use std::collections::BTreeSet;
use std::sync::Arc;

use legate_discovery_chain::Target;
use legate_model::{
    CheckServiceNode, CheckStatus, HealthCheck, MeshGatewayMode, ServiceKind, ServiceName, Subset,
    Tenancy,
};
use legate_store::{Range, ReadTxn, Remote};

use crate::chain::Instances;
use crate::prepared_query::exact;

/// The name and the id of the service that servers register themselves as.
pub(crate) const SERVERS: &str = "consul";

/// The endpoints of a target in another datacenter for callers of a partition: its instances or, if the target is to be
/// reached by mesh gateways, those of its datacenter or of this one.
pub(crate) fn of_target(txn: &ReadTxn<'_>, target: &Target, callers: &str) -> Arc<Instances> {
    let mode = target.mesh_gateway.mode;
    let datacenter = target.datacenter.to_ascii_lowercase();
    let service = target.service_name();
    let (
        subset,
        Subset {
            filter,
            only_passing,
        },
    ) = (&target.service_subset, &target.subset);
    // The definition of the subset is part of the key: two chains may have been compiled from different ones.
    let argument = format!(
        "{service}/{datacenter}/{callers}/{mode:?}/{subset}/{only_passing}/{}",
        exact(filter)
    );
    txn.shared(
        "instances of a target in another datacenter",
        &argument,
        |txn| {
            let range = Range::instances(&datacenter, &service);
            let all = from_elsewhere(txn, &range);
            let own = match subset.as_str() {
                "" => Instances::from(all),
                name => Instances::of_subset(all, &service.name, name, &target.subset),
            };
            let gateways = match mode {
                MeshGatewayMode::Default | MeshGatewayMode::None => return own,
                MeshGatewayMode::Local => (*here(txn, callers)).clone(),
                MeshGatewayMode::Remote => gateways(txn, &datacenter, &target.tenancy.partition),
            };
            let is_healthy = may_be_healthy(txn, &range)
                || own.iter().any(|one| gets_traffic(one, own.only_passing));
            behind(is_healthy, gateways)
        },
    )
}

/// Whether it is not known if a service has healthy instances: its datacenter has gateways, and could not be asked since
/// this server has started. Then its gateways decide, as they do if it cannot be asked any more.
fn may_be_healthy(txn: &ReadTxn<'_>, range: &Range) -> bool {
    let has_gateways = || {
        let state = txn.federation_state(&range.datacenter);
        state.is_some_and(|state| !state.mesh_gateways.is_empty())
    };
    matches!(txn.remote(range), Remote::Failed(_)) && has_gateways()
}

/// The instances through which a service is reached in the mesh of another datacenter, as far as there is an address for
/// callers elsewhere. Their addresses are those that they have there.
///
/// Also returns whether the datacenter is asked for changes: otherwise they may be gone.
pub(crate) fn instances(
    txn: &ReadTxn<'_>,
    datacenter: &str,
    service: &ServiceName,
) -> (Vec<CheckServiceNode>, bool) {
    let range = Range::instances(datacenter, service);
    let is_connected = txn.remote_if_known(&range).is_some_and(|(_, is)| is);
    let reachable = |one: &&CheckServiceNode| !one.wan_address().0.is_empty();
    let all = match txn.remote(&range) {
        Remote::Known(all) => all.iter().filter(reachable).cloned().collect(),
        // The driver reports why.
        Remote::Pending | Remote::Failed(_) => Vec::new(),
    };
    (all, is_connected)
}

/// The mesh gateways of a partition in another datacenter, at their addresses for callers elsewhere. Those of the default
/// partition are known before that datacenter was asked, from its federation state: by them it is asked.
pub(crate) fn gateways(
    txn: &ReadTxn<'_>,
    datacenter: &str,
    partition: &str,
) -> Vec<CheckServiceNode> {
    let range = Range::mesh_gateways(datacenter, partition);
    let tenancy = Tenancy {
        partition: partition.into(),
        ..Tenancy::default()
    };
    let is_default = tenancy.is_default_partition();
    let Some(state) = txn.federation_state(datacenter).filter(|_| is_default) else {
        return from_elsewhere(txn, &range);
    };
    let newest = |list: &[CheckServiceNode]| list.iter().map(last_change).max();
    match txn.remote_if_known(&range) {
        // By the indexes of the datacenter itself.
        Some((list, is_connected))
            if is_connected || newest(&list) >= newest(&state.mesh_gateways) =>
        {
            at_wan_addresses(&list)
        }
        _ => at_wan_addresses(&state.mesh_gateways),
    }
}

/// The index of the last change of an instance.
fn last_change(instance: &CheckServiceNode) -> u64 {
    let checks = instance.checks.iter().map(|check| check.modify_index);
    let own = [instance.node.modify_index, instance.service.modify_index];
    checks.chain(own).max().unwrap_or_default()
}

fn from_elsewhere(txn: &ReadTxn<'_>, range: &Range) -> Vec<CheckServiceNode> {
    match txn.remote(range) {
        Remote::Known(list) => at_wan_addresses(&list),
        // The driver reports why.
        Remote::Pending | Remote::Failed(_) => Vec::new(),
    }
}

pub(crate) fn at_wan_addresses(list: &[CheckServiceNode]) -> Vec<CheckServiceNode> {
    let reachable = list.iter().map(CheckServiceNode::at_wan_address);
    // Envoy refuses an address without a host.
    reachable
        .filter(|one| !one.address().0.is_empty())
        .collect()
}

/// The mesh gateways of a partition in other datacenters, by the name of the datacenter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewaysElsewhere(pub Vec<GatewaysOf>);

/// The mesh gateways of a partition in another datacenter.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewaysOf {
    /// The datacenter, in lower case.
    pub datacenter: String,
    /// The gateways, at their addresses for callers elsewhere. There is at least one.
    pub instances: Arc<Instances>,
    /// Those that lead to the servers of the datacenter.
    pub to_servers: Arc<Instances>,
}

/// The mesh gateways of the current partition in all datacenters but this one that have some.
pub(crate) fn gateways_elsewhere(
    txn: &ReadTxn<'_>,
    own_datacenter: &str,
) -> Arc<GatewaysElsewhere> {
    txn.in_tenancy(&txn.tenancy().of_partition(), |txn| {
        txn.shared("mesh gateways elsewhere", "", |txn| {
            let mut names: BTreeSet<_> = txn.other_datacenters().iter().cloned().collect();
            if txn.tenancy().is_default_partition() {
                let states = txn.federation_states().into_iter();
                let others = states.map(|state| Arc::<str>::from(state.datacenter.as_str()));
                names.extend(others.filter(|name| !name.eq_ignore_ascii_case(own_datacenter)));
            }
            let of = |datacenter: Arc<str>| {
                let instances = gateways_of(txn, &datacenter);
                let to_servers = txn.shared("mesh gateways to servers", &datacenter, |txn| {
                    let all = gateways_of(txn, &datacenter);
                    let to_servers = all.iter().filter(|one| one.service.exposes_servers());
                    Instances::from(to_servers.cloned().collect::<Vec<_>>())
                });
                (!instances.is_empty()).then(|| GatewaysOf {
                    datacenter: datacenter.as_ref().to_owned(),
                    instances,
                    to_servers,
                })
            };
            GatewaysElsewhere(names.into_iter().filter_map(of).collect())
        })
    })
}

/// The mesh gateways of the current partition in another datacenter.
fn gateways_of(txn: &ReadTxn<'_>, datacenter: &str) -> Arc<Instances> {
    txn.shared("mesh gateways of a datacenter", datacenter, |txn| {
        let partition = &txn.tenancy().partition;
        Instances::from(gateways(txn, datacenter, partition))
    })
}

/// The servers that a mesh gateway leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Servers {
    /// The domain of their names in certificates.
    pub domain: Arc<str>,
    /// All servers of this datacenter.
    pub all: Arc<Instances>,
    /// Each server by the name of its node, in lower case.
    pub by_node: Vec<(String, Arc<Instances>)>,
}

/// Whether a name can be a label of a host name.
fn is_label(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(is_plain)
}

/// The servers of this datacenter.
pub(crate) fn servers(txn: &ReadTxn<'_>, domain: &Arc<str>) -> Arc<Option<Servers>> {
    txn.in_tenancy(&Tenancy::default(), |txn| {
        txn.shared("servers behind mesh gateways", "", |txn| {
            let mut all = txn.service(SERVERS);
            // Not what somebody else registers with the name.
            all.retain(|server| server.service.id == SERVERS && is_label(&server.node.node));
            let by_node = all.iter().map(|server| {
                let node = server.node.node.to_ascii_lowercase();
                (node, Arc::new(Instances::from(vec![server.clone()])))
            });
            Some(Servers {
                domain: Arc::clone(domain),
                by_node: by_node.collect(),
                all: Arc::new(Instances::from(all)),
            })
        })
    })
}

/// The mesh gateways of a partition in this datacenter.
pub fn here(txn: &ReadTxn<'_>, partition: &str) -> Arc<Vec<CheckServiceNode>> {
    let tenancy = Tenancy {
        partition: partition.into(),
        ..Tenancy::default()
    };
    txn.in_tenancy(&tenancy, |txn| {
        txn.shared("mesh gateways", "", |txn| {
            txn.gateways_of_kind(ServiceKind::MeshGateway)
        })
    })
}

/// Gateways as the endpoints of a service behind them. All of them are healthy if one of its instances is, as in Consul:
/// so callers fail over when there is none. Gateways with a critical check are left out.
pub(crate) fn behind(is_healthy: bool, mut gateways: Vec<CheckServiceNode>) -> Instances {
    gateways.retain(|gateway| gateway.health() != CheckStatus::Critical);
    for gateway in &mut gateways {
        gateway.checks.clear();
        if !is_healthy {
            gateway.checks.push(Arc::new(HealthCheck {
                check_id: "instances".into(),
                status: CheckStatus::Critical,
                ..HealthCheck::default()
            }));
        }
    }
    gateways.into()
}

pub(crate) fn gets_traffic(instance: &CheckServiceNode, only_passing: bool) -> bool {
    let weights = instance.service.weights;
    match instance.health() {
        CheckStatus::Passing => weights.passing > 0,
        CheckStatus::Warning => !only_passing && weights.warning > 0,
        CheckStatus::Critical => false,
    }
}
