//! What other clusters export to this one: rows of the catalog in tenancies with a peer, see
//! [`Tenancy::of_peer`](legate_model::Tenancy::of_peer).
//!
//! Getters read them with a tenancy of the peer, and never without. The peering that imports is their only writer: each
//! write concerns the current tenancy, which has to be one of a peer, and no row of this cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_model::{CheckServiceNode, HealthCheck, Node, ServiceInstance, Tenancy};

use crate::key::{Key, Table, fold};
use crate::read::ReadTxn;
use crate::registration::Registration;
use crate::rejected::Rejected;
use crate::rows::InstanceRow;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// How many instances of a service are imported into the current tenancy.
    pub fn count_of_imported(&self, service: &str) -> usize {
        let of_service = self.key(Table::InstancesByService, &[service]);
        self.state.found_below(&of_service).count()
    }

    /// Whether an instance is on a node, in any namespace.
    fn is_node_used(&self, node: &str) -> bool {
        let is_used = |tenancy: &Tenancy| {
            let on_node = Key::new(Table::Instances, tenancy, &[node]);
            self.state.below(&on_node).next().is_some()
        };
        self.tenancies_here().iter().any(is_used)
    }

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
        self.trim_imported(service, instances, usize::MAX);
        self.add_imported(instances)
    }

    /// Upserts imported instances.
    ///
    /// # Errors
    /// As [`Self::put_imported`].
    pub fn add_imported(&mut self, instances: &[CheckServiceNode]) -> Result<(), Rejected> {
        debug_assert!(!self.tenancy.peer.is_empty(), "imports have a peer");
        for CheckServiceNode {
            node,
            service,
            checks,
        } in instances
        {
            let checks = checks.iter().map(|check| HealthCheck::clone(check));
            self.register(Registration {
                node: Node::clone(node),
                service: Some(ServiceInstance::clone(service)),
                checks: checks.collect(),
                skip_node_update: false,
            })?;
        }
        Ok(())
    }

    /// Removes the stored instances of a service and their checks that are not among these: about `limit` rows at most.
    /// Returns whether nothing is left to remove.
    pub fn trim_imported(
        &mut self,
        service: &str,
        instances: &[CheckServiceNode],
        limit: usize,
    ) -> bool {
        debug_assert!(!self.tenancy.peer.is_empty(), "imports have a peer");
        let kept = Kept::of(instances);
        let (mut left, mut nodes) = (limit, BTreeSet::new());
        let mut is_done = true;
        for stored in self.read().service(service) {
            let id = id(&stored);
            let node = &stored.node.node;
            let Some(checks) = kept.instances.get(&id) else {
                if left == 0 {
                    is_done = false;
                    break;
                }
                left = left.saturating_sub(1 + stored.checks.len());
                self.remove_instance(node, &stored.service.id);
                nodes.insert(node.clone());
                continue;
            };
            for check in &stored.checks {
                let own = match check.service_id.is_empty() {
                    true => kept.nodes.get(&id.0),
                    false => Some(checks),
                };
                let check_id = fold(&check.check_id);
                if own.is_some_and(|own| own.contains(&*check_id)) {
                    continue;
                }
                if left == 0 {
                    is_done = false;
                    break;
                }
                left -= 1;
                self.remove_check(node, &check.check_id);
            }
        }
        for node in nodes {
            if !self.read().is_node_used(&node) {
                self.remove_node(&node);
            }
        }
        is_done
    }

    /// Removes the instances of all imported services but these, by name without regard to case: about `limit` rows at
    /// most. Returns whether nothing is left to remove.
    pub fn keep_imported(&mut self, names: &BTreeSet<String>, limit: usize) -> bool {
        let stored = self.read().imported_instances();
        let mut left = limit;
        for (name, count) in stored {
            if names.contains(&name) {
                continue;
            }
            if left == 0 || !self.trim_imported(&name, &[], left) {
                return false;
            }
            // Each has at least a check, as exporters send it.
            left = left.saturating_sub(2 * count);
        }
        true
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

/// The node and the id of an instance, in lower case.
fn id(instance: &CheckServiceNode) -> (String, String) {
    let node = fold(&instance.node.node).into_owned();
    (node, fold(&instance.service.id).into_owned())
}

/// What is imported of a service, by names in lower case.
#[derive(Default)]
struct Kept {
    /// The checks of each instance.
    instances: BTreeMap<(String, String), BTreeSet<String>>,
    /// The checks of each node.
    nodes: BTreeMap<String, BTreeSet<String>>,
}

impl Kept {
    fn of(instances: &[CheckServiceNode]) -> Self {
        let mut kept = Self::default();
        for instance in instances {
            let id = id(instance);
            for check in &instance.checks {
                let own = match check.service_id.is_empty() {
                    true => kept.nodes.entry(id.0.clone()).or_default(),
                    false => kept.instances.entry(id.clone()).or_default(),
                };
                own.insert(fold(&check.check_id).into_owned());
            }
            kept.instances.entry(id).or_default();
        }
        kept
    }
}
