//! The `spec` of each kind: its schema, and its conversion to the fields of the config entry.
//!
//! Both follow from the type of the config entry. A field of the entry is a field of the resource, whose
//! name starts in lower case (`tlsMinVersion` for `TLSMinVersion`). Fields that only resources have are
//! added here.
//!
//! Unknown fields of a resource are refused, never dropped.

use legate_model::ConfigKind;
use legate_model::duration::{self, GoDuration};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::same::{COMPUTED, OUTER};

/// Key in schemas of fields that entries do not have: what to do instead.
const NOT_SUPPORTED: &str = "x-not-supported";

/// The schema of a kind's `spec`, with the names of the entry's fields.
pub(super) fn of_spec(kind: ConfigKind, entry: fn(&mut SchemaGenerator) -> Schema) -> Value {
    let mut schema = structural(entry);
    let fields = &mut schema["properties"];
    remove(fields, &OUTER);
    match kind {
        ConfigKind::ServiceIntentions => {
            remove(&mut fields["Sources"]["items"]["properties"], &COMPUTED);
            fields["Destination"] = intention_destination();
            schema["required"] = json!(["Destination", "Sources"]);
        }
        ConfigKind::TerminatingGateway => {
            fields["Deployment"] = json!({
                "type": "object",
                "description": "Not supported: gateways are not deployed from this resource.",
                PRESERVE: true,
                NOT_SUPPORTED: "gateways are not deployed from this resource; configure them in the \
                                chart's values and remove the field",
            });
            fields["Services"]["items"]["properties"]["SecretRef"] = json!({
                "type": "object",
                "description": "Not supported: certificates are files of the gateway's pod.",
                "properties": { "Name": { "type": "string", "description": "Its name." } },
                NOT_SUPPORTED: "mount the Secret in the gateway's pod and name its files in caFile, \
                                certFile and keyFile",
            });
        }
        _ => {}
    }
    schema
}

fn remove(fields: &mut Value, names: &[&str]) {
    if let Value::Object(fields) = fields {
        fields.retain(|name, _| !names.contains(&name.as_str()));
    }
}

/// The service that intentions are about, which the entry has as its own name and namespace.
fn intention_destination() -> Value {
    let unchanged = json!([{
        "rule": "self == oldSelf",
        "message": "the destination cannot be changed: delete this resource and create another",
    }]);
    json!({
        "type": "object",
        "description": "The called service.",
        "properties": {
            "Name": {
                "type": "string",
                "description": "Its name, or `*`.",
                "minLength": 1,
                "maxLength": 253,
                RULES: unchanged,
            },
            "Namespace": {
                "type": "string",
                "description": "Its namespace.",
                "maxLength": 253,
                RULES: unchanged,
            },
        },
        "required": ["Name"],
    })
}

/// Key of the rules that the API server validates.
pub(crate) const RULES: &str = "x-kubernetes-validations";
/// Key of objects with the user's own fields.
pub(super) const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

/// The schema of a type in the form that the API server requires.
pub(crate) fn structural(schema: fn(&mut SchemaGenerator) -> Schema) -> Value {
    let settings = SchemaSettings::default().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = schema(&mut settings.into_generator()).to_value();
    simplify(&mut schema);
    schema
}

/// Removes the parts of a schema that the API server does not support, or that come from Rust's types:
/// titles, defaults, the optional null, and the descriptions of an enum's values.
fn simplify(schema: &mut Value) {
    let Value::Object(fields) = schema else {
        return;
    };
    inner(fields).for_each(simplify);
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(variants)) = fields.remove(key) {
            for mut variant in variants {
                simplify(&mut variant);
                merge(fields, variant);
            }
        }
    }
    if let Some(value) = fields.remove("const") {
        fields.insert("enum".into(), json!([value]));
    }
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        let first = types.drain(..).find(|it| it != "null");
        fields.insert("type".into(), first.unwrap_or_default());
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    for key in ["default", "nullable", "title", "writeOnly"] {
        fields.remove(key);
    }
    number(fields);
    // The API server removes unknown fields.
    if fields.get("additionalProperties") == Some(&json!(false)) {
        fields.remove("additionalProperties");
    }
    if fields.get("additionalProperties") == Some(&json!(true)) {
        fields.remove("additionalProperties");
        fields.insert(PRESERVE.into(), json!(true));
    }
}

/// Adds the schema of one of several variants, all of the same type: a value of an enum, or the value of
/// an optional field.
fn merge(schema: &mut Map<String, Value>, variant: Value) {
    let Value::Object(variant) = variant else {
        return;
    };
    if variant.get("type") == Some(&json!("null")) {
        return;
    }
    for (key, value) in variant {
        match (schema.get_mut(&key), value) {
            (Some(Value::Array(all)), Value::Array(more)) if key == "enum" => {
                let new = more.into_iter().filter(|value| !all.contains(value));
                let new: Vec<Value> = new.collect();
                all.extend(new);
            }
            (None, value) if key != "description" => drop(schema.insert(key, value)),
            _ => {}
        }
    }
}

