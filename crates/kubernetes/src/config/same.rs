//! Compares an entry of the servers with that of a resource. Pure.
//!
//! Both are normalized: without fields that servers add, without empty values (equal to absent ones,
//! as for Consul's clients), with durations in nanoseconds, and in the notation of Consul and Legate
//! (upper-case methods, the order of intentions). A reference to the entry's own namespace or
//! partition equals one that names none.

use legate_model::DEFAULT_TENANCY;
use legate_model::duration::{self, GoDuration};
use serde_json::{Map, Value};

use super::entry::Entry;
use super::kinds::KINDS;
use super::schema::PRESERVE;

/// Fields of the entry that identify it and its owner.
pub(super) const OUTER: [&str; 8] = [
    "Kind",
    "Name",
    "Namespace",
    "Partition",
    "Meta",
    "Hash",
    "CreateIndex",
    "ModifyIndex",
];
/// Fields of intentions that the servers compute or retain from old versions.
pub(super) const COMPUTED: [&str; 6] = [
    "Precedence",
    "Type",
    "LegacyID",
    "LegacyMeta",
    "LegacyCreateTime",
    "LegacyUpdateTime",
];
/// Numbers for which zero differs from absence.
const ZERO_COUNTS: [&str; 5] = [
    "EnforcingConsecutive5xx",
    "MaxConcurrentRequests",
    "MaxConnections",
    "MaxEjectionPercent",
    "MaxPendingRequests",
];

/// The paths of differences, such as `Routes[0].Match`, at most `limit`; empty if the entries are
/// equal.
#[must_use]
pub fn differences(wanted: &Entry, found: &Value, limit: usize) -> Vec<String> {
    let mut paths = Vec::new();
    compare(
        &comparable(wanted, &wanted.body),
        &comparable(wanted, found),
        String::new(),
        &mut paths,
    );
    paths.truncate(limit);
    paths
}

fn compare(wanted: &Value, found: &Value, path: String, paths: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(a), Value::Object(b)) => {
            let added = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(added) {
                let path = match path.is_empty() {
                    true => key.clone(),
                    false => format!("{path}.{key}"),
                };
                let value = |side: &Map<String, Value>| side.get(key).cloned().unwrap_or_default();
                compare(&value(a), &value(b), path, paths);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare(a, b, format!("{path}[{i}]"), paths);
            }
        }
        (a, b) if a == b => {}
        _ => paths.push(path),
    }
}

/// The normalized document of an entry with the kind and tenant of `of`.
fn comparable(of: &Entry, entry: &Value) -> Value {
    let mut entry = entry.clone();
    if let Value::Object(fields) = &mut entry {
        OUTER.iter().for_each(|field| drop(fields.remove(*field)));
        if let Some(Value::Array(sources)) = fields.get_mut("Sources") {
            for source in sources.iter_mut().filter_map(Value::as_object_mut) {
                COMPUTED
                    .iter()
                    .for_each(|field| drop(source.remove(*field)));
            }
        }
        // Consul stores its default.
        if of.kind == "jwt-provider" && fields.get("ClockSkewSeconds") == Some(&30.into()) {
            fields.remove("ClockSkewSeconds");
        }
    }
    let kind = KINDS.iter().find(|kind| kind.entry.as_str() == of.kind);
    let schema = kind.map_or(&Value::Null, |kind| &kind.spec);
    let mut entry = form(of, schema, "", entry);
    if let Some(Value::Array(sources)) = entry.get_mut("Sources") {
        sources.sort_by_cached_key(Value::to_string);
    }
    entry
}

/// Whether zero is a value. The limits of an ingress gateway are always present.
fn zero_counts(kind: &str, key: &str) -> bool {
    kind != "ingress-gateway" && ZERO_COUNTS.contains(&key)
}

/// The normalized value of the field `key`; null if it equals absence.
fn form(of: &Entry, schema: &Value, key: &str, value: Value) -> Value {
    match value {
        Value::Object(fields) if schema[PRESERVE] == true => match fields.is_empty() {
            true => Value::Null,
            false => whole(Value::Object(fields)),
        },
        Value::Object(fields) => {
            let fields = fields.into_iter();
            let formed = fields.map(|(key, value)| {
                let inner = schema["properties"].get(&key);
                let inner = inner.unwrap_or(&schema["additionalProperties"]);
                let value = form(of, inner, &key, value);
                (key, value)
            });
            let kept: Map<String, Value> = formed.filter(|(_, value)| !value.is_null()).collect();
            // The entry itself stays an object, so that differences name its fields.
            match kept.is_empty() && !key.is_empty() {
                true => Value::Null,
                false => Value::Object(kept),
            }
        }
        Value::Array(items) if items.is_empty() => Value::Null,
        Value::Array(items) => {
            let items = items.into_iter();
            items
                .map(|item| form(of, &schema["items"], key, item))
                .collect()
        }
        Value::String(text) if schema["format"] == duration::FORMAT => {
            match text.parse::<GoDuration>().map(GoDuration::as_nanos) {
                Ok(0) => Value::Null,
                Ok(nanos) => nanos.into(),
                Err(_) => string(of, key, text),
            }
        }
        Value::String(text) => string(of, key, text),
        Value::Bool(false) => Value::Null,
        Value::Number(number) if key == "Weight" => {
            // Weights are stored in hundredths of a percent.
            let hundredths = (number.as_f64().unwrap_or_default() * 100.0).round() as i64;
            match hundredths {
                0 => Value::Null,
                hundredths => hundredths.into(),
            }
        }
        Value::Number(number) if number.as_f64() == Some(0.0) && !zero_counts(of.kind, key) => {
            Value::Null
        }
        other => whole(other),
    }
}

fn string(of: &Entry, key: &str, text: String) -> Value {
    // Servers store names of tenants in lower case.
    let text = match key {
        "Namespace" | "Partition" => text.to_ascii_lowercase(),
        _ => text,
    };
    let own = |name: &Option<String>| text == name.as_deref().unwrap_or(DEFAULT_TENANCY);
    match (key, text.as_str()) {
        (_, "") => Value::Null,
        ("Namespace", _) if own(&of.namespace) => Value::Null,
        ("Partition", _) if own(&of.partition) => Value::Null,
        // Consul stores its default.
        ("Protocol", "tcp") if of.kind == "ingress-gateway" => Value::Null,
        ("Protocol", _) => text.to_ascii_lowercase().into(),
        ("Methods", _) => text.to_ascii_uppercase().into(),
        _ => text.into(),
    }
}

/// Writes `1.0` as `1` in the whole value, because JSON writers differ in that.
fn whole(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => {
                (float as i64).into()
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(whole).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| (key, whole(value)))
            .collect(),
        other => other,
    }
}
