//! The known state of the catalog on this cluster's nodes, and the owner of each instance.
//!
//! An instance belongs to this operator if it has the marks that [`super::wanted`] writes, which
//! include the uid of this cluster. All others are foreign: they are never changed or removed.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use legate_model::DEFAULT_TENANCY;
use serde_json::Value;

use super::facts::Key;

/// Meta key with the pod's name.
pub const POD_NAME: &str = "pod-name";
/// Meta key with the pod's uid.
pub const POD_UID: &str = "pod-uid";
/// Meta key with the pod's namespace.
pub const NAMESPACE: &str = "k8s-namespace";
/// Meta key with the name of the Kubernetes Service.
pub const SERVICE: &str = "k8s-service-name";
/// Meta key of instances written by this kind of integration; the value is [`MANAGED_BY_VALUE`].
pub const MANAGED_BY: &str = "managed-by";
/// consul-k8s' value, so that its command line tool and the UI recognise the instances.
pub const MANAGED_BY_VALUE: &str = "consul-k8s-endpoints-controller";
/// Meta key of nodes and instances without an agent; the value is `true`.
pub const SYNTHETIC: &str = "synthetic-node";
/// Meta key with the uid of the cluster's `kube-system` namespace, because clusters may share
/// servers. consul-k8s does not write it.
pub const CLUSTER: &str = "k8s-cluster-uid";

/// The key of an instance on its node: ids are unique within one namespace of the mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The namespace; empty if namespaces are not used.
    pub namespace: String,
    /// The instance's id.
    pub id: String,
}

impl Id {
    /// The namespace, if namespaces are used.
    #[must_use]
    pub fn in_namespace(&self) -> Option<&str> {
        Some(self.namespace.as_str()).filter(|name| !name.is_empty())
    }
}

/// The key of an instance in the catalog: node and id.
pub type InstanceKey = (String, Id);

/// An instance in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The pod of the instance, if the instance is this operator's.
    pub owner: Option<Key>,
    /// That pod's uid.
    pub uid: String,
    /// The service's name.
    pub service: String,
    /// Its [`digest`]; `None` if its state is unknown, because a write got no response.
    pub digest: Option<u64>,
    /// Status of its readiness check; `None` without a check.
    pub status: Option<String>,
}

/// A node in the catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Its instances by id.
    pub instances: BTreeMap<Id, Instance>,
    /// Whether this operator created the node and nobody else has added checks to it: then it may be
    /// removed when it has no instances.
    pub removable: bool,
}

/// The nodes read so far.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    nodes: BTreeMap<String, NodeState>,
    /// The places of each pod's instances.
    owners: BTreeMap<Key, BTreeSet<InstanceKey>>,
    /// The number of these instances.
    owned: usize,
}

impl Catalog {
    /// The instance at a place.
    #[must_use]
    pub fn instance(&self, node: &str, id: &Id) -> Option<&Instance> {
        self.nodes.get(node)?.instances.get(id)
    }

    /// A node that was read or written.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeState> {
        self.nodes.get(name)
    }

    /// The names of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys()
    }

    /// This operator's instances of a pod.
    pub fn of(&self, owner: &Key) -> impl Iterator<Item = (&InstanceKey, &Instance)> {
        let places = self.owners.get(owner).into_iter().flatten();
        places.filter_map(|place| Some((place, self.instance(&place.0, &place.1)?)))
    }

    /// The number of this operator's instances.
    #[must_use]
    pub fn owned(&self) -> usize {
        self.owned
    }

    /// All pods with instances.
    pub fn owners(&self) -> impl Iterator<Item = &Key> {
        self.owners.keys()
    }

    /// Replaces the state of a node, and returns the pods whose instances it has or had.
    pub fn replace(&mut self, name: &str, state: Option<NodeState>) -> BTreeSet<Key> {
        let mut touched = BTreeSet::new();
        let before: Vec<Id> = match self.nodes.get(name) {
            Some(node) => node.instances.keys().cloned().collect(),
            None => Vec::new(),
        };
        for id in before {
            touched.extend(self.remove(name, &id));
        }
        self.nodes.remove(name);
        let Some(state) = state else {
            return touched;
        };
        self.nodes.entry(name.to_owned()).or_default().removable = state.removable;
        for (id, instance) in state.instances {
            touched.extend(instance.owner.clone());
            self.put(name, &id, instance);
        }
        touched
    }

    /// Records that an instance was written.
    pub fn put(&mut self, node: &str, id: &Id, instance: Instance) {
        self.remove(node, id);
        if let Some(owner) = &instance.owner {
            let places = self.owners.entry(owner.clone()).or_default();
            places.insert((node.to_owned(), id.clone()));
            self.owned += 1;
        }
        let state = self.nodes.entry(node.to_owned()).or_insert(NodeState {
            removable: true,
            ..NodeState::default()
        });
        state.instances.insert(id.clone(), instance);
    }

    /// Records that an instance was removed; returns its pod.
    pub fn remove(&mut self, node: &str, id: &Id) -> Option<Key> {
        let instance = self.nodes.get_mut(node)?.instances.remove(id)?;
        let owner = instance.owner?;
        self.owned = self.owned.saturating_sub(1);
        if let Some(places) = self.owners.get_mut(&owner) {
            places.remove(&(node.to_owned(), id.clone()));
            if places.is_empty() {
                self.owners.remove(&owner);
            }
        }
        Some(owner)
    }

    /// Marks the state of an instance as unknown.
    pub fn doubt(&mut self, node: &str, id: &Id) {
        let instance = self
            .nodes
            .get_mut(node)
            .and_then(|node| node.instances.get_mut(id));
        if let Some(instance) = instance {
            instance.digest = None;
        }
    }

    /// Records that the status of an instance's check was written.
    pub fn set_status(&mut self, node: &str, id: &Id, status: &str) {
        let instance = self
            .nodes
            .get_mut(node)
            .and_then(|node| node.instances.get_mut(id));
        if let Some(instance) = instance {
            instance.status = Some(status.to_owned());
        }
    }
}