/// The schemas of the parts of a value.
fn inner(schema: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    schema
        .iter_mut()
        .flat_map(|(key, value)| match (key.as_str(), value) {
            ("properties", Value::Object(fields)) => fields.values_mut().collect(),
            ("items" | "additionalProperties", inner) => vec![inner],
            _ => Vec::new(),
        })
}

/// Writes bounds as integers (`0` instead of `0.0`), and replaces Rust's formats.
fn number(schema: &mut Map<String, Value>) {
    let format = match schema.get("format").and_then(Value::as_str) {
        Some("uint16" | "uint32" | "uint64") => "int64",
        Some("float") => "double",
        _ => return,
    };
    if schema["format"] == "uint32" {
        schema.entry("maximum").or_insert(u32::MAX.into());
    }
    schema.insert("format".into(), format.into());
    for key in ["minimum", "maximum"] {
        let bound = schema.get(key).and_then(Value::as_f64);
        if let Some(bound) = bound.filter(|bound| bound.fract() == 0.0) {
            schema.insert(key.into(), json!(bound as u64));
        }
    }
}

/// A schema of [`of_spec`] as the API server gets it: with the names of the resource's fields.
pub(super) fn published(mut schema: Value) -> Value {
    if let Value::Object(fields) = &mut schema {
        fields.remove(NOT_SUPPORTED);
        fields.retain(|key, value| key != "format" || value != duration::FORMAT);
        for (key, value) in fields {
            match (key.as_str(), value.take()) {
                ("properties", Value::Object(fields)) => {
                    let fields = fields.into_iter();
                    let fields =
                        fields.map(|(name, schema)| (in_resource(&name), published(schema)));
                    *value = Value::Object(fields.collect());
                }
                ("required", Value::Array(names)) => {
                    let names = names.iter().filter_map(Value::as_str);
                    *value = names.map(in_resource).collect();
                }
                ("items" | "additionalProperties", inner) => *value = published(inner),
                (_, other) => *value = other,
            }
        }
    }
    schema
}

/// The name in resources of an entry's field: with its first word in lower case, which may be an
/// abbreviation.
fn in_resource(name: &str) -> String {
    let capitals = name.bytes().take_while(u8::is_ascii_uppercase).count();
    let first = match capitals {
        several if several > 1 && several < name.len() => several - 1,
        one_or_all => one_or_all,
    };
    let (first, rest) = name.split_at(first);
    first.to_ascii_lowercase() + rest
}

/// Converts a value of a resource, whose path is `path`, to the value of the entry.
///
/// # Errors
///
/// The reason for the user: a field that is unknown or not supported, or a value of another type.
pub(super) fn entry_value(schema: &Value, path: &str, value: &Value) -> Result<Value, String> {
    if let Some(instead) = schema[NOT_SUPPORTED].as_str() {
        return Err(format!("{path} is not supported: {instead}"));
    }
    match (schema["type"].as_str().unwrap_or_default(), value) {
        ("object", Value::Object(_)) if schema[PRESERVE] == true => Ok(value.clone()),
        ("object", Value::Object(fields)) => {
            let known = schema["properties"].as_object();
            let mut converted = Map::new();
            for (name, value) in fields {
                // As for the API server, a null field is absent.
                if value.is_null() && known.is_some() {
                    continue;
                }
                let path = format!("{path}.{name}");
                let (name, schema) = match known {
                    Some(known) => known
                        .iter()
                        .find(|(known, _)| in_resource(known) == *name)
                        .ok_or_else(|| format!("{path}: unknown field `{name}`"))?,
                    None => (name, &schema["additionalProperties"]),
                };
                converted.insert(name.clone(), entry_value(schema, &path, value)?);
            }
            Ok(Value::Object(converted))
        }
        ("array", Value::Array(items)) => {
            let items = items.iter().enumerate();
            let items = items
                .map(|(at, item)| entry_value(&schema["items"], &format!("{path}[{at}]"), item));
            items.collect::<Result<_, _>>().map(Value::Array)
        }
        ("string", Value::String(text)) if schema["format"] == duration::FORMAT => {
            let checked = text.parse::<GoDuration>();
            checked.map_err(|error| format!("{path}: {error}"))?;
            Ok(value.clone())
        }
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => Ok(value.clone()),
        ("integer", Value::Number(number)) if number.is_u64() => Ok(value.clone()),
        ("number", Value::Number(number)) => Ok(json!(number.as_f64())),
        (expected, _) => Err(format!("{path}: invalid type: {expected} is expected")),
    }
}
