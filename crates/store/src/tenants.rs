//! Namespaces and partitions: which there are, and how one goes with all that is in it. Who may make
//! or remove one is decided elsewhere.
//!
//! Partition and namespace `default` are always there. Removing another one is marked first; from then
//! on nothing can be written to it, and its rows go in steps of a bounded size.

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
    /// A partition. The default one is there also when nobody has written it.
    pub fn partition(&self, name: &TenancyName) -> Option<Arc<Partition>> {
        let stored = self.get(&[known(name)]);
        stored.or_else(|| name.is_default().then(|| Arc::new(Partition::builtin())))
    }

    /// All partitions in the order of their names.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        let mut all: Vec<Arc<Partition>> = self.scan(&[]);
        if !all.iter().any(|one| one.name.is_default()) {
            all.push(Arc::new(Partition::builtin()));
            all.sort_by(|a, b| a.name.cmp(&b.name));
        }
        all
    }

    /// A namespace of the partition that is read. The default one is there also when nobody has
    /// written it.
    pub fn namespace(&self, name: &TenancyName) -> Option<Arc<Namespace>> {
        let stored = self.get(&[known(name)]);
        stored.or_else(|| name.is_default().then(|| self.builtin_namespace()))
    }

    /// All namespaces of the partition that is read, in the order of their names.
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

    /// Every namespace of every partition. The default ones come first among theirs.
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

    /// Looks at every namespace of every partition, and returns what was found in all.
    pub fn in_every_tenancy<T>(&self, look: impl Fn(&ReadTxn<'_>) -> Vec<T>) -> Vec<T> {
        let all = self.tenancies();
        all.iter()
            .flat_map(|tenancy| self.in_tenancy(tenancy, |txn| look(txn)))
            .collect()
    }

    /// Every namespace of the partition that is read.
    pub fn tenancies_here(&self) -> Vec<Tenancy> {
        let namespaces = self.namespaces();
        let within = |one: &Arc<Namespace>| self.tenancy.in_namespace(&one.name);
        namespaces.iter().map(within).collect()
    }

    /// Whether the partition and the namespace that are read exist, and are to stay.
    ///
    /// # Errors
    /// [`TenantConflict`] says which does not.
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

    /// The namespaces and partitions that are to go, as what they are of.
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

/// A namespace or a partition that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tenant {
    /// This one.
    Namespace(Tenancy),
    /// The one of this name.
    Partition(TenancyName),
}

/// A name as keys have it.
fn known(name: &TenancyName) -> &str {
    match name.is_empty() {
        true => legate_model::DEFAULT_TENANCY,
        false => name.as_str(),
    }
}

impl WriteTxn {
    /// Adds or replaces a namespace of the partition that is written.
    ///
    /// # Errors
    /// [`Rejected::Tenant`] when its partition does not exist or one of them is being deleted, and
    /// [`Rejected::MissingLink`] when a policy or role does not exist.
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

    /// Adds or replaces a partition.
    ///
    /// # Errors
    /// [`Rejected::Tenant`] when it is being deleted or is one too many.
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

    /// Says of a namespace or partition that it is to go. One that does not exist is no error.
    ///
    /// # Errors
    /// [`Rejected::Tenant`] for those that are always there.
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

    /// Removes some rows of what is marked, and it itself with the last of them. Says whether it is
    /// gone; it is also where it is not marked.
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
        // What is for each of its namespaces goes with it, too.
        tenancies.push(self.read().every_namespace());
        for tenancy in tenancies {
            if !self.in_tenancy(&tenancy, |txn| txn.empty_namespace(limit)) {
                return false;
            }
        }
        self.remove_below(Scope::Partition, limit)
    }

    /// Removes rows of the namespace that is written. Says whether none is left.
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

    /// Removes rows that nothing depends on any more.
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
    /// The policies and roles that the namespace which is read gives to all its tokens.
    pub fn namespace_defaults(&self) -> (Vec<PolicyLink>, Vec<RoleLink>) {
        let row = self.namespace(&self.tenancy.shown_namespace());
        let acls = row.and_then(|row| row.acls.clone()).unwrap_or_default();
        (acls.policy_defaults, acls.role_defaults)
    }

    /// A namespace as it is shown: links have names, too.
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
            // What was removed gives nothing, and is not shown.
            acls.policy_defaults = acls.policy_defaults.iter().filter_map(policy).collect();
            acls.role_defaults = acls.role_defaults.iter().filter_map(role).collect();
        });
        shown
    }
}

/// Takes one of what may be removed in one step.
fn spend(limit: &mut usize) -> bool {
    match limit.checked_sub(1) {
        None => false,
        Some(left) => {
            *limit = left;
            true
        }
    }
}
