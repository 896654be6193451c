//! Output of commands: lines, tables and JSON in the formats of Consul's command line, because scripts
//! parse them. Formatting is pure; only [`line()`] and [`warn`] write.

use std::io::Write;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::PrettyFormatter;

/// The output format of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for users
    #[default]
    Pretty,
    /// JSON for programs
    Json,
}

/// Standard output is closed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub(crate) struct Gone;

/// Prints a line.
///
/// # Errors
///
/// If standard output is closed.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.context(Gone)
}

/// Prints bytes verbatim, and a newline.
///
/// # Errors
///
/// As [`line()`].
pub(crate) fn bytes(content: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(content).and_then(|()| out.write_all(b"\n"));
    let written = written.and_then(|()| out.flush());
    written.context(Gone)
}

/// Prints bytes verbatim.
///
/// # Errors
///
/// As [`line()`].
pub(crate) fn raw(content: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(content).and_then(|()| out.flush());
    written.context(Gone)
}

/// Prints a line to standard error.
pub(crate) fn warn(text: &str) {
    // The terminal may be closed.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Formats JSON like Go's `MarshalIndent`.
pub(crate) fn json(value: &Value, indent: &str) -> String {
    let mut out = Vec::new();
    let formatter = PrettyFormatter::with_indent(indent.as_bytes());
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    // Writing to a vector cannot fail, and object keys are strings.
    let _ = value.serialize(&mut serializer);
    String::from_utf8_lossy(&out).into_owned()
}

/// Prints JSON with Consul's usual indentation.
///
/// # Errors
///
/// As [`line()`].
pub(crate) fn print_json(value: &Value) -> anyhow::Result<()> {
    line(&json(value, "    "))
}

/// Formats a table with two spaces between columns, and no trailing padding.
pub(crate) fn columns<R: AsRef<[C]>, C: AsRef<str>>(rows: &[R]) -> String {
    aligned(rows, 2, false)
}

/// Formats a table whose columns are six spaces apart, like Consul's with Go's `tabwriter`.
pub(crate) fn tabbed<R: AsRef<[C]>, C: AsRef<str>>(rows: &[R]) -> String {
    aligned(rows, 6, true)
}

/// With `tabs`, the last cell of a row does not count for the column width. Rows may differ in length.
fn aligned<R: AsRef<[C]>, C: AsRef<str>>(rows: &[R], space: usize, tabs: bool) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        let row = row.as_ref();
        for (i, cell) in row.iter().enumerate() {
            // In `tabwriter`, only cells terminated by a tab form a column.
            if tabs && i + 1 == row.len() {
                continue;
            }
            let width = cell.as_ref().trim().chars().count();
            match widths.get_mut(i) {
                Some(known) => *known = width.max(*known),
                None => widths.push(width),
            }
        }
    }
    let mut lines = Vec::new();
    for row in rows {
        let row = row.as_ref();
        let mut text = String::new();
        for (i, cell) in row.iter().enumerate() {
            let cell = cell.as_ref().trim();
            text.push_str(cell);
            if i + 1 < row.len() {
                let used = cell.chars().count();
                let width = widths.get(i).copied().unwrap_or(used) + space;
                text.push_str(&" ".repeat(width - used));
            }
        }
        lines.push(text);
    }
    lines.join("\n")
}

/// A field as text; empty if it is not text.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// A field as a number; 0 if it is not a number.
pub(crate) fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}

/// A field as a list; empty if it is not a list.
pub(crate) fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// The texts of a list, joined with a separator.
pub(crate) fn joined(value: &Value, field: &str, between: &str) -> String {
    let texts = list(value, field).iter().filter_map(Value::as_str);
    texts.collect::<Vec<_>>().join(between)
}

/// The pairs `key=value` of an object with text values, sorted by key.
pub(crate) fn pairs(value: &Value) -> Vec<String> {
    let fields = value.as_object().into_iter().flatten();
    let of =
        |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    // JSON maps of this crate are sorted by key.
    fields.map(of).collect()
}

/// Quotes text like Go's `%q`.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// Formats a time of the API like Go: `2026-01-02 03:04:05.678 +0000 UTC`.
pub(crate) fn go_time(text: &str) -> String {
    let Some((date, rest)) = text.split_once('T') else {
        return text.to_owned();
    };
    let zone = rest.find(['Z', '+', '-']).unwrap_or(rest.len());
    let (time, zone) = rest.split_at(zone);
    let zone = match zone {
        "" | "Z" => "+0000 UTC".to_owned(),
        offset => {
            let offset = offset.replace(':', "");
            format!("{offset} {offset}")
        }
    };
    let time = match time.contains('.') {
        true => time.trim_end_matches('0').trim_end_matches('.'),
        false => time,
    };
    format!("{date} {time} {zone}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_those_of_consul() {
        let rows = [vec!["Node", "ID"], vec!["n", "1234"], vec!["node-2", ""]];
        assert_eq!(columns(&rows), "Node    ID\nn       1234\nnode-2  ");
        let rows = [vec!["consul", ""], vec!["web", "a,b"]];
        assert_eq!(tabbed(&rows), "consul      \nweb         a,b");
    }

    #[test]
    fn times_are_those_of_go() {
        assert_eq!(
            go_time("2026-01-02T03:04:05.6780Z"),
            "2026-01-02 03:04:05.678 +0000 UTC"
        );
        assert_eq!(
            go_time("2026-01-02T03:04:05Z"),
            "2026-01-02 03:04:05 +0000 UTC"
        );
        assert_eq!(
            go_time("2026-01-02T03:04:05+01:00"),
            "2026-01-02 03:04:05 +0100 +0100"
        );
    }

    #[test]
    fn json_is_indented() {
        let value = serde_json::json!({"a": [1]});
        assert_eq!(json(&value, "\t"), "{\n\t\"a\": [\n\t\t1\n\t]\n}");
    }
}
