//! Formats the status document as text for humans. The document may come from an older or a newer
//! dataplane: unknown fields are shown under their own names, missing ones are omitted.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::relay::status::label;

/// Maximum number of list items shown.
const ITEMS: usize = 12;

/// Keys shown before all others, in this order.
const FIRST: &str = "components proxy session relay name type epoch pid id state state_age \
                     next_attempt missing error server";

/// Formats a status document as text.
#[must_use]
pub fn text(document: &Value) -> String {
    let version = plain("version", &document["version"]);
    let version = version.map(|it| format!(" {it}")).unwrap_or_default();
    let state = match document["ready"] == true {
        true => "is ready",
        false => "is NOT READY",
    };
    let (mut heading, mut sections) = (Section::default(), String::new());
    for (key, value) in fields(document) {
        if value.is_array() || value.is_object() {
            let mut section = Section::default();
            section.add("", key, value);
            let text = section.text();
            if !text.is_empty() {
                sections += &format!("\n{}\n{text}", name(key));
            }
        } else if !["version", "ready"].contains(&key) {
            heading.add(&name(key), key, value);
        }
    }
    let heading = heading.text();
    format!("legate-dataplane{version} {state}\n{heading}{sections}")
}

/// One part of the document.
#[derive(Default)]
struct Section {
    /// Names and their values.
    entries: Vec<Vec<String>>,
    /// Name and rows of each table.
    tables: Vec<(String, Vec<Vec<String>>)>,
}

impl Section {
    /// Adds the value of `key`, shown as `name`.
    fn add(&mut self, name: &str, key: &str, value: &Value) {
        match value {
            Value::Object(_) => {
                let mut fields = fields(value);
                // The values are points in time, such as the stages of the start.
                let in_seconds = key.ends_with("_seconds");
                if in_seconds {
                    let seconds = |value: &Value| value.as_f64().unwrap_or(f64::MAX);
                    fields.sort_by(|one, other| seconds(one.1).total_cmp(&seconds(other.1)));
                }
                for (key, value) in fields {
                    let of = if in_seconds { "seconds" } else { key };
                    self.add(&joined(name, key), of, value);
                }
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                self.add_table(name, key, items);
            }
            Value::Array(items) => {
                let texts = items.iter().filter_map(|item| plain("", item));
                let mut texts: Vec<String> = texts.collect();
                let more = texts.len().saturating_sub(ITEMS);
                texts.truncate(ITEMS);
                if more > 0 {
                    texts.push(format!("and {more} more"));
                }
                if !texts.is_empty() {
                    self.entries.push(vec![name.to_owned(), texts.join(", ")]);
                }
            }
            _ => {
                let text = plain(key, value).map(|text| vec![name.to_owned(), text]);
                self.entries.extend(text);
            }
        }
    }

    /// Adds a table with a column for each scalar field. Nested values become entries.
    fn add_table(&mut self, table: &str, key: &str, items: &[Value]) {
        let items: Vec<Value> = match key {
            "types" => items.iter().map(resource_type).collect(),
            _ => items.to_vec(),
        };
        let cells = items.iter().flat_map(fields);
        let plain_cells = cells.filter(|(key, value)| plain(key, value).is_some());
        let columns: BTreeSet<_> = plain_cells.map(|(key, _)| (place(key), key)).collect();
        let mut rows = vec![columns.iter().map(|(_, key)| name(key)).collect()];
        for item in items.iter().filter(|item| item.is_object()) {
            let cells = columns.iter().map(|(_, key)| plain(key, &item[*key]));
            let row: Vec<String> = cells.map(Option::unwrap_or_default).collect();
            for (key, value) in fields(item) {
                if value.is_object() || value.is_array() {
                    let of = row.first().map(String::as_str).unwrap_or_default();
                    self.add(&joined(of, key), key, value);
                }
            }
            rows.push(row);
        }
        self.tables.push((table.to_owned(), rows));
    }

