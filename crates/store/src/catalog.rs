//! Nodes, instances and checks, with the indexes to find them by. Knows nothing of who is allowed
//! to see them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use legate_model::{CheckServiceNode, HealthCheck, Node, ServiceInstance};

use crate::apply::Changes;
use crate::command::{Deregistration, Registration, Rejected};
use crate::topic::{Topic, fold};

/// A name as the tables spell it.
pub(crate) type Key = Arc<str>;
/// A node and the id of an instance on it.
type InstanceKey = (Key, Key);

/// The catalog's tables. Cloning is cheap: clones share what they have in common.
#[derive(Clone, Default)]
pub(crate) struct Catalog {
    nodes: OrdMap<Key, Arc<Node>>,
    /// Node id to node name.
    node_ids: OrdMap<Key, Key>,
    instances: OrdMap<InstanceKey, Arc<ServiceInstance>>,
    /// Service name, node, instance id.
    by_service: OrdSet<(Key, Key, Key)>,
    /// The service reached through an instance in the mesh, node, instance id.
    by_destination: OrdSet<(Key, Key, Key)>,
    /// Node, instance id (empty for checks of the node itself), check id.
    checks: OrdMap<(Key, Key, Key), Arc<HealthCheck>>,
    /// Node and check id to the instance id of the check.
    check_owners: OrdMap<InstanceKey, Key>,
}

// Reading.
impl Catalog {
    pub(crate) fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(&fold(name))
    }

    pub(crate) fn node_by_id(&self, id: &str) -> Option<&Arc<Node>> {
        self.nodes.get(self.node_ids.get(&fold(id))?)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    pub(crate) fn instance(&self, node: &str, id: &str) -> Option<CheckServiceNode> {
        self.assemble(&fold(node), &fold(id))
    }

    pub(crate) fn instances_on(&self, node: &str) -> impl Iterator<Item = &Arc<ServiceInstance>> {
        self.instances_of(fold(node)).map(|(_, instance)| instance)
    }

    /// The checks of a node itself, or of one instance on it.
    pub(crate) fn checks_of(&self, node: &str, id: &str) -> Vec<Arc<HealthCheck>> {
        self.checks_with(&fold(node), &fold(id)).cloned().collect()
    }

    pub(crate) fn check(&self, node: &str, check: &str) -> Option<&Arc<HealthCheck>> {
        let (node, check) = (fold(node), fold(check));
        let owner = self.check_owners.get(&(node.clone(), check.clone()))?;
        self.checks.get(&(node, owner.clone(), check))
    }

    pub(crate) fn service(&self, name: &str) -> Vec<CheckServiceNode> {
        self.found_by(&self.by_service, fold(name))
    }

    pub(crate) fn connect(&self, destination: &str) -> Vec<CheckServiceNode> {
        self.found_by(&self.by_destination, fold(destination))
    }

    /// Every service with the tags of its instances.
    pub(crate) fn services(&self) -> BTreeMap<String, Vec<String>> {
        let mut services = BTreeMap::<&str, BTreeSet<&str>>::new();
        for instance in self.instances.values() {
            services
                .entry(&instance.service)
                .or_default()
                .extend(instance.tags.iter().map(String::as_str));
        }
        let owned = |tags: BTreeSet<&str>| tags.into_iter().map(str::to_owned).collect();
        services
            .into_iter()
            .map(|(name, tags)| (name.to_owned(), owned(tags)))
            .collect()
    }

    /// Whether any row belongs to the topic. Only for topics of the catalog.
    pub(crate) fn has_rows(&self, topic: &Topic) -> bool {
        match topic {
            Topic::Node(name) => self.nodes.contains_key(name),
            Topic::Service(name) => first_of(&self.by_service, name.clone()).is_some(),
            Topic::Connect(name) => first_of(&self.by_destination, name.clone()).is_some(),
            Topic::Instance { node, id } => {
                self.instances.contains_key(&(node.clone(), id.clone()))
            }
            _ => true,
        }
    }

    fn found_by(&self, index: &OrdSet<(Key, Key, Key)>, name: Key) -> Vec<CheckServiceNode> {
        rows_of(index, name)
            .filter_map(|(_, node, id)| self.assemble(node, id))
            .collect()
    }

    fn assemble(&self, node: &Key, id: &Key) -> Option<CheckServiceNode> {
        let service = self.instances.get(&(node.clone(), id.clone()))?.clone();
        let of_node = self.checks_with(node, &Key::from(""));
        Some(CheckServiceNode {
            node: self.nodes.get(node)?.clone(),
            service,
            checks: of_node.chain(self.checks_with(node, id)).cloned().collect(),
        })
    }

    fn checks_with<'a>(
        &'a self,
        node: &Key,
        id: &Key,
    ) -> impl Iterator<Item = &'a Arc<HealthCheck>> + use<'a> {
        let (node, id) = (node.clone(), id.clone());
        self.checks
            .range((node.clone(), id.clone(), Key::from(""))..)
            .take_while(move |((of, owner, _), _)| *of == node && *owner == id)
            .map(|(_, check)| check)
    }

    fn instances_of(
        &self,
        node: Key,
    ) -> impl Iterator<Item = (&InstanceKey, &Arc<ServiceInstance>)> {
        self.instances
            .range((node.clone(), Key::from(""))..)
            .take_while(move |((of, _), _)| *of == node)
    }
}

