//! Whether an entry of the servers says the same as the one that a resource means. Pure.
//!
//! Both are brought into one form: without what the servers add, without what is empty (which is the
//! same as absent, as it is for Consul's clients), durations in nanoseconds, and what Consul and
//! Legate write in their own way (upper-case methods, the order of intentions) written that way. A
//! reference that names the entry's own namespace or partition is like one that names none.

use legate_model::DEFAULT_TENANCY;
use legate_model::duration::GoDuration;
use serde_json::{Map, Value};

use super::entry::Entry;

/// Fields of the whole entry that say who it is and whose.
const OUTER: [&str; 8] = [
    "Kind",
    "Name",
    "Namespace",
    "Partition",
    "Meta",
    "Hash",
    "CreateIndex",
    "ModifyIndex",
];
/// Fields of intentions that the servers compute, or keep from old versions.
const COMPUTED: [&str; 6] = [
    "Precedence",
    "Type",
    "LegacyID",
    "LegacyMeta",
    "LegacyCreateTime",
    "LegacyUpdateTime",
];
const DURATIONS: [&str; 9] = [
    "BaseEjectionTime",
    "BaseInterval",
    "CacheDuration",
    "ConnectTimeout",
    "IdleTimeout",
    "Interval",
    "MaxInterval",
    "RequestTimeout",
    "TTL",
];
/// Numbers of which zero says something else than absence.
const ZERO_COUNTS: [&str; 5] = [
    "EnforcingConsecutive5xx",
    "MaxConcurrentRequests",
    "MaxConnections",
    "MaxEjectionPercent",
    "MaxPendingRequests",
];
/// Objects whose keys are the user's: nothing in them is left out or rewritten.
const FREE: [&str; 2] = ["Arguments", "Config"];

/// Where the entry of the servers says something else: paths such as `Routes[0].Match`, at most
/// `limit` of them; empty when both say the same.
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

/// The document of an entry of the kind and the tenant of `of`, in the one form.
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
    let mut entry = form(of, "", entry);
    if let Some(Value::Array(sources)) = entry.get_mut("Sources") {
        sources.sort_by_cached_key(Value::to_string);
    }
    entry
}

/// Whether a zero is a value. The limits of an ingress gateway are numbers that are always there.
fn zero_counts(kind: &str, key: &str) -> bool {
    kind != "ingress-gateway" && ZERO_COUNTS.contains(&key)
}

/// The value of the field `key` in the one form; null where it says nothing.
fn form(of: &Entry, key: &str, value: Value) -> Value {
    match value {
        Value::Object(fields) if FREE.contains(&key) => match fields.is_empty() {
            true => Value::Null,
            false => whole(Value::Object(fields)),
        },
        Value::Object(fields) => {
            let fields = fields.into_iter();
            let formed = fields.map(|(key, value)| {
                let value = form(of, &key, value);
                (key, value)
            });
            let kept: Map<String, Value> = formed.filter(|(_, value)| !value.is_null()).collect();
            // The entry itself stays an object, so that its differences are named by their fields.
            match kept.is_empty() && !key.is_empty() {
                true => Value::Null,
                false => Value::Object(kept),
            }
        }
        Value::Array(items) if items.is_empty() => Value::Null,
        Value::Array(items) => items.into_iter().map(|item| form(of, key, item)).collect(),
        Value::String(text) => string(of, key, text),
        Value::Bool(false) => Value::Null,
        Value::Number(number) if key == "Weight" => {
            // Shares are kept in hundredths of a percent.
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
    if DURATIONS.contains(&key)
        && let Ok(duration) = text.parse::<GoDuration>()
    {
        return match duration.as_nanos() {
            0 => Value::Null,
            nanos => nanos.into(),
        };
    }
    // Servers keep the names of tenants in lower case.
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

/// Writes `1.0` as `1`, everywhere in a value: JSON writers differ in that.
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
