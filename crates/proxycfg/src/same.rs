//! Equality of values as far as a proxy's configuration is concerned.
//!
//! Writes that change only fields no proxy depends on (a check's output, an index, a tag) must not
//! wake any proxy. Pointers are compared first, because most values that are read twice are the
//! same allocation.

use std::sync::Arc;

use legate_ca::Leaf;
use legate_model::{CheckServiceNode, HealthCheck, Node, ServiceInstance, ServiceKind};

/// How to compare values that readers of a store share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// For snapshots of one store. Equal values that are recomputed there are the same `Arc`, and
    /// comparing a chain of hundreds of routes for each of its callers would dominate the cost.
    Addresses,
    /// For snapshots of different states.
    Values,
}

impl Compare {
    pub(crate) fn same<T: PartialEq>(self, a: &Arc<T>, b: &Arc<T>) -> bool {
        Arc::ptr_eq(a, b) || (self == Self::Values && a == b)
    }
}

/// Whether the values are equal. Most often they are the same pointer.
pub(crate) fn shared<T: PartialEq>(a: &Arc<T>, b: &Arc<T>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// Whether the certificates are the same.
pub(crate) fn leaf(a: &Arc<Leaf>, b: &Arc<Leaf>) -> bool {
    Arc::ptr_eq(a, b) || (a.cert_pem == b.cert_pem && a.id == b.id)
}

/// Whether the registrations are the same for the registered proxy. Tags, meta and weights matter
/// only to discovery.
pub(crate) fn registration(a: &ServiceInstance, b: &ServiceInstance) -> bool {
    a.kind == b.kind
        && a.id == b.id
        && a.service == b.service
        && a.address == b.address
        && a.port == b.port
        && a.socket_path == b.socket_path
        && a.locality == b.locality
        && a.proxy == b.proxy
        // Gateways may listen on them.
        && (a.kind == ServiceKind::ConnectProxy || a.tagged_addresses == b.tagged_addresses)
}

/// Whether callers see the same instances in the same order.
pub(crate) fn instances(a: &[CheckServiceNode], b: &[CheckServiceNode]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| instance(a, b))
}

fn instance(a: &CheckServiceNode, b: &CheckServiceNode) -> bool {
    (Arc::ptr_eq(&a.node, &b.node) || node(&a.node, &b.node))
        && (Arc::ptr_eq(&a.service, &b.service) || callee(&a.service, &b.service))
        && a.checks.len() == b.checks.len()
        && a.checks.iter().zip(&b.checks).all(|(a, b)| check(a, b))
}

fn node(a: &Node, b: &Node) -> bool {
    a.node == b.node
        && a.address == b.address
        && a.datacenter == b.datacenter
        && a.tagged_addresses == b.tagged_addresses
        && a.locality == b.locality
}

fn callee(a: &ServiceInstance, b: &ServiceInstance) -> bool {
    registration(a, b)
        && a.weights == b.weights
        && a.tagged_addresses == b.tagged_addresses
        && a.connect == b.connect
        && a.meta == b.meta
}

fn check(a: &Arc<HealthCheck>, b: &Arc<HealthCheck>) -> bool {
    Arc::ptr_eq(a, b) || (a.check_id == b.check_id && a.status == b.status)
}
