//! Nodes, instances and checks. This file makes no access decisions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use legate_model::{
    CheckServiceNode, CheckStatus, HealthCheck, Node, ServiceInstance, ServiceKind, ServiceName,
    Tenancy,
};

use crate::key::{Table, fold};
use crate::read::ReadTxn;
use crate::registration::{Deregistration, Registration};
use crate::rejected::Rejected;
use crate::rows::{AgentCheckRow, FileServiceRow, InstanceRow};
use crate::write::WriteTxn;

/// The node check that an agent maintains while the node is registered.
const AGENT_CHECK: &str = "serfHealth";

impl ReadTxn<'_> {
    /// A node by name.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.get(&[name])
    }

    /// A node by id.
    pub fn node_by_id(&self, id: &str) -> Option<Arc<Node>> {
        self.find(self.key(Table::NodeIds, &[id]))
    }

    /// The first node, by name, with this IP address that `accept` accepts.
    pub fn node_at(&self, ip: IpAddr, accept: impl FnMut(&Node) -> bool) -> Option<Arc<Node>> {
        self.find_first(Table::NodesByAddress, &[&ip.to_string()], accept)
    }

    /// The first instance, by node and id, with this IP address of its own that `accept` accepts.
    /// `accept` also receives the node's name.
    pub fn instance_at(
        &self,
        ip: IpAddr,
        mut accept: impl FnMut(&str, &ServiceInstance) -> bool,
    ) -> Option<Arc<ServiceInstance>> {
        let accept = |row: &InstanceRow| accept(&row.node, &row.instance);
        let row = self.find_first(Table::InstancesByAddress, &[&ip.to_string()], accept);
        row.map(|row| Arc::clone(&row.instance))
    }

    /// All nodes, ordered by name.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.scan(&[])
    }

    /// One instance with its node and checks.
    pub fn instance(&self, node: &str, id: &str) -> Option<CheckServiceNode> {
        let row: Arc<InstanceRow> = self.get(&[node, id])?;
        self.note(self.key(Table::ChecksByOwner, &[node, id]));
        self.assemble(&row)
    }

    /// The instances on a node, ordered by id.
    pub fn instances_on(&self, node: &str) -> Vec<Arc<ServiceInstance>> {
        let rows: Vec<Arc<InstanceRow>> = self.scan(&[node]);
        rows.iter().map(|row| Arc::clone(&row.instance)).collect()
    }

    /// All instances with their node names, ordered by node and id.
    pub fn instances_with_nodes(&self) -> Vec<(String, Arc<ServiceInstance>)> {
        let rows: Vec<Arc<InstanceRow>> = self.scan(&[]);
        let named = |row: &Arc<InstanceRow>| (row.node.clone(), Arc::clone(&row.instance));
        rows.iter().map(named).collect()
    }

    /// The checks of a node itself, without those of its instances. They belong to no namespace and
    /// are visible in all of them.
    pub fn node_checks(&self, node: &str) -> Vec<Arc<HealthCheck>> {
        let look = |txn: &ReadTxn<'_>| txn.find_all(Table::ChecksByOwner, &[node, ""]);
        match self.tenancy.is_default_namespace() {
            true => look(self),
            false => self.in_tenancy(&self.tenancy.of_partition(), |txn| look(txn)),
        }
    }

    /// The checks of a node and of its instances, ordered by id.
    pub fn checks_on(&self, node: &str) -> Vec<Arc<HealthCheck>> {
        let mut all: Vec<Arc<HealthCheck>> = self.scan(&[node]);
        if !self.tenancy.is_default_namespace() {
            all.extend(self.node_checks(node));
            all.sort_by_cached_key(|check| fold(&check.check_id).into_owned());
        }
        all
    }

    /// All checks, ordered by node and id; node checks are in the default namespace.
    pub fn checks(&self) -> Vec<Arc<HealthCheck>> {
        self.scan(&[])
    }

    /// The same with all node checks, which are visible in every namespace. Those are last.
    pub fn all_checks(&self) -> Vec<Arc<HealthCheck>> {
        let mut all = self.checks();
        if !self.tenancy.is_default_namespace() {
            let of_partition = self.in_tenancy(&self.tenancy.of_partition(), ReadTxn::checks);
            let of_nodes = of_partition.into_iter();
            all.extend(of_nodes.filter(|check| check.service_id.is_empty()));
        }
        all
    }

    /// The checks of a service's instances, ordered by node and id.
    pub fn checks_of_service(&self, name: &str) -> Vec<Arc<HealthCheck>> {
        self.find_all(Table::ChecksByService, &[name])
    }

    /// One check of the node or of an instance on it.
    pub fn check(&self, node: &str, check_id: &str) -> Option<Arc<HealthCheck>> {
        let own = self.get(&[node, check_id]);
        if own.is_some() || self.tenancy.is_default_namespace() {
            return own;
        }
        let of_partition: Option<Arc<HealthCheck>> = self
            .in_tenancy(&self.tenancy.of_partition(), |txn| {
                txn.get(&[node, check_id])
            });
        of_partition.filter(|check| check.service_id.is_empty())
    }

    /// The tenancy of a check, or of a new one: node checks are in the default namespace.
    pub(crate) fn home_of_check(&self, node: &str, check_id: &str) -> Tenancy {
        let found = self.check(node, check_id);
        match found.is_some_and(|check| check.service_id.is_empty()) {
            true => self.tenancy.of_partition(),
            false => self.tenancy.clone(),
        }
    }

    /// The instances of a service, ordered by node and id.
    pub fn service(&self, name: &str) -> Vec<CheckServiceNode> {
        self.instances_by(Table::InstancesByService, name)
    }

    /// The instances through which a service is reached in the mesh, ordered by node and id: its
    /// `connect-proxy` instances and its native ones.
    pub fn connect(&self, destination: &str) -> Vec<CheckServiceNode> {
        self.instances_by(Table::InstancesByDestination, destination)
    }

    /// All instances with their nodes and checks, ordered by node and id. Records reads of the
    /// three tables, not of each row.
    pub fn instances(&self) -> Vec<CheckServiceNode> {
        let rows: Vec<Arc<InstanceRow>> = self.scan(&[]);
        let named = |node: Arc<Node>| (fold(&node.node).into_owned(), node);
        let nodes: HashMap<_, _> = self.nodes().into_iter().map(named).collect();
        let mut checks = HashMap::<_, Vec<Arc<HealthCheck>>>::new();
        for check in self.all_checks() {
            let owner = (
                fold(&check.node).into_owned(),
                fold(&check.service_id).into_owned(),
            );
            checks.entry(owner).or_default().push(check);
        }
        let with_node = |row: &Arc<InstanceRow>| {
            let node = fold(&row.node).into_owned();
            let of = |id: &str| checks.get(&(node.clone(), fold(id).into_owned()));
            let all = of("").into_iter().chain(of(&row.instance.id)).flatten();
            Some(CheckServiceNode {
                node: Arc::clone(nodes.get(&node)?),
                service: Arc::clone(&row.instance),
                checks: all.cloned().collect(),
            })
        };
        rows.iter().filter_map(with_node).collect()
    }

    /// Every service with the tags of its instances.
    pub fn services(&self) -> BTreeMap<String, Vec<String>> {
        let rows: Vec<Arc<InstanceRow>> = self.scan(&[]);
        let mut services = BTreeMap::<&str, BTreeSet<&str>>::new();
        for row in &rows {
            services
                .entry(&row.instance.service)
                .or_default()
                .extend(row.instance.tags.iter().map(String::as_str));
        }
        let owned = |tags: BTreeSet<&str>| tags.into_iter().map(str::to_owned).collect();
        services
            .into_iter()
            .map(|(name, tags)| (name.to_owned(), owned(tags)))
            .collect()
    }

    /// The names of the services that have an instance or a proxy, sorted without regard to case,
    /// each in the spelling of an instance.
    pub fn names_in_mesh(&self) -> Vec<String> {
        let instances: Vec<Arc<InstanceRow>> = self.find_all(Table::InstancesByService, &[]);
        let proxies: Vec<Arc<InstanceRow>> = self.find_all(Table::InstancesByDestination, &[]);
        let own = instances.iter().map(|row| &*row.instance.service);
        let of_proxies = proxies.iter().filter_map(|row| row.instance.destination());
        let mut names: Vec<&str> = own.chain(of_proxies).collect();
        // Each index is sorted by name, so that there is little left to sort.
        names.dedup();
        names.sort_by(|a, b| fold(a).cmp(&fold(b)));
        names.dedup_by(|a, b| fold(a) == fold(b));
        names.into_iter().map(str::to_owned).collect()
    }

    /// The names of the services with an instance of a kind, sorted.
    pub fn services_of_kind(&self, kind: ServiceKind) -> BTreeSet<String> {
        let rows: Vec<Arc<InstanceRow>> = self.scan(&[]);
        let of_kind = rows.iter().filter(|row| row.instance.kind == kind);
        of_kind.map(|row| row.instance.service.clone()).collect()
    }

    /// The instances of a kind of gateways in the current partition, ordered by namespace, name, node and id.
    pub fn gateways_of_kind(&self, kind: ServiceKind) -> Vec<CheckServiceNode> {
        let rows: Vec<Arc<InstanceRow>> = self.find_all(Table::GatewayInstances, &[kind.as_str()]);
        let name = |row: &Arc<InstanceRow>| {
            ServiceName::new(&row.instance.tenancy(), &row.instance.service)
        };
        let names: BTreeSet<_> = rows.iter().map(name).collect();
        let of = |name: ServiceName| self.in_tenancy(&name.tenancy, |txn| txn.service(&name.name));
        let found = names.into_iter().flat_map(of);
        found.filter(|one| one.service.kind == kind).collect()
    }

    /// Records one prefix for all instances, and one for the checks of each of their services, to
    /// keep the reads of a large service short.
    fn instances_by(&self, index: Table, name: &str) -> Vec<CheckServiceNode> {
        let rows: Vec<Arc<InstanceRow>> = self.find_all(index, &[name]);
        let services: BTreeSet<_> = rows.iter().map(|row| fold(&row.instance.service)).collect();
        for service in services {
            // All checks of the service are read: a check may have moved between its instances.
            self.find_all::<HealthCheck>(Table::ChecksByService, &[&service]);
        }
        rows.iter().filter_map(|row| self.assemble(row)).collect()
    }

    /// The caller has recorded reads of the instance and its checks; this records those of the
    /// node.
    fn assemble(&self, row: &InstanceRow) -> Option<CheckServiceNode> {
        let mut checks = self.node_checks(&row.node);
        let own = self.key(Table::ChecksByOwner, &[&row.node, &row.instance.id]);
        checks.extend(self.peek_all(&own));
        Some(CheckServiceNode {
            node: self.node(&row.node)?,
            service: Arc::clone(&row.instance),
            checks,
        })
    }
}

