//! A resource in, the config entry that it means out. Pure.

use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use super::kinds::{Kind, Naming};

/// Meta key that says which kind of client owns an entry.
pub const SOURCE: &str = "external-source";
/// Meta key that says the operator of which datacenter owns an entry.
pub const SOURCE_DATACENTER: &str = "consul.hashicorp.com/source-datacenter";

/// A config entry that a resource means.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its kind, such as `service-defaults`.
    pub kind: &'static str,
    /// Its name, unique within its kind.
    pub name: String,
    /// The document for `PUT /v1/config`.
    pub body: Value,
}

/// The name of the entry that a resource means; `None` where the resource does not say one.
#[must_use]
pub fn name(kind: &Kind, resource: &DynamicObject) -> Option<String> {
    match kind.naming {
        Naming::Resource => resource.metadata.name.clone(),
        Naming::Only(name) => {
            (resource.metadata.name.as_deref() == Some(name)).then(|| name.to_owned())
        }
        Naming::Destination => resource.data["spec"]["destination"]["name"]
            .as_str()
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
    }
}

/// The entry that a resource means, owned by the operator of `datacenter`.
///
/// # Errors
///
/// A text for people, where the resource has something that cannot be written: a field that this
/// version does not know, or one of another type than it should be. The schema lets neither pass,
/// so that the resource was checked with the schema of another version.
pub fn entry(
    kind: &'static Kind,
    resource: &DynamicObject,
    datacenter: &str,
) -> Result<Entry, String> {
    let name = name(kind, resource).ok_or_else(|| unnamed(kind))?;
    let spec = match &resource.data["spec"] {
        Value::Null => json!({}),
        spec => spec.clone(),
    };
    let fields = (kind.fields)(&spec)?;
    let Value::Object(mut body) = fields else {
        return Err("spec is no object".into());
    };
    if kind.naming == Naming::Destination {
        take_namespace(&mut body);
    }
    body.insert("Kind".into(), kind.entry.into());
    // The kind says it, and Consul knows no such field there.
    if kind.entry != "mesh" {
        body.insert("Name".into(), name.clone().into());
    }
    body.insert(
        "Meta".into(),
        json!({ SOURCE: "kubernetes", SOURCE_DATACENTER: datacenter }),
    );
    Ok(Entry {
        kind: kind.entry,
        name,
        body: Value::Object(body),
    })
}

/// The destination of intentions is the name of their entry, and its namespace that of the entry.
fn take_namespace(body: &mut Map<String, Value>) {
    let destination = body.remove("Destination");
    let namespace = destination.and_then(|mut it| it.get_mut("Namespace").map(Value::take));
    if let Some(namespace) = namespace {
        body.insert("Namespace".into(), namespace);
    }
}

fn unnamed(kind: &Kind) -> String {
    match kind.naming {
        Naming::Only(name) => format!("there is one {}, and its name is {name}", kind.name),
        Naming::Destination => "spec.destination.name is missing".into(),
        Naming::Resource => "the resource has no name".into(),
    }
}