fn rows_of(index: &OrdSet<(Key, Key, Key)>, name: Key) -> impl Iterator<Item = &(Key, Key, Key)> {
    index
        .range((name.clone(), Key::from(""), Key::from(""))..)
        .take_while(move |(of, _, _)| *of == name)
}

fn first_of(index: &OrdSet<(Key, Key, Key)>, name: Key) -> Option<&(Key, Key, Key)> {
    rows_of(index, name).next()
}

// Changing. On an error the caller throws this copy away.
impl Catalog {
    pub(crate) fn register(
        &mut self,
        registration: Registration,
        changes: &mut Changes,
    ) -> Result<(), Rejected> {
        let Registration {
            node,
            service,
            checks,
            skip_node_update,
        } = registration;
        let name = node.node.clone();
        let key = self.put_node(node, skip_node_update, changes)?;
        if let Some(instance) = service {
            self.put_instance(&key, instance, changes)?;
        }
        for check in checks {
            self.put_check(&key, &name, check, changes)?;
        }
        Ok(())
    }

    pub(crate) fn deregister(&mut self, what: &Deregistration, changes: &mut Changes) {
        let node = fold(&what.node);
        let named = |id: &Option<String>| id.as_deref().filter(|id| !id.is_empty()).map(fold);
        if let Some(id) = named(&what.service_id) {
            self.remove_instance(&node, &id, changes);
        } else if let Some(check) = named(&what.check_id) {
            self.remove_check(&node, &check, changes);
        } else {
            self.remove_node(&node, changes);
        }
    }