    fn text(&self) -> String {
        let mut text = aligned(&self.entries);
        for (name, rows) in &self.tables {
            if !name.is_empty() {
                text += &format!("\n  {name}\n");
            }
            text += &aligned(rows);
        }
        text
    }
}

/// Summary of a resource type.
fn resource_type(kind: &Value) -> Value {
    let missing = kind["unanswered_names"].as_u64().unwrap_or(0);
    let state = if kind["waiting_for_envoy"] == true {
        "waiting for Envoy".to_owned()
    } else if missing > 0 {
        format!("{missing} of {} names without an answer", kind["names"])
    } else if kind["answered"] == true {
        "complete".to_owned()
    } else {
        "no answer yet".to_owned()
    };
    json!({
        "type": label(kind["type_url"].as_str().unwrap_or_default()),
        "state": state,
        "resources": kind["resources"],
        "bytes": kind["bytes"],
        "ACKs": kind["accepted"],
        "NACKs": kind["rejected"],
        "last_rejection": kind["last_rejection"],
    })
}

/// The fields of an object in display order.
fn fields(value: &Value) -> Vec<(&str, &Value)> {
    let fields = value.as_object().into_iter().flatten();
    let mut fields: Vec<_> = fields.map(|(key, value)| (key.as_str(), value)).collect();
    fields.sort_by_key(|(key, _)| place(key));
    fields
}

fn place(key: &str) -> usize {
    let place = FIRST.split(' ').position(|first| first == key);
    place.unwrap_or(usize::MAX)
}

/// A key as it is shown.
fn name(key: &str) -> String {
    let name = key.strip_suffix("_seconds_ago").unwrap_or(key);
    let name = name.strip_suffix("_seconds").unwrap_or(name);
    printable(&name.replace('_', " "))
}

/// The name of a part of `whole`. A repeated word is dropped: the error of the last error.
fn joined(whole: &str, key: &str) -> String {
    let part = name(key);
    if whole.ends_with(&part) {
        return whole.to_owned();
    }
    format!("{whole} {part}").trim_start().to_owned()
}

/// A scalar as text. The key determines whether it is a duration, and whether it is in the past or
/// the future.
fn plain(key: &str, value: &Value) -> Option<String> {
    let ends = |ends: [&str; 2]| ends.iter().any(|end| key.ends_with(end));
    match value {
        Value::Number(number) => {
            let age = age(number.as_f64().unwrap_or_default());
            Some(match key {
                _ if key.starts_with("next_") => format!("in {age}"),
                _ if ends(["seconds_ago", "heard"]) => format!("{age} ago"),
                _ if ends(["seconds", "age"]) => age,
                _ => number.to_string(),
            })
        }
        Value::String(text) => Some(printable(text)).filter(|text| !text.is_empty()),
        Value::Bool(true) => Some("yes".to_owned()),
        Value::Bool(false) => Some("no".to_owned()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Makes texts from servers and Envoy safe for terminals: no line breaks and no control sequences.
pub(super) fn printable(text: &str) -> String {
    let text = text.replace(char::is_control, " ");
    text.trim().to_owned()
}

/// At most two units: `350ms`, `12s`, `3m12s`, `2h5m`, `4d1h`.
fn age(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{}ms", (seconds * 1000.0) as u64);
    }
    let mut rest = seconds as u64;
    let units = [(86_400, 'd'), (3600, 'h'), (60, 'm'), (1, 's')];
    let whole = rest;
    let shown = units
        .iter()
        .skip_while(|(length, _)| whole < *length)
        .take(2);
    let mut text = String::new();
    for (length, unit) in shown {
        if rest >= *length {
            text += &format!("{}{unit}", rest / length);
        }
        rest %= length;
    }
    text
}

/// Rows in columns, each as wide as its widest cell.
fn aligned(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let line: String = cells
            .map(|(cell, width)| format!("  {cell:<width$}"))
            .collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}