/// Hash of an instance's description, equal for equivalent descriptions. Fields that servers add, and
/// values that count as absent, are ignored.
#[must_use]
pub fn digest(service: &Value) -> u64 {
    const COMPARED: &[&str] = &[
        "Kind",
        "ID",
        "Service",
        "Tags",
        "Address",
        "TaggedAddresses",
        "Meta",
        "Port",
        "Proxy",
    ];
    let mut hasher = DefaultHasher::new();
    for name in COMPARED {
        if let Some(value) = service.get(name).and_then(clean) {
            name.hash(&mut hasher);
            value.to_string().hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The value without empty parts; `None` if nothing remains. Object keys are sorted already.
fn clean(value: &Value) -> Option<Value> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::Number(number) if number.as_f64() == Some(0.0) => None,
        Value::String(text) if text.is_empty() => None,
        Value::Array(items) if items.is_empty() => None,
        // Items are kept even if empty, because their index matters.
        Value::Array(items) => Some(
            items
                .iter()
                .map(|item| clean(item).unwrap_or(Value::Null))
                .collect(),
        ),
        Value::Object(fields) => {
            let mut kept: Vec<(String, Value)> = fields
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), clean(value)?)))
                .collect();
            kept.sort_by(|a, b| a.0.cmp(&b.0));
            (!kept.is_empty()).then(|| Value::Object(kept.into_iter().collect()))
        }
        other => Some(other.clone()),
    }
}

/// Parses a node from the responses of `/v1/catalog/node/<name>` and `/v1/health/node/<name>`; if
/// namespaces are used, from `/v1/catalog/node-services/<name>` and the latter for all namespaces.
/// `None` if the node does not exist.
#[must_use]
pub fn read(cluster: &str, node: &Value, checks: &Value, namespaces: bool) -> Option<NodeState> {
    let own = |meta: Option<&Value>, key: &str, value: &str| {
        meta.and_then(|meta| meta.get(key)?.as_str()) == Some(value)
    };
    let described = node.get("Node").filter(|node| !node.is_null())?;
    let meta = described.get("Meta");
    let checks = checks.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value, field: &str| {
        let text = value.get(field).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let node_checks = checks.iter().any(|c| text(c, "ServiceID").is_empty());
    // Servers omit the default namespace.
    let namespace = |value: &Value| match (namespaces, text(value, "Namespace")) {
        (false, _) => String::new(),
        (true, name) if name.is_empty() => DEFAULT_TENANCY.to_owned(),
        (true, name) => name,
    };
    let services: Vec<&Value> = match node.get("Services") {
        Some(Value::Object(services)) => services.values().collect(),
        Some(Value::Array(services)) => services.iter().collect(),
        _ => Vec::new(),
    };
    let instances = services.into_iter().map(|service| {
        let id = Id {
            namespace: namespace(service),
            id: text(service, "ID"),
        };
        let meta = service.get("Meta");
        let meta_text = |key: &str| meta.map(|meta| text(meta, key)).unwrap_or_default();
        let ours = own(meta, MANAGED_BY, MANAGED_BY_VALUE) && own(meta, CLUSTER, cluster);
        let key = Key::new(&meta_text(NAMESPACE), &meta_text(POD_NAME));
        let check_id = format!("{}/{}", key.namespace, id.id);
        let check = checks.iter().find(|check| {
            text(check, "ServiceID") == id.id
                && text(check, "CheckID") == check_id
                && namespace(check) == id.namespace
        });
        let instance = Instance {
            owner: (ours && !key.name.is_empty()).then_some(key),
            uid: meta_text(POD_UID),
            service: text(service, "Service"),
            digest: Some(digest(service)),
            status: check.map(|check| text(check, "Status")),
        };
        (id, instance)
    });
    Some(NodeState {
        removable: own(meta, SYNTHETIC, "true") && own(meta, CLUSTER, cluster) && !node_checks,
        instances: instances.collect(),
    })
}
