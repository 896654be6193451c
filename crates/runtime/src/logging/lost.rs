//! The log line that replaces dropped lines.

use std::time::SystemTime;

use serde_json::Value;
use time::OffsetDateTime;

use super::format::{Entry, LogField};

/// A line with the number of dropped lines before it.
pub(super) fn lost_lines(name: &str, json: bool, lost: u64) -> String {
    let field = LogField {
        key: "lost",
        value: Value::from(lost),
        list: false,
    };
    let entry = Entry {
        time: OffsetDateTime::from(SystemTime::now()),
        level: tracing::Level::WARN,
        module: name.to_owned(),
        message: "lines were lost because the log was not read fast enough".to_owned(),
        fields: vec![field],
    };
    entry.line(json)
}
