//! What a prepared query finds, for HTTP and DNS alike.

use std::net::IpAddr;

use legate_model::acl::Authorizer;
use legate_model::{CheckServiceNode, ServiceQuery, Tenancy, TenancyName, put_node_first};
use legate_store::ReadTxn;
use rand::seq::SliceRandom;

use crate::distance::{AGENT, sort_from};
use crate::gateways::connect_to;

/// Who executes a query.
pub(crate) struct Caller<'a> {
    /// Whose token judges what is found.
    pub(crate) authorizer: &'a Authorizer,
    /// The node of the agent that was asked.
    pub(crate) node: &'a str,
    /// The address of who asks, where it is known.
    pub(crate) source: Option<IpAddr>,
}

/// What was found, in the order in which it should be used.
pub(crate) struct Selected {
    pub(crate) nodes: Vec<CheckServiceNode>,
    /// Whether something was left out for the lack of rights.
    pub(crate) filtered: bool,
    /// How many places were looked in after the first one.
    pub(crate) failovers: usize,
    /// The namespace that was looked in last, as the query names it.
    pub(crate) namespace: TenancyName,
    /// Where that is.
    pub(crate) tenancy: Tenancy,
}

/// The instances that a query asks for, in the first of the namespaces that it names which has one: `connect`
/// for what stands for the service in the mesh, `near` for the node whose instances come first.
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

/// What there is in one namespace, and whether something was left out for the lack of rights.
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
    // Who may not see the service does not see its proxies either, whatever else they are named.
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

/// The name of the node that `near` stands for.
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
