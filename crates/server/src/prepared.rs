//! Execution of prepared queries, for HTTP and DNS.

use std::net::IpAddr;
use std::time::Duration;

use legate_model::acl::Authorizer;
use legate_model::{
    CheckServiceNode, QueryScope, ServiceQuery, Tenancy, TenancyName, put_node_first,
};
use legate_proxycfg::gateways::connect_to;
use legate_store::{ReadTxn, Reader};
use legate_wan::Wan;
use rand::seq::SliceRandom;

use crate::distance::{AGENT, sort_from};
use crate::wan;

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
#[derive(Clone, Default)]
pub(crate) struct Selected {
    pub(crate) nodes: Vec<CheckServiceNode>,
    /// Whether ACLs removed any instances.
    pub(crate) filtered: bool,
    /// The tenancy that was tried last.
    pub(crate) tenancy: Tenancy,
}

/// What is looked for.
#[derive(Clone, Copy)]
pub(crate) struct Sought<'q> {
    pub(crate) wanted: &'q ServiceQuery,
    /// Whether the mesh endpoints of the service are selected.
    pub(crate) connect: bool,
    /// The node from which results are sorted by distance.
    pub(crate) near: &'q str,
}

/// Selects instances from the first of the query's scopes in this datacenter that has any.
pub(crate) fn select(txn: &ReadTxn<'_>, caller: &Caller<'_>, sought: Sought<'_>) -> Selected {
    let mut selected = Selected::default();
    for scope in sought.wanted.scopes(&[]) {
        let earlier = selected;
        selected = select_at(txn, caller, sought, scope);
        selected.filtered |= earlier.filtered;
        if !selected.nodes.is_empty() {
            break;
        }
    }
    selected
}

/// The result in all datacenters.
#[derive(Default)]
pub(crate) struct Executed {
    pub(crate) selected: Selected,
    /// The namespace that was tried last, as the query has it.
    pub(crate) namespace: TenancyName,
    /// The other datacenter that was tried last.
    pub(crate) datacenter: Option<String>,
    /// The peer that was tried last, as the query has it; empty means none.
    pub(crate) peer: String,
    /// The number of scopes that were tried before.
    pub(crate) failovers: usize,
}

/// Selects instances from the first of the query's scopes that has any, in all datacenters. `token` is that of the
/// permissions. Each other datacenter must answer within `limit`.
pub(crate) async fn select_everywhere(
    reader: &Reader,
    caller: &Caller<'_>,
    sought: Sought<'_>,
    token: &str,
    wan: Option<&Wan>,
    limit: Duration,
) -> Executed {
    let nearest = wan.map_or_else(Vec::new, |wan| wan.datacenters().split_off(1));
    let mut executed = Executed::default();
    for (failovers, scope) in sought.wanted.scopes(&nearest).into_iter().enumerate() {
        let selected = match scope.datacenter.zip(wan) {
            Some((datacenter, wan)) => {
                match wan::select(wan, datacenter, token, sought, scope, limit).await {
                    Ok(found) => Selected {
                        nodes: found.nodes,
                        filtered: found.filtered,
                        tenancy: scope.tenancy(),
                    },
                    // As in Consul: the next one may have instances.
                    Err(error) => {
                        let service = &sought.wanted.service;
                        tracing::debug!(%error, datacenter, service, "a prepared query cannot fail over");
                        Selected::default()
                    }
                }
            }
            None => select_at(&reader.state().read(), caller, sought, scope),
        };
        executed = Executed {
            selected: Selected {
                filtered: executed.selected.filtered | selected.filtered,
                ..selected
            },
            namespace: scope.namespace.clone(),
            datacenter: scope.datacenter.map(str::to_owned),
            peer: scope.peer.to_owned(),
            failovers,
        };
        if !executed.selected.nodes.is_empty() {
            break;
        }
    }
    executed
}

/// Selects instances in one partition and namespace of this datacenter, or those that are imported there from a peer.
pub(crate) fn select_at(
    txn: &ReadTxn<'_>,
    caller: &Caller<'_>,
    sought: Sought<'_>,
    scope: QueryScope<'_>,
) -> Selected {
    let tenancy = scope.tenancy();
    let caller = Caller {
        authorizer: &caller.authorizer.within(&tenancy),
        ..*caller
    };
    let Sought {
        wanted,
        connect,
        near,
    } = sought;
    let (nodes, filtered) = txn.in_tenancy(&tenancy, |txn| {
        select_in(txn, &caller, wanted, connect, near)
    });
    Selected {
        nodes,
        filtered,
        tenancy,
    }
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