impl WriteTxn {
    /// Upserts a node, an instance on it, and checks.
    ///
    /// # Errors
    /// [`Rejected`] names the problem. The transaction must be aborted then.
    pub fn register(&mut self, registration: Registration) -> Result<(), Rejected> {
        let Registration {
            node,
            service,
            checks,
            skip_node_update,
        } = registration;
        let (name, renamed) = self.put_node(node, skip_node_update)?;
        if let Some(instance) = service {
            self.put_instance(&name, instance)?;
        }
        for check in checks {
            self.put_check(&name, check)?;
        }
        // Last, so that a service on both nodes keeps its virtual IP.
        if let Some(old) = renamed {
            self.remove_all_on(&old);
        }
        Ok(())
    }

    /// Removes an instance with its checks, a check, or a node with everything on it.
    pub fn deregister(&mut self, what: &Deregistration) {
        let named = |id: &Option<String>| id.clone().filter(|id| !id.is_empty());
        if let Some(id) = named(&what.service_id) {
            self.remove_instance(&what.node, &id);
        } else if let Some(check) = named(&what.check_id) {
            self.remove_check(&what.node, &check);
        } else {
            self.remove_node(&what.node);
        }
    }

    /// Returns the node's stored name, and its previous name if it was renamed.
    fn put_node(
        &mut self,
        mut node: Node,
        skip_update: bool,
    ) -> Result<(String, Option<String>), Rejected> {
        if node.node.is_empty() {
            return Err(Rejected::Missing {
                field: "Node",
                hint: "name the node that the registration is for",
            });
        }
        let existing = self.read().node(&node.node);
        if let Some(existing) = &existing
            && skip_update
        {
            return Ok((existing.node.clone(), None));
        }
        // A registration that precedes its node must include the node's address.
        if node.address.is_empty() && !skip_update {
            return Err(match existing {
                None => Rejected::MissingNode { node: node.node },
                Some(_) => Rejected::Missing {
                    field: "Address",
                    hint: "send the node's address, or SkipNodeUpdate to leave the node as it is",
                },
            });
        }
        if let Some(old) = existing.as_deref()
            && node.id.is_empty()
        {
            node.id = old.id.clone();
        }
        node.partition = self.tenancy.shown_partition();
        node.peer_name = self.tenancy.shown_peer();
        let holder = self.renamed(&node, existing.as_deref())?;
        let old_name = holder.as_ref().map(|holder| holder.node.clone());
        let existing = holder.or(existing);
        let index = self.index();
        node.create_index = existing.as_ref().map_or(index, |n| n.create_index);
        node.modify_index = existing.as_ref().map_or(index, |n| n.modify_index);
        let name = node.node.clone();
        if existing.as_deref() != Some(&node) {
            node.modify_index = index;
            self.put(node);
        }
        Ok((name, old_name))
    }