    fn put_node(
        &mut self,
        mut node: Node,
        skip_update: bool,
        changes: &mut Changes,
    ) -> Result<Key, Rejected> {
        if node.node.is_empty() {
            return Err(Rejected::Missing {
                field: "Node",
                hint: "name the node that the registration is for",
            });
        }
        let key = fold(&node.node);
        let existing = self.nodes.get(&key).cloned();
        if skip_update && existing.is_some() {
            return Ok(key);
        }
        if node.address.is_empty() {
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
        self.refuse_foreign_id(&key, &node, existing.as_deref())?;
        node.create_index = existing.as_ref().map_or(changes.index, |n| n.create_index);
        node.modify_index = existing.as_ref().map_or(changes.index, |n| n.modify_index);
        if existing.as_deref() == Some(&node) {
            return Ok(key);
        }
        node.modify_index = changes.index;
        if !node.id.is_empty() {
            self.node_ids.insert(fold(&node.id), key.clone());
        }
        self.nodes.insert(key.clone(), Arc::new(node));
        changes.touch(Topic::Nodes);
        self.touch_node(&key, changes);
        Ok(key)
    }

    fn refuse_foreign_id(
        &self,
        key: &Key,
        node: &Node,
        existing: Option<&Node>,
    ) -> Result<(), Rejected> {
        if node.id.is_empty() {
            return Ok(());
        }
        if let Some(held) = existing.map(|old| &old.id)
            && !held.is_empty()
            && fold(held) != fold(&node.id)
        {
            return Err(Rejected::NodeNameTaken {
                node: node.node.clone(),
                held: held.clone(),
                asked: node.id.clone(),
            });
        }
        match self.node_ids.get(&fold(&node.id)) {
            Some(holder) if holder != key => Err(Rejected::NodeIdTaken {
                id: node.id.clone(),
                holder: self
                    .nodes
                    .get(holder)
                    .map_or_else(|| holder.to_string(), |n| n.node.clone()),
                node: node.node.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn put_instance(
        &mut self,
        node: &Key,
        mut instance: ServiceInstance,
        changes: &mut Changes,
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
        let key = (node.clone(), fold(&instance.id));
        let existing = self.instances.get(&key).cloned();
        instance.create_index = existing.as_ref().map_or(changes.index, |i| i.create_index);
        instance.modify_index = existing.as_ref().map_or(changes.index, |i| i.modify_index);
        if existing.as_deref() == Some(&instance) {
            return Ok(());
        }
        instance.modify_index = changes.index;
        let listed_anew = existing
            .as_deref()
            .is_none_or(|old| old.service != instance.service || old.tags != instance.tags);
        if listed_anew {
            changes.touch(Topic::Services);
        }
        if let Some(old) = &existing {
            touch_instance(&key, old, changes);
            self.unindex(&key, old);
        }
        self.by_service.insert(row(fold(&instance.service), &key));
        if let Some(destination) = instance.destination() {
            self.by_destination.insert(row(fold(destination), &key));
        }
        touch_instance(&key, &instance, changes);
        let instance = Arc::new(instance);
        self.instances.insert(key.clone(), instance.clone());
        if listed_anew && existing.is_some() {
            self.rename_checks(&key, &instance, changes.index);
        }
        Ok(())
    }

    /// Checks carry the name and tags of their service.
    fn rename_checks(&mut self, (node, id): &InstanceKey, of: &ServiceInstance, index: u64) {
        let old: Vec<_> = self.checks_with(node, id).cloned().collect();
        for check in old {
            let mut check = HealthCheck::clone(&check);
            let key = (node.clone(), id.clone(), fold(&check.check_id));
            check.service_name = of.service.clone();
            check.service_tags = of.tags.clone();
            check.modify_index = index;
            self.checks.insert(key, Arc::new(check));
        }
    }

    fn put_check(
        &mut self,
        node: &Key,
        node_name: &str,
        mut check: HealthCheck,
        changes: &mut Changes,
    ) -> Result<(), Rejected> {
        if check.check_id.is_empty() {
            check.check_id = check.name.clone();
        }
        if check.check_id.is_empty() {
            return Err(Rejected::Missing {
                field: "Check.Name",
                hint: "give the check a name or a CheckID",
            });
        }
        if !check.node.is_empty() && fold(&check.node) != *node {
            return Err(Rejected::CheckOnOtherNode {
                check: check.check_id.clone(),
                check_node: check.node.clone(),
                node: node_name.to_owned(),
            });
        }
        check.node = node_name.to_owned();
        let owner = fold(&check.service_id);
        if !owner.is_empty() {
            let Some(instance) = self.instances.get(&(node.clone(), owner.clone())) else {
                return Err(Rejected::MissingService {
                    check: check.check_id.clone(),
                    service_id: check.service_id.clone(),
                    node: node_name.to_owned(),
                });
            };
            check.service_name = instance.service.clone();
            check.service_tags = instance.tags.clone();
        }
        let id = fold(&check.check_id);
        let moved_from = self
            .check_owners
            .get(&(node.clone(), id.clone()))
            .filter(|previous| **previous != owner)
            .cloned();
        if moved_from.is_some() {
            self.remove_check(node, &id, changes);
        }
        let key = (node.clone(), owner.clone(), id.clone());
        let existing = self.checks.get(&key);
        check.create_index = existing.map_or(changes.index, |c| c.create_index);
        check.modify_index = existing.map_or(changes.index, |c| c.modify_index);
        if existing.is_some_and(|old| **old == check) {
            return Ok(());
        }
        check.modify_index = changes.index;
        self.checks.insert(key, Arc::new(check));
        self.check_owners.insert((node.clone(), id), owner.clone());
        self.touch_owner(node, &owner, changes);
        Ok(())
    }

    fn remove_check(&mut self, node: &Key, check: &Key, changes: &mut Changes) {
        let Some(owner) = self.check_owners.remove(&(node.clone(), check.clone())) else {
            return;
        };
        self.checks
            .remove(&(node.clone(), owner.clone(), check.clone()));
        self.touch_owner(node, &owner, changes);
    }

    fn remove_instance(&mut self, node: &Key, id: &Key, changes: &mut Changes) {
        let key = (node.clone(), id.clone());
        let Some(old) = self.instances.remove(&key) else {
            return;
        };
        self.unindex(&key, &old);
        self.drop_checks(node, Some(id));
        changes.touch(Topic::Services);
        touch_instance(&key, &old, changes);
    }

    fn remove_node(&mut self, node: &Key, changes: &mut Changes) {
        let Some(old) = self.nodes.remove(node) else {
            return;
        };
        self.node_ids.remove(&fold(&old.id));
        changes.touch(Topic::Nodes);
        changes.touch(Topic::Node(node.clone()));
        let on_it: Vec<Key> = self
            .instances_of(node.clone())
            .map(|((_, id), _)| id.clone())
            .collect();
        for id in on_it {
            self.remove_instance(node, &id, changes);
        }
        self.drop_checks(node, None);
    }

    /// Removes the checks of one instance, or all that are left on the node.
    fn drop_checks(&mut self, node: &Key, id: Option<&Key>) {
        let start = (node.clone(), id.cloned().unwrap_or_default(), Key::from(""));
        let gone: Vec<_> = self
            .checks
            .range(start..)
            .map(|(key, _)| key.clone())
            .take_while(|(of, owner, _)| of == node && id.is_none_or(|id| id == owner))
            .collect();
        for key in gone {
            self.checks.remove(&key);
            self.check_owners.remove(&(key.0, key.2));
        }
    }

    fn unindex(&mut self, key: &InstanceKey, old: &ServiceInstance) {
        self.by_service.remove(&row(fold(&old.service), key));
        if let Some(destination) = old.destination() {
            self.by_destination.remove(&row(fold(destination), key));
        }
    }

    /// A node's own row or checks changed: so did everything that is read together with it.
    fn touch_node(&self, node: &Key, changes: &mut Changes) {
        changes.touch(Topic::Node(node.clone()));
        for (key, instance) in self.instances_of(node.clone()) {
            touch_instance(key, instance, changes);
        }
    }

    fn touch_owner(&self, node: &Key, owner: &Key, changes: &mut Changes) {
        if owner.is_empty() {
            return self.touch_node(node, changes);
        }
        let key = (node.clone(), owner.clone());
        if let Some(instance) = self.instances.get(&key) {
            touch_instance(&key, instance, changes);
        }
    }
}

fn row(name: Key, (node, id): &InstanceKey) -> (Key, Key, Key) {
    (name, node.clone(), id.clone())
}

fn touch_instance((node, id): &InstanceKey, instance: &ServiceInstance, changes: &mut Changes) {
    changes.touch(Topic::Node(node.clone()));
    changes.touch(Topic::Instance {
        node: node.clone(),
        id: id.clone(),
    });
    changes.touch(Topic::Service(fold(&instance.service)));
    if let Some(destination) = instance.destination() {
        changes.touch(Topic::Connect(fold(destination)));
    }
}
