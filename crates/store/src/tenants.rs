//! Namespaces and partitions, and their removal with all of their rows. This file makes no access
//! decisions.
//!
//! The partition and namespace `default` always exist. Another one is first marked as deleted, so
//! that nothing can be written to it any more. Its rows are then removed in steps of bounded size.

use std::sync::Arc;
use std::time::SystemTime;

use legate_model::acl::{PolicyLink, RoleLink};
use legate_model::{HealthCheck, Namespace, Partition, Tenancy, TenancyName};

use crate::key::{Key, Scope};
use crate::read::ReadTxn;
use crate::rejected::{MAX_TENANTS, Rejected, TenantConflict};
use crate::rows::{FreedVirtualIpRow, InstanceRow, SessionRow, VirtualIpRow};
use crate::stored_tables::tables;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// A partition. The default one exists without a row.
    pub fn partition(&self, name: &TenancyName) -> Option<Arc<Partition>> {
        let stored = self.get(&[known(name)]);
        stored.or_else(|| name.is_default().then(|| Arc::new(Partition::builtin())))
    }

    /// All partitions, ordered by name.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        let mut all: Vec<Arc<Partition>> = self.scan(&[]);
        if !all.iter().any(|one| one.name.is_default()) {
            all.push(Arc::new(Partition::builtin()));
            all.sort_by(|a, b| a.name.cmp(&b.name));
        }
        all
    }

    /// A namespace of the current partition. The default one exists without a row.
    pub fn namespace(&self, name: &TenancyName) -> Option<Arc<Namespace>> {
        let stored = self.get(&[known(name)]);
        stored.or_else(|| name.is_default().then(|| self.builtin_namespace()))
    }

    /// All namespaces of the current partition, ordered by name.
    pub fn namespaces(&self) -> Vec<Arc<Namespace>> {
        let mut all: Vec<Arc<Namespace>> = self.scan(&[]);
        if !all.iter().any(|one| one.name.is_default()) {
            all.push(self.builtin_namespace());
            all.sort_by(|a, b| a.name.cmp(&b.name));
        }
        all
    }

    fn builtin_namespace(&self) -> Arc<Namespace> {
        Arc::new(Namespace {
            partition: self.tenancy.shown_partition(),
            ..Namespace::builtin()
        })
    }

    /// All namespaces of all partitions, the default ones first.
    pub fn tenancies(&self) -> Vec<Tenancy> {
        let partitions = self.partitions();
        let mut all: Vec<Tenancy> = partitions
            .iter()
            .flat_map(|partition| {
                let own = Tenancy::new(&partition.name, &TenancyName::default());
                self.in_tenancy(&own, ReadTxn::tenancies_here)
            })
            .collect();
        all.sort_by_key(|one| (!one.is_default_partition(), !one.is_default_namespace()));
        all
    }

    /// Reads in every namespace of every partition, and concatenates the results.
    pub fn in_every_tenancy<T>(&self, look: impl Fn(&ReadTxn<'_>) -> Vec<T>) -> Vec<T> {
        let all = self.tenancies();
        all.iter()
            .flat_map(|tenancy| self.in_tenancy(tenancy, |txn| look(txn)))
            .collect()
    }

    /// All namespaces of the current partition.
    pub fn tenancies_here(&self) -> Vec<Tenancy> {
        // Those of this cluster: a peer has none of its own here.
        let own = self.tenancy.of_peer("");
        let namespaces = self.in_tenancy(&own, ReadTxn::namespaces);
        let within = |one: &Arc<Namespace>| self.tenancy.in_namespace(&one.name);
        namespaces.iter().map(within).collect()
    }

    /// Whether the current partition and namespace exist and are not being deleted.
    ///
    /// # Errors
    /// [`TenantConflict`] names the one that does not.
    pub fn require_tenancy(&self) -> Result<(), TenantConflict> {
        let Tenancy {
            partition,
            namespace,
            ..
        } = &self.tenancy;
        let deleting = |kind, name: &str| TenantConflict::Deleting {
            kind,
            name: name.to_owned(),
        };
        if !self.tenancy.is_default_partition() {
            match self.partition(&self.tenancy.shown_partition()) {
                None => return Err(TenantConflict::NoPartition(partition.to_string())),
                Some(row) if row.deleted_at.is_some() => {
                    return Err(deleting("Partition", partition));
                }
                Some(_) => {}
            }
        }
        if !self.tenancy.is_default_namespace() {
            match self.namespace(&self.tenancy.shown_namespace()) {
                None => {
                    return Err(TenantConflict::NoNamespace {
                        namespace: namespace.to_string(),
                        partition: partition.to_string(),
                    });
                }
                Some(row) if row.deleted_at.is_some() => {
                    return Err(deleting("Namespace", namespace));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The namespaces and partitions that are marked as deleted.
    pub fn tenants_to_remove(&self) -> Vec<Tenant> {
        let mut found = Vec::new();
        for partition in self.partitions() {
            if partition.deleted_at.is_some() {
                found.push(Tenant::Partition(partition.name.clone()));
                continue;
            }
            let own = Tenancy::new(&partition.name, &TenancyName::default());
            let namespaces = self.in_tenancy(&own, ReadTxn::namespaces);
            let deleted = namespaces.iter().filter(|one| one.deleted_at.is_some());
            found.extend(deleted.map(|one| Tenant::Namespace(own.in_namespace(&one.name))));
        }
        found
    }
}

/// A namespace or a partition to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tenant {
    /// The namespace of this tenancy.
    Namespace(Tenancy),
    /// The partition of this name.
    Partition(TenancyName),
}

/// A name in the form of keys.
fn known(name: &TenancyName) -> &str {
    match name.is_empty() {
        true => legate_model::DEFAULT_TENANCY,
        false => name.as_str(),
    }
}

impl WriteTxn {
    /// Upserts a namespace of the current partition.
    ///
    /// # Errors
    /// [`Rejected::Tenant`] if its partition does not exist or one of them is being deleted, and
    /// [`Rejected::MissingLink`] if a policy or role does not exist.
    pub fn put_namespace(&mut self, mut namespace: Namespace) -> Result<Arc<Namespace>, Rejected> {
        let own = self.tenancy.of_partition();
        self.in_tenancy(&own, |txn| {
            txn.read().require_tenancy()?;
            let existing: Option<Arc<Namespace>> = txn.read().get(&[known(&namespace.name)]);
            if existing
                .as_ref()
                .is_some_and(|old| old.deleted_at.is_some())
            {
                let (kind, name) = ("Namespace", namespace.name.to_string());
                return Err(TenantConflict::Deleting { kind, name }.into());
            }
            if existing.is_none() && txn.read().scan::<Namespace>(&[]).len() >= MAX_TENANTS {
                return Err(TenantConflict::TooMany { kind: "namespace" }.into());
            }
            if let Some(acls) = &mut namespace.acls {
                acls.policy_defaults = txn.linked_policies(acls.policy_defaults.clone())?;
                acls.role_defaults = txn.linked_roles(acls.role_defaults.clone())?;
            }
            namespace.partition = txn.tenancy.shown_partition();
            namespace.deleted_at = None;
            let index = txn.index();
            namespace.create_index = existing.as_ref().map_or(index, |old| old.create_index);
            namespace.modify_index = existing.as_ref().map_or(index, |old| old.modify_index);
            if let Some(old) = existing.filter(|old| **old == namespace) {
                return Ok(old);
            }
            namespace.modify_index = index;
            let namespace = Arc::new(namespace);
            txn.put::<Namespace>(Arc::clone(&namespace));
            Ok(namespace)
        })
    }

    /// Upserts a partition.
    ///
    /// # Errors
    /// [`Rejected::Tenant`] if it is being deleted, or there are too many.
    pub fn put_partition(&mut self, mut partition: Partition) -> Result<Arc<Partition>, Rejected> {
        let existing: Option<Arc<Partition>> = self.read().get(&[known(&partition.name)]);
        if existing
            .as_ref()
            .is_some_and(|old| old.deleted_at.is_some())
        {
            let (kind, name) = ("Partition", partition.name.to_string());
            return Err(TenantConflict::Deleting { kind, name }.into());
        }
        if existing.is_none() && self.read().scan::<Partition>(&[]).len() >= MAX_TENANTS {
            return Err(TenantConflict::TooMany { kind: "partition" }.into());
        }
        partition.deleted_at = None;
        let index = self.index();
        partition.create_index = existing.as_ref().map_or(index, |old| old.create_index);
        partition.modify_index = existing.as_ref().map_or(index, |old| old.modify_index);
        if let Some(old) = existing.filter(|old| **old == partition) {
            return Ok(old);
        }
        partition.modify_index = index;
        let partition = Arc::new(partition);
        self.put::<Partition>(Arc::clone(&partition));
        Ok(partition)
    }

    /// Marks a namespace or partition as deleted. A no-op if it does not exist.
    ///
    /// # Errors
    /// [`Rejected::Tenant`] for the default ones.
    pub fn mark_deleted(&mut self, tenant: &Tenant, now: SystemTime) -> Result<(), Rejected> {
        let modify_index = self.index();
        let deleted_at = Some(now);
        match tenant {
            Tenant::Namespace(tenancy) if tenancy.is_default_namespace() => {
                return Err(TenantConflict::Builtin { kind: "Namespace" }.into());
            }
            Tenant::Partition(name) if name.is_default() => {
                return Err(TenantConflict::Builtin { kind: "Partition" }.into());
            }
            Tenant::Namespace(tenancy) => self.in_tenancy(&tenancy.of_partition(), |txn| {
                let row = txn.read().namespace(&tenancy.shown_namespace());
                if let Some(row) = row.filter(|row| row.deleted_at.is_none()) {
                    txn.put(Namespace {
                        deleted_at,
                        modify_index,
                        ..Namespace::clone(&row)
                    });
                }
            }),
            Tenant::Partition(name) => {
                let row = self.read().partition(name);
                if let Some(row) = row.filter(|row| row.deleted_at.is_none()) {
                    self.put(Partition {
                        deleted_at,
                        modify_index,
                        ..Partition::clone(&row)
                    });
                }
            }
        }
        Ok(())
    }

    /// Removes up to `limit` rows of a tenant that is marked as deleted, and with the last row the
    /// tenant. Returns whether it is done, which is also the case if the tenant is not marked.
    pub fn remove_tenant(&mut self, tenant: &Tenant, mut limit: usize) -> bool {
        match tenant {
            Tenant::Namespace(tenancy) => {
                let name = tenancy.shown_namespace();
                let marked = |txn: &Self| txn.read().namespace(&name)?.deleted_at;
                self.in_tenancy(tenancy, |txn| {
                    if marked(txn).is_none() {
                        return true;
                    }
                    if !txn.empty_namespace(&mut limit) {
                        return false;
                    }
                    txn.remove::<Namespace>(&[known(&name)])
                })
            }
            Tenant::Partition(name) => {
                let marked = self.read().partition(name).and_then(|row| row.deleted_at);
                if marked.is_none() {
                    return true;
                }
                let own = Tenancy::new(name, &TenancyName::default());
                let emptied = self.in_tenancy(&own, |txn| txn.empty_partition(&mut limit));
                emptied && self.remove::<Partition>(&[known(name)])
            }
        }
    }

    fn empty_partition(&mut self, limit: &mut usize) -> bool {
        let mut tenancies = self.read().tenancies_here();
        // Including entries for all of its namespaces.
        tenancies.push(self.read().every_namespace());
        for tenancy in tenancies {
            if !self.in_tenancy(&tenancy, |txn| txn.empty_namespace(limit)) {
                return false;
            }
        }
        self.remove_below(Scope::Partition, limit)
    }

    /// Removes rows of the current namespace. Returns whether none is left.
    fn empty_namespace(&mut self, limit: &mut usize) -> bool {
        let instances: Vec<Arc<InstanceRow>> = self.read().scan(&[]);
        for row in instances {
            if !spend(limit) {
                return false;
            }
            self.remove_instance(&row.node, &row.instance.id);
        }
        let checks: Vec<Arc<HealthCheck>> = self.read().scan(&[]);
        for check in checks {
            if !spend(limit) {
                return false;
            }
            self.remove_check(&check.node, &check.check_id);
        }
        let addresses: Vec<Arc<VirtualIpRow>> = self.read().scan(&[]);
        for row in addresses {
            if !spend(limit) {
                return false;
            }
            self.remove::<VirtualIpRow>(&[&row.service]);
            let (ip, modify_index) = (row.ip, self.index());
            self.put(FreedVirtualIpRow { ip, modify_index });
        }
        let sessions: Vec<Arc<SessionRow>> = self.read().scan(&[]);
        for row in sessions {
            if !spend(limit) {
                return false;
            }
            self.remove::<SessionRow>(&[&row.session.id]);
            self.remove_queries_of_session(&row.session.id);
        }
        self.remove_below(Scope::Namespace, limit)
    }

    /// Removes rows without dependents.
    fn remove_below(&mut self, scope: Scope, limit: &mut usize) -> bool {
        for table in tables(scope) {
            for key in self.keys_below(&Key::new(table, &self.tenancy, &[]), *limit + 1) {
                if !spend(limit) {
                    return false;
                }
                self.remove_key(key);
            }
        }
        true
    }
}

impl ReadTxn<'_> {
    /// The policies and roles that the current namespace grants to all its tokens.
    pub fn namespace_defaults(&self) -> (Vec<PolicyLink>, Vec<RoleLink>) {
        let row = self.namespace(&self.tenancy.shown_namespace());
        let acls = row.and_then(|row| row.acls.clone()).unwrap_or_default();
        (acls.policy_defaults, acls.role_defaults)
    }

    /// A namespace as returned to clients: its links have names.
    pub fn named_defaults(&self, namespace: &Namespace) -> Namespace {
        let mut shown = namespace.clone();
        let Some(acls) = &mut shown.acls else {
            return shown;
        };
        self.in_tenancy(&self.tenancy.of_partition(), |txn| {
            let policy = |link: &PolicyLink| {
                let name = txn.policy(&link.id)?.name.clone();
                let id = link.id.clone();
                Some(PolicyLink { id, name })
            };
            let role = |link: &RoleLink| {
                let name = txn.role(&link.id)?.name.clone();
                let id = link.id.clone();
                Some(RoleLink { id, name })
            };
            // Dangling links are removed.
            acls.policy_defaults = acls.policy_defaults.iter().filter_map(policy).collect();
            acls.role_defaults = acls.role_defaults.iter().filter_map(role).collect();
        });
        shown
    }
}

/// Uses one removal of the step's limit. Returns whether there was one left.
fn spend(limit: &mut usize) -> bool {
    match limit.checked_sub(1) {
        None => false,
        Some(left) => {
            *limit = left;
            true
        }
    }
}