    /// The node with the same id and another name, if there is one. Removed here; the caller
    /// removes everything on it.
    fn renamed(
        &mut self,
        node: &Node,
        named: Option<&Node>,
    ) -> Result<Option<Arc<Node>>, Rejected> {
        if node.id.is_empty() {
            return Ok(None);
        }
        let same = |other: &Arc<Node>| fold(&other.node) == fold(&node.node);
        let holder = self.read().node_by_id(&node.id);
        let holder = holder.filter(|holder| !same(holder));
        if let Some(named) = named
            && fold(&named.id) != fold(&node.id)
            && !(named.id.is_empty() && holder.is_none())
            && self.is_alive(&named.node)
        {
            return Err(Rejected::NodeNameTaken {
                node: named.node.clone(),
                held: named.id.clone(),
                address: named.address.clone(),
                asked: node.id.clone(),
            });
        }
        if let Some(holder) = &holder {
            self.remove::<Node>(&[&holder.node]);
        }
        Ok(holder)
    }

    /// Whether an agent maintains the node's check, and it is not critical.
    fn is_alive(&self, node: &str) -> bool {
        let check = self.read().check(node, AGENT_CHECK);
        check.is_some_and(|check| check.status != CheckStatus::Critical)
    }

    pub(crate) fn put_instance(
        &mut self,
        node: &str,
        mut instance: ServiceInstance,
    ) -> Result<(), Rejected> {
        if instance.service.is_empty() {
            return Err(Rejected::Missing {
                field: "Service.Service",
                hint: "name the service that the instance belongs to",
            });
        }
        if instance.id.is_empty() {
            instance.id = instance.service.clone();
        }
        let existing: Option<Arc<InstanceRow>> = self.read().get(&[node, &instance.id]);
        let existing = existing.map(|row| Arc::clone(&row.instance));
        instance.namespace = self.tenancy.shown_namespace();
        instance.partition = self.tenancy.shown_partition();
        instance.peer_name = self.tenancy.shown_peer();
        self.tag_virtual_ip(&mut instance)?;
        let index = self.index();
        instance.create_index = existing.as_ref().map_or(index, |i| i.create_index);
        instance.modify_index = existing.as_ref().map_or(index, |i| i.modify_index);
        if existing.as_deref() == Some(&instance) {
            return Ok(());
        }
        instance.modify_index = index;
        let instance = Arc::new(instance);
        self.put(InstanceRow {
            node: node.to_owned(),
            instance: Arc::clone(&instance),
        });
        if let Some(old) = existing {
            if old.service != instance.service || old.tags != instance.tags {
                self.rename_checks(node, &instance);
            }
            self.left_by(&old);
        }
        Ok(())
    }

