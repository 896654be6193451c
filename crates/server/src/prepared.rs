//! Execution of prepared queries, for HTTP and DNS.

use std::net::IpAddr;

use legate_model::acl::Authorizer;
use legate_model::{CheckServiceNode, ServiceQuery, Tenancy, TenancyName, put_node_first};
use legate_proxycfg::gateways::connect_to;
use legate_store::ReadTxn;
use rand::seq::SliceRandom;

use crate::distance::{AGENT, sort_from};

/// The caller of an execution.
pub(crate) struct Caller<'a> {
    /// The permissions that filter the results.
    pub(crate) authorizer: &'a Authorizer,
    /// This server's node, for `near: _agent`.
    pub(crate) node: &'a str,
    /// The client's address, if known.
    pub(crate) source: Option<IpAddr>,
}

/// The result, in order of preference.
pub(crate) struct Selected {
    pub(crate) nodes: Vec<CheckServiceNode>,
    /// Whether ACLs removed any instances.
    pub(crate) filtered: bool,
    /// Number of failover targets that were tried.
    pub(crate) failovers: usize,
    /// The last namespace that was tried, as named in the query.
    pub(crate) namespace: TenancyName,
    /// Its full tenancy.
    pub(crate) tenancy: Tenancy,
}

/// Selects instances from the first of the query's namespaces that has any. `connect`: the mesh endpoints of
/// the service. `near`: the node from which results are sorted by distance.
pub(crate) fn select(
    txn: &ReadTxn<'_>,
    caller: &Caller<'_>,
    wanted: &ServiceQuery,
    connect: bool,
    near: &str,
) -> Selected {
    let mut selected = Selected {
        nodes: Vec::new(),
        filtered: false,
        failovers: 0,
        namespace: TenancyName::default(),
        tenancy: Tenancy::default(),
    };
    for (failovers, (partition, namespace)) in wanted.places().enumerate() {
        let tenancy = Tenancy::new(partition, namespace);
        let caller = Caller {
            authorizer: &caller.authorizer.within(&tenancy),
            ..*caller
        };
        let (nodes, filtered) = txn.in_tenancy(&tenancy, |txn| {
            select_in(txn, &caller, wanted, connect, near)
        });
        selected = Selected {
            nodes,
            filtered: selected.filtered || filtered,
            failovers,
            namespace: namespace.clone(),
            tenancy,
        };
        if !selected.nodes.is_empty() {
            break;
        }
    }
    selected
}

/// The instances in one namespace, and whether ACLs removed any.
fn select_in(
    txn: &ReadTxn<'_>,
    caller: &Caller<'_>,
    wanted: &ServiceQuery,
    connect: bool,
    near: &str,
) -> (Vec<CheckServiceNode>, bool) {
    let mut nodes = match connect {
        true => connect_to(txn, &wanted.service),
        false => txn.service(&wanted.service),
    };
    nodes.retain(|instance| wanted.fits(instance));
    // Proxies of a service require `service:read` on the service, whatever their own names are.
    let authorizer = caller.authorizer;
    let may_see_service = authorizer.service_read(&wanted.service);
    let all = nodes.len();
    nodes.retain(|instance| {
        // A gateway may be in another namespace.
        let authorizer = authorizer.within(&instance.service.tenancy());
        may_see_service
            && authorizer.node_read(&instance.node.node)
            && authorizer.service_read(&instance.service.service)
    });
    let filtered = nodes.len() < all;
    nodes.shuffle(&mut rand::rng());
    if let Some(near) = origin(txn, caller, near) {
        sort_from(txn, &near, &mut nodes, |one| &one.node.node);
        put_node_first(&mut nodes, &near);
    }
    (nodes, filtered)
}

/// Resolves `near` to a node name.
fn origin(txn: &ReadTxn<'_>, caller: &Caller<'_>, near: &str) -> Option<String> {
    match near {
        "" => None,
        AGENT => Some(caller.node.to_owned()),
        "_ip" => {
            let node = txn.node_at(caller.source?, |_| true);
            node.map(|node| node.node.clone())
        }
        node => Some(node.to_owned()),
    }
}
