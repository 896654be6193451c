//! The CustomResourceDefinition of each kind, from the types of [`super::spec`].
//!
//! The schemas are structural and contain every rule that concerns a single resource. The servers
//! check the rest, and the resource's condition reports their errors. No webhook is needed.
//!
//! The chart has them in `crds/`: Helm installs these first and never removes them, because all
//! resources of a kind are deleted with its definition. Helm also skips definitions that another
//! chart has installed. Therefore an upgrade applies them in a separate step, which
//! `docs/kubernetes-config.md` shows.

use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::kinds::{GROUP, Kind, Naming, VERSION};
use super::status::Status;

/// The CustomResourceDefinition of a kind.
#[must_use]
pub fn definition(kind: &Kind) -> Value {
    let mut names = json!({
        "kind": kind.name,
        "listKind": format!("{}List", kind.name),
        "plural": kind.plural,
        "singular": kind.name.to_lowercase(),
    });
    if let Some(short_name) = kind.short_name {
        names["shortNames"] = json!([short_name]);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{GROUP}", kind.plural),
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
                "additionalPrinterColumns": columns(),
                "schema": { "openAPIV3Schema": schema(kind) },
            }],
        },
    })
}

fn columns() -> Value {
    json!([
        {
            "name": "Synced",
            "type": "string",
            "description": "Whether the servers have the resource's config entry",
            "jsonPath": ".status.conditions[?(@.type==\"Synced\")].status",
        },
        {
            "name": "Last Synced",
            "type": "date",
            "description": "When the config entry was last synchronized",
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
    let spec = structural(kind.schema);
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
        root["x-kubernetes-validations"] = json!([{
            "rule": format!("self.metadata.name == '{name}'"),
            "message": format!("the only {} is named {name}", kind.name),
        }]);
    }
    root
}

/// A type's schema in the form that the API server requires.
fn structural(schema: fn(&mut SchemaGenerator) -> Schema) -> Value {
    let mut generator = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .into_generator();
    let mut schema = schema(&mut generator);
    let transforms: [&mut dyn schemars::transform::Transform; 4] = [
        &mut AddNullable::default(),
        &mut StructuralSchemaRewriter,
        &mut OptionalEnum,
        &mut OptionalIntOrString,
    ];
    for transform in transforms {
        transform.transform(&mut schema);
    }
    let mut schema = schema.to_value();
    tidy(&mut schema);
    schema
}

/// Removes the parts of the schema that Rust's types add and the API server does not support:
/// nullability of optional fields, formats such as `uint32`, and titles.
fn tidy(schema: &mut Value) {
    let Value::Object(fields) = schema else {
        return;
    };
    fields.remove("nullable");
    fields.remove("title");
    fields.remove("default");
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    match fields.get("format").and_then(Value::as_str) {
        Some("uint32") => {
            fields.insert("format".into(), "int64".into());
            fields.entry("maximum").or_insert_with(|| u32::MAX.into());
        }
        Some("uint64") => {
            fields.insert("format".into(), "int64".into());
        }
        _ => {}
    }
    for key in ["minimum", "maximum"] {
        whole(fields, key);
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(tidy);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(key) {
            tidy(inner);
        }
    }
}

/// Writes a bound as an integer: `0` instead of `0.0`.
fn whole(fields: &mut Map<String, Value>, key: &str) {
    let Some(bound) = fields.get(key).and_then(Value::as_f64) else {
        return;
    };
    if bound.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&bound) {
        fields.insert(key.into(), json!(bound as u64));
    }
}