    /// Frees virtual IPs of the services of a changed or removed instance, if they are unused now.
    fn left_by(&mut self, instance: &ServiceInstance) {
        self.free_virtual_ip(&instance.service);
        if let Some(destination) = instance.destination() {
            self.free_virtual_ip(destination);
        }
    }

    /// Checks contain the name and tags of their service.
    fn rename_checks(&mut self, node: &str, of: &ServiceInstance) {
        for check in self.checks_of(node, &of.id) {
            self.put(HealthCheck {
                service_name: of.service.clone(),
                service_tags: of.tags.clone(),
                modify_index: self.index(),
                ..HealthCheck::clone(&check)
            });
        }
    }

    fn checks_of(&self, node: &str, id: &str) -> Vec<Arc<HealthCheck>> {
        self.read().find_all(Table::ChecksByOwner, &[node, id])
    }

    pub(crate) fn put_check(&mut self, node: &str, check: HealthCheck) -> Result<(), Rejected> {
        let home = match check.service_id.is_empty() {
            true => self.tenancy.of_partition(),
            false => self.tenancy.clone(),
        };
        self.in_tenancy(&home, |txn| txn.put_check_here(node, check))
    }

    fn put_check_here(&mut self, node: &str, mut check: HealthCheck) -> Result<(), Rejected> {
        check.namespace = self.tenancy.shown_namespace();
        check.partition = self.tenancy.shown_partition();
        check.peer_name = self.tenancy.shown_peer();
        if check.check_id.is_empty() {
            check.check_id = check.name.clone();
        }
        if check.check_id.is_empty() {
            return Err(Rejected::Missing {
                field: "Check.Name",
                hint: "give the check a name or a CheckID",
            });
        }
        if !check.node.is_empty() && fold(&check.node) != fold(node) {
            return Err(Rejected::CheckOnOtherNode {
                check: check.check_id.clone(),
                check_node: check.node.clone(),
                node: node.to_owned(),
            });
        }
        check.node = node.to_owned();
        if !check.service_id.is_empty() {
            let owner: Option<Arc<InstanceRow>> = self.read().get(&[node, &check.service_id]);
            let Some(owner) = owner else {
                return Err(Rejected::MissingService {
                    check: check.check_id.clone(),
                    service_id: check.service_id.clone(),
                    node: node.to_owned(),
                });
            };
            check.service_name = owner.instance.service.clone();
            check.service_tags = owner.instance.tags.clone();
        }
        let existing: Option<Arc<HealthCheck>> = self.read().get(&[node, &check.check_id]);
        // A check that moves to another owner is a new check.
        let existing = existing.filter(|old| fold(&old.service_id) == fold(&check.service_id));
        let index = self.index();
        check.create_index = existing.as_ref().map_or(index, |c| c.create_index);
        check.modify_index = existing.as_ref().map_or(index, |c| c.modify_index);
        if check.status == CheckStatus::Critical {
            self.end_sessions_of_check(&check);
        }
        if existing.as_deref() != Some(&check) {
            check.modify_index = index;
            self.put(check);
        }
        Ok(())
    }

