//! When two values make no difference to a proxy's configuration.
//!
//! Writes that change only what no proxy depends on (a check's output, an index, a tag) must not
//! wake anything. Pointers are compared first: most values that are read twice are the same ones.

use std::sync::Arc;

use legate_ca::Leaf;
use legate_model::{CheckServiceNode, HealthCheck, Node, ServiceInstance};

/// How values are compared that readers of a store share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// For snapshots of one store: what is computed anew there and equal is the same `Arc`, and to
    /// compare a chain of hundreds of routes for each of its callers costs more than all else.
    Addresses,
    /// For snapshots of different states.
    Values,
}

impl Compare {
    pub(crate) fn same<T: PartialEq>(self, a: &Arc<T>, b: &Arc<T>) -> bool {
        Arc::ptr_eq(a, b) || (self == Self::Values && a == b)
    }

    /// Takes over the value of before where it is the same.
    pub(crate) fn adopt<T: PartialEq>(self, last: &Arc<T>, now: &mut Arc<T>) {
        if self.same(last, now) {
            *now = Arc::clone(last);
        }
    }
}

/// The same value, which is most often the same pointer.
pub(crate) fn shared<T: PartialEq>(a: &Arc<T>, b: &Arc<T>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// The same certificate.
pub(crate) fn leaf(a: &Arc<Leaf>, b: &Arc<Leaf>) -> bool {
    Arc::ptr_eq(a, b) || (a.cert_pem == b.cert_pem && a.service == b.service)
}

/// The same as far as the proxy of this registration is concerned. Tags, meta and weights are for
/// those who look the proxy up.
pub(crate) fn registration(a: &ServiceInstance, b: &ServiceInstance) -> bool {
    a.kind == b.kind
        && a.id == b.id
        && a.service == b.service
        && a.address == b.address
        && a.port == b.port
        && a.socket_path == b.socket_path
        && a.locality == b.locality
        && a.proxy == b.proxy
}

/// The same instances in the same order, as far as those who call them are concerned.
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
