//! Formats log entries as text or JSON. Pure: no clock, no output.

use std::fmt::Write;

use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

const TEXT_TIME: &[BorrowedFormatItem<'static>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
const JSON_TIME: &[BorrowedFormatItem<'static>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// The contents of a log line.
pub(super) struct Entry {
    /// Time in UTC.
    pub(super) time: OffsetDateTime,
    pub(super) level: tracing::Level,
    pub(super) module: String,
    pub(super) message: String,
    pub(super) fields: Vec<LogField>,
}

/// A key with its value.
#[derive(Clone)]
pub(super) struct LogField {
    pub(super) key: &'static str,
    pub(super) value: Value,
    /// Whether the value is a bracketed list whose elements are quoted already.
    pub(super) list: bool,
}

impl Entry {
    /// Formats the entry as JSON or text.
    pub(super) fn line(&self, json: bool) -> String {
        match json {
            true => self.json(),
            false => self.text(),
        }
    }

    /// `TIME [LEVEL] module: message: key=value`, with levels padded to the same width.
    fn text(&self) -> String {
        let time = self.time.format(TEXT_TIME).unwrap_or_default();
        let level = format!("[{}]", self.level);
        let mut out = format!("{time} {level:<7} {}: {}", self.module, self.message);
        if !self.fields.is_empty() {
            out.push(':');
        }
        for field in &self.fields {
            let text = match &field.value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            if text.contains('\n') {
                write_lines(&mut out, field.key, &text);
                continue;
            }
            // Writing to a string cannot fail.
            let _ = if !text.is_empty() && (text.chars().all(is_plain) || is_list(field, &text)) {
                write!(out, " {}={text}", field.key)
            } else {
                write!(out, " {}={}", field.key, quote(&text))
            };
        }
        if !out.ends_with('\n') {
            out.push('\n');
        }
        out
    }

    /// One object per line; numbers and booleans retain their types.
    fn json(&self) -> String {
        let level = self.level.as_str().to_ascii_lowercase();
        let time = self.time.format(JSON_TIME).unwrap_or_default();
        let mut object = Map::new();
        for field in &self.fields {
            object.insert(field.key.to_owned(), field.value.clone());
        }
        for (key, value) in [
            ("@level", &level),
            ("@message", &self.message),
            ("@module", &self.module),
            ("@timestamp", &time),
        ] {
            object.insert(key.to_owned(), Value::from(value.as_str()));
        }
        let mut line = Value::Object(object).to_string();
        line.push('\n');
        line
    }
}

/// Formats a multi-line value with a bar before each line, so that none can be mistaken for a log
/// line.
fn write_lines(out: &mut String, key: &str, text: &str) {
    if !out.ends_with('\n') {
        out.push('\n');
    }
    let _ = writeln!(out, "  {key}=");
    for line in text.lines() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let _ = writeln!(out, "  | {}", escape(line));
    }
}

/// Whether a character does not require quoting.
fn is_plain(letter: char) -> bool {
    ('-'..='~').contains(&letter)
}

fn is_list(field: &LogField, text: &str) -> bool {
    field.list && !text.chars().any(char::is_control)
}

fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            other => push_escaped(&mut out, other),
        }
    }
    out.push('"');
    out
}

/// Escapes control characters, including terminal escapes; quotes are unchanged.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        push_escaped(&mut out, letter);
    }
    out
}

fn push_escaped(out: &mut String, letter: char) {
    match letter {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        control if control.is_control() => {
            let _ = write!(out, "\\x{:02x}", u32::from(control));
        }
        other => out.push(other),
    }
}
