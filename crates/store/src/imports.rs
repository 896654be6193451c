//! What other clusters export to this one: rows of the catalog in tenancies with a peer, see
//! [`Tenancy::of_peer`](legate_model::Tenancy::of_peer).
//!
//! Getters read them with a tenancy of the peer, and never without. The peering that imports is their only writer: each
//! write concerns the current tenancy, which has to be one of a peer, and no row of this cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_model::{CheckServiceNode, HealthCheck, Node, ServiceInstance, Tenancy};

use crate::key::fold;
use crate::read::ReadTxn;
use crate::registration::Registration;
use crate::rejected::Rejected;
use crate::rows::InstanceRow;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// How many instances of each service are imported into the current tenancy, by name in lower case.
    pub fn imported_instances(&self) -> BTreeMap<String, usize> {
        let rows: Vec<Arc<InstanceRow>> = self.scan(&[]);
        let mut counts = BTreeMap::new();
        for row in &rows {
            let name = fold(&row.instance.service).into_owned();
            *counts.entry(name).or_default() += 1;
        }
        counts
    }
}

impl WriteTxn {
    /// Replaces the imported instances of a service. Without instances it is removed. What has not changed is not written.
    ///
    /// # Errors
    /// [`Rejected`] names the problem. The transaction must be aborted then.
    pub fn put_imported(
        &mut self,
        service: &str,
        instances: &[CheckServiceNode],
    ) -> Result<(), Rejected> {
        debug_assert!(!self.tenancy.peer.is_empty(), "imports have a peer");
        for CheckServiceNode {
            node,
            service,
            checks,
        } in instances
        {
            self.register(Registration {
                node: Node::clone(node),
                service: Some(ServiceInstance::clone(service)),
                checks: checks
                    .iter()
                    .map(|check| HealthCheck::clone(check))
                    .collect(),
                skip_node_update: false,
            })?;
        }
        self.remove_absent(service, instances);
        Ok(())
    }

    /// Removes the stored instances and checks of a service that are not among these.
    fn remove_absent(&mut self, service: &str, instances: &[CheckServiceNode]) {
        let id = |one: &CheckServiceNode| {
            let node = fold(&one.node.node).into_owned();
            (node, fold(&one.service.id).into_owned())
        };
        let mut kept = BTreeMap::<_, BTreeSet<String>>::new();
        let mut of_nodes = BTreeMap::<String, BTreeSet<String>>::new();
        for one in instances {
            let (node, instance) = id(one);
            for check in &one.checks {
                let own = match check.service_id.is_empty() {
                    true => of_nodes.entry(node.clone()).or_default(),
                    false => kept.entry((node.clone(), instance.clone())).or_default(),
                };
                own.insert(fold(&check.check_id).into_owned());
            }
            kept.entry((node, instance)).or_default();
        }
        for stored in self.read().service(service) {
            let (node, instance) = id(&stored);
            let Some(checks) = kept.get(&(node.clone(), instance)) else {
                self.remove_instance(&stored.node.node, &stored.service.id);
                self.remove_if_empty(&stored.node.node);
                continue;
            };
            for check in &stored.checks {
                let own = match check.service_id.is_empty() {
                    true => of_nodes.get(&node),
                    false => Some(checks),
                };
                let check_id = fold(&check.check_id);
                if !own.is_some_and(|own| own.contains(&*check_id)) {
                    self.remove_check(&stored.node.node, &check.check_id);
                }
            }
        }
    }

    /// Removes a node on which nothing is left in any namespace.
    fn remove_if_empty(&mut self, node: &str) {
        let read = self.read();
        let is_used =
            |tenancy: &Tenancy| read.in_tenancy(tenancy, |txn| !txn.instances_on(node).is_empty());
        if !read.tenancies_here().iter().any(is_used) {
            drop(read);
            self.remove_node(node);
        }
    }

    /// Removes all imported services but these, by name without regard to case. Other tenancies are not affected.
    pub fn keep_imported(&mut self, names: &BTreeSet<String>) {
        debug_assert!(!self.tenancy.peer.is_empty(), "imports have a peer");
        let stored = self.read().imported_instances();
        for name in stored.keys().filter(|name| !names.contains(*name)) {
            self.remove_absent(name, &[]);
        }
    }

    /// Removes at most `limit` instances, or nodes without instances, that were imported from the current tenancy's peer
    /// in any namespace of the partition. Returns whether nothing is left.
    pub fn remove_imported(&mut self, limit: usize) -> bool {
        debug_assert!(!self.tenancy.peer.is_empty(), "imports have a peer");
        let mut left = limit;
        for tenancy in self.read().tenancies_here() {
            self.in_tenancy(&tenancy, |txn| {
                let rows: Vec<Arc<InstanceRow>> = txn.read().scan(&[]);
                for row in rows.iter().take(left) {
                    txn.remove_instance(&row.node, &row.instance.id);
                }
                left = left.saturating_sub(rows.len());
            });
        }
        for node in self.read().nodes().iter().take(left) {
            self.remove_node(&node.node);
            left -= 1;
        }
        left > 0
    }
}
