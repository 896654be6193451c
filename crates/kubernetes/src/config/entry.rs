//! Converts a resource to its config entry. Pure.

use kube::core::DynamicObject;
use legate_model::{ConfigKind, DEFAULT_TENANCY};
use serde_json::{Map, Value, json};

use super::kinds::{Kind, Naming};
use super::schema;
use crate::tenancy::Tenants;

/// Meta key with the kind of client that owns an entry.
pub const SOURCE: &str = "external-source";
/// Meta key with the datacenter of the operator that owns an entry.
pub const SOURCE_DATACENTER: &str = "consul.hashicorp.com/source-datacenter";

/// The config entry of a resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its kind, such as `service-defaults`.
    pub kind: &'static str,
    /// Its name, unique within its kind and namespace.
    pub name: String,
    /// Its namespace in the mesh; `None` if namespaces are not used.
    pub namespace: Option<String>,
    /// Its partition; `None` is the default one.
    pub partition: Option<String>,
    /// The document for `PUT /v1/config`.
    pub body: Value,
}

/// The key of an entry among those of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its namespace in the mesh; `None` if namespaces are not used.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// The place of a resource's entry; `None` if the resource has no name for it, or sets a namespace
/// although none are used.
#[must_use]
pub fn place(kind: &Kind, resource: &DynamicObject, tenants: &Tenants) -> Option<Place> {
    let name = name(kind, resource, tenants)?;
    let kubernetes = resource.metadata.namespace.as_deref().unwrap_or_default();
    let own = || tenants.namespace(kubernetes);
    let namespace = match kind.naming {
        _ if kind.entry.is_of_partition() => tenants.default_namespace(),
        Naming::Destination => match named_namespace(resource) {
            Some(named) if tenants.has_namespaces() => Some(named),
            Some(named) if named != DEFAULT_TENANCY => return None,
            _ => own(),
        },
        _ => own(),
    };
    Some(Place { namespace, name })
}

/// The namespace that the resource sets for its destination, as servers store it.
fn named_namespace(resource: &DynamicObject) -> Option<String> {
    let named = resource.data["spec"]["destination"]["namespace"].as_str();
    let named = named.filter(|name| !name.is_empty());
    named.map(str::to_ascii_lowercase)
}

/// The name of a resource's entry; `None` if the resource does not set one.
#[must_use]
pub fn name(kind: &Kind, resource: &DynamicObject, tenants: &Tenants) -> Option<String> {
    let own = resource.metadata.name.as_ref();
    match kind.naming {
        Naming::Resource => own.cloned(),
        Naming::Only(name) => own.filter(|own| *own == name).cloned(),
        Naming::Partition => own.filter(|own| *own == partition(tenants)).cloned(),
        Naming::Destination => resource.data["spec"]["destination"]["name"]
            .as_str()
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
    }
}

/// The name of the cluster's partition.
fn partition(tenants: &Tenants) -> &str {
    tenants.partition().unwrap_or(DEFAULT_TENANCY)
}

/// The entry of a resource, owned by the operator of `datacenter`. References without namespace or
/// partition refer to those of the entry.
///
/// # Errors
///
/// A message for the user, if the resource has something that cannot be written: an unknown field or one
/// of another type (possible only if the resource was checked with the schema of another version), or a
/// destination in a namespace although none are used.
pub fn entry(
    kind: &'static Kind,
    resource: &DynamicObject,
    datacenter: &str,
    tenants: &Tenants,
) -> Result<Entry, String> {
    let Place { namespace, name } =
        place(kind, resource, tenants).ok_or_else(|| no_place(kind, resource, tenants))?;
    let spec = match &resource.data["spec"] {
        Value::Null => json!({}),
        spec => spec.clone(),
    };
    let Value::Object(mut body) = schema::entry_value(&kind.spec, "spec", &spec)? else {
        return Err("spec is not an object".into());
    };
    if kind.naming == Naming::Destination {
        take_namespace(&mut body);
    }
    if let Some(namespace) = &namespace {
        body.insert("Namespace".into(), namespace.as_str().into());
    }
    body.insert("Kind".into(), kind.entry.as_str().into());
    // The kind implies the name, and Consul has no such field there.
    if kind.entry != ConfigKind::Mesh {
        body.insert("Name".into(), name.clone().into());
    }
    body.insert(
        "Meta".into(),
        json!({ SOURCE: "kubernetes", SOURCE_DATACENTER: datacenter }),
    );
    Ok(Entry {
        kind: kind.entry.as_str(),
        name,
        namespace,
        partition: tenants.partition().map(str::to_owned),
        body: Value::Object(body),
    })
}

/// Moves the namespace of the destination of intentions, which is the entry's namespace, to the entry.
fn take_namespace(body: &mut Map<String, Value>) {
    let destination = body.remove("Destination");
    let namespace = destination.and_then(|mut it| it.get_mut("Namespace").map(Value::take));
    if let Some(namespace) = namespace {
        body.insert("Namespace".into(), namespace);
    }
}

/// The reason why a resource has no entry.
fn no_place(kind: &Kind, resource: &DynamicObject, tenants: &Tenants) -> String {
    let one = |name: &str| format!("the only {} is named {name}", kind.name);
    match kind.naming {
        Naming::Destination if name(kind, resource, tenants).is_some() => {
            "spec.destination.namespace requires namespaces in the mesh: set global.enableConsulNamespaces, \
             or remove it"
                .into()
        }
        Naming::Only(name) => one(name),
        Naming::Partition => one(partition(tenants)),
        Naming::Destination => "spec.destination.name is missing".into(),
        Naming::Resource => "the resource has no name".into(),
    }
}
