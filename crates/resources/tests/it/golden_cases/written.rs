//! Resources as JSON for review and comparison.

use legate_envoy_json::encode;
use legate_resources::ResourceSet;
use prost::Message;
use prost_types::Any;
use serde_json::{Map, Value, json};

use crate::describe::type_urls;

/// Names of the types.
pub(crate) const TYPES: [&str; 5] = ["Clusters", "Endpoints", "Listeners", "Routes", "Secrets"];

/// The maximum line length.
const WIDTH: usize = 100;

/// All resources of a proxy by type and name, its warnings and its failures.
pub(crate) fn document(set: &ResourceSet) -> Value {
    let mut out = Map::new();
    for (name, type_url) in TYPES.into_iter().zip(type_urls()) {
        let resources = set.get(&type_url).iter().map(|(name, resource)| {
            let any = Any::decode(resource.body.clone()).unwrap();
            let mut document = encode(&any.type_url, &any.value).unwrap();
            hide(&mut document);
            ((**name).to_owned(), document)
        });
        out.insert(name.to_owned(), resources.collect());
    }
    let failures = set.failures().iter();
    let failures =
        failures.map(|one| json!({"Resource": one.resource, "Reason": one.reason.to_string()}));
    out.insert("Failures".to_owned(), failures.collect());
    out.insert("Warnings".to_owned(), json!(set.warnings()));
    Value::Object(out)
}

/// Replaces certificates and keys.
fn hide(document: &mut Value) {
    for contents in [
        "/tlsCertificate/certificateChain",
        "/tlsCertificate/privateKey",
        "/validationContext/trustedCa",
    ] {
        if let Some(contents) = document.pointer_mut(contents) {
            *contents = json!("***");
        }
    }
}

/// JSON with short values on one line.
pub(crate) fn text(document: &Value) -> String {
    let mut out = String::new();
    write(&mut out, document, 0, 0);
    out.push('\n');
    out
}

/// `column` is the start of the value.
fn write(out: &mut String, value: &Value, indent: usize, column: usize) {
    let short = value.to_string();
    let is_empty = matches!(short.as_str(), "{}" | "[]");
    if is_empty || column + short.len() < WIDTH {
        return out.push_str(&short);
    }
    let inner = " ".repeat(indent + 2);
    let (open, close) = if value.is_array() {
        ('[', ']')
    } else {
        ('{', '}')
    };
    let items: Vec<(String, &Value)> = match value {
        Value::Array(items) => items.iter().map(|item| (String::new(), item)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .map(|(key, value)| (format!("{}: ", json!(key)), value))
                .collect()
        }
        _ => return out.push_str(&short),
    };
    out.push(open);
    for (at, (key, item)) in items.iter().enumerate() {
        out.push_str(if at == 0 { "\n" } else { ",\n" });
        out.push_str(&inner);
        out.push_str(key);
        write(out, item, indent + 2, indent + 2 + key.len() + 1);
    }
    out.push('\n');
    out.push_str(&" ".repeat(indent));
    out.push(close);
}
