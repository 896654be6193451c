//! The CustomResourceDefinition of each kind, from the type of its config entry.
//!
//! The schemas are structural and contain every rule that concerns a single resource. The servers
//! check the rest, and the resource's condition reports their errors. No webhook is needed.
//!
//! The chart has them in `crds/`: Helm installs these first and never removes them, because all
//! resources of a kind are deleted with its definition. Helm also skips definitions that another
//! chart has installed. Therefore an upgrade applies them in a separate step, which
//! `docs/kubernetes-config.md` shows.

use schemars::JsonSchema;
use serde_json::{Value, json};

use super::kinds::{GROUP, Kind, Naming, VERSION};
use super::schema::{RULES, published, structural};
use super::status::Status;

/// The CustomResourceDefinition of a kind.
#[must_use]
pub fn definition(kind: &Kind) -> Value {
    let names = Names {
        kind: kind.name,
        plural: kind.plural,
        short: kind.short_name,
    };
    custom_resource(
        &names,
        columns("config entry", "synchronized"),
        &schema(kind),
    )
}

/// The names of a kind in Kubernetes.
pub(crate) struct Names {
    pub(crate) kind: &'static str,
    /// In URLs.
    pub(crate) plural: &'static str,
    /// For `kubectl get`.
    pub(crate) short: Option<&'static str>,
}

/// The CustomResourceDefinition of a kind whose resources have this schema.
pub(crate) fn custom_resource(of: &Names, columns: Value, schema: &Value) -> Value {
    let mut names = json!({
        "kind": of.kind,
        "listKind": format!("{}List", of.kind),
        "plural": of.plural,
        "singular": of.kind.to_lowercase(),
    });
    if let Some(short_name) = of.short {
        names["shortNames"] = json!([short_name]);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{GROUP}", of.plural),
            "labels": { "app.kubernetes.io/part-of": "legate" },
        },
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Namespaced",
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns,
                "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}

/// The columns of `kubectl get` for resources with the condition `Synced`: what the servers have, and what was done
/// then.
pub(crate) fn columns(what: &str, done: &str) -> Value {
    json!([
        {
            "name": "Synced",
            "type": "string",
            "description": format!("Whether the servers have the resource's {what}"),
            "jsonPath": ".status.conditions[?(@.type==\"Synced\")].status",
        },
        {
            "name": "Last Synced",
            "type": "date",
            "description": format!("When the {what} was last {done}"),
            "jsonPath": ".status.lastSyncedTime",
        },
        {
            "name": "Age",
            "type": "date",
            "description": "Age of the resource",
            "jsonPath": ".metadata.creationTimestamp",
        },
    ])
}

/// The schema of a whole resource.
fn schema(kind: &Kind) -> Value {
    let spec = published(kind.spec.clone());
    let mut root = json!({
        "type": "object",
        "description": spec["description"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": spec,
            "status": structural(Status::json_schema),
        },
    });
    if root["properties"]["spec"].get("required").is_some() {
        root["required"] = json!(["spec"]);
    }
    if let Naming::Only(name) = kind.naming {
        root[RULES] = json!([{
            "rule": format!("self.metadata.name == '{name}'"),
            "message": format!("the only {} is named {name}", kind.name),
        }]);
    }
    root
}