    pub(crate) fn remove_instance(&mut self, node: &str, id: &str) {
        let Some(row) = self.read().get::<InstanceRow>(&[node, id]) else {
            return;
        };
        self.remove::<InstanceRow>(&[node, id]);
        self.remove::<FileServiceRow>(&[node, id]);
        for check in self.checks_of(node, id) {
            self.remove_check(node, &check.check_id);
        }
        self.left_by(&row.instance);
    }

    /// Removes a check and its definition.
    pub(crate) fn remove_check(&mut self, node: &str, check_id: &str) {
        let home = self.read().home_of_check(node, check_id);
        self.in_tenancy(&home, |txn| {
            if let Some(check) = txn.read().check(node, check_id) {
                txn.remove::<HealthCheck>(&[node, check_id]);
                txn.end_sessions_of_check(&check);
            }
            txn.remove::<AgentCheckRow>(&[node, check_id]);
        });
    }

    pub(crate) fn remove_node(&mut self, node: &str) {
        if self.remove::<Node>(&[node]) {
            self.remove_all_on(node);
        }
    }

    /// Removes everything on a node, in all namespaces of the partition.
    fn remove_all_on(&mut self, node: &str) {
        self.end_sessions_on(node);
        for tenancy in self.read().tenancies_here() {
            self.in_tenancy(&tenancy, |txn| {
                for instance in txn.read().instances_on(node) {
                    txn.remove_instance(node, &instance.id);
                }
                let left: Vec<Arc<HealthCheck>> = txn.read().scan(&[node]);
                for check in left {
                    txn.remove_check(node, &check.check_id);
                }
            });
        }
        self.remove_coordinate(node);
    }
}
