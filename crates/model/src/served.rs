//! How every field of requests is served, so that no field is accepted and then silently ignored.
//!
//! One table by type name, to which each kind of config entry adds its own rows. A test derives the
//! fields of all types from their decoders and compares them with the rows, so no field can be added
//! without one. The table determines the fields that the response to a write reports as not served
//! ([`crate::json::Request::not_served`]). Refused fields are refused by their own type or by
//! validation.

pub(crate) mod field;
pub(crate) mod table;

use serde_json::Value;

use crate::config_entry::ConfigKind;
use crate::json::decode::{KIND_TAGGED, same_key};
use field::Rows;

pub use field::Served;

fn tables() -> impl Iterator<Item = &'static Rows> {
    let entries = ConfigKind::ALL.into_iter().flat_map(ConfigKind::served);
    table::TABLE.iter().chain(entries)
}

/// The row of a field, by type name and field name.
pub fn row(target: &str, field: &str) -> Option<Served> {
    let (_, rows) = tables().find(|(name, _)| *name == target)?;
    let (served, _) = rows
        .iter()
        .find(|(_, fields)| names(fields).any(|name| name == field))?;
    Some(*served)
}

/// All types and fields with rows.
pub fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    tables().flat_map(|(target, rows)| {
        let fields = rows.iter().flat_map(|(_, fields)| names(fields));
        fields.map(move |field| (*target, field))
    })
}

fn names(fields: &'static str) -> impl Iterator<Item = &'static str> {
    fields.split_ascii_whitespace()
}

/// The parts of a field to report, as paths relative to its object.
pub(crate) fn unserved(target: &str, field: &str, value: &Value) -> Vec<String> {
    match row(target, field) {
        None if target == KIND_TAGGED && is_unserved_kind(value) => vec![field.to_owned()],
        Some(Served::ReportedExcept(served)) if !is_empty(value) && !is_one_of(value, served) => {
            vec![field.to_owned()]
        }
        Some(Served::Keys(served)) => {
            let keys = value.as_object().into_iter().flatten();
            let others = keys.filter(|(key, value)| {
                !is_empty(value) && !served.iter().any(|known| same_key(known, key))
            });
            others.map(|(key, _)| format!("{field}.{key}")).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a kind of config entry is stored without any effect.
fn is_unserved_kind(value: &Value) -> bool {
    let kind = value.as_str().map(str::parse::<ConfigKind>);
    kind.is_some_and(|kind| kind.is_ok_and(|kind| !kind.is_in_effect()))
}

fn is_one_of(value: &Value, served: &[&str]) -> bool {
    value.as_str().is_some_and(|text| served.contains(&text))
}

/// Whether a value is what Go's client sends for an unset field.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0s",
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
    }
}
