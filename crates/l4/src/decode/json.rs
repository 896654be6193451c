//! Shows a tree as Envoy's JSON, with the names of the fields as in the schema and without private keys.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json, json};

use super::table::{Field, Kind};
use super::tree::{Node, Value};

/// What is shown instead of a private key.
const REDACTED: &str = "[redacted]";

/// A message as JSON.
pub(super) fn of(node: &Node<'_>) -> Json {
    show(node, false)
}

fn show(node: &Node<'_>, private: bool) -> Json {
    match node.message_name() {
        "google.protobuf.UInt32Value" => json!(node.number("value")),
        // Numbers of 64 bits are strings in the JSON mapping.
        "google.protobuf.UInt64Value" => json!(node.large("value").to_string()),
        "google.protobuf.BoolValue" => json!(node.flag("value")),
        "google.protobuf.Duration" => json!(duration(node)),
        "google.protobuf.Struct" => pairs(node, "fields", private),
        "google.protobuf.Value" => match node.node("struct_value") {
            Some(inner) => show(inner, private),
            None if node.has("string_value") => json!(node.text("string_value")),
            None => Json::Null,
        },
        _ => Json::Object(fields(node, private)),
    }
}

fn fields(node: &Node<'_>, private: bool) -> Map<String, Json> {
    let mut out = Map::new();
    for entry in node.entries() {
        let (field, name) = (entry.field, entry.field.name);
        let private = private || field.private;
        if matches!(field.kind, Kind::Map(_)) {
            if !out.contains_key(name) {
                out.insert(name.to_owned(), pairs(node, name, private));
            }
        } else if field.many {
            let list = out.entry(name).or_insert_with(|| json!([]));
            if let Json::Array(list) = list {
                list.push(one(field, &entry.value, private));
            }
        } else {
            out.insert(name.to_owned(), one(field, &entry.value, private));
        }
    }
    out
}

fn pairs(node: &Node<'_>, name: &'static str, private: bool) -> Json {
    let pairs = node.pairs(name);
    pairs
        .map(|(key, value)| (key.to_owned(), show(value, private)))
        .collect::<Map<_, _>>()
        .into()
}

fn one(field: &Field, value: &Value<'_>, private: bool) -> Json {
    match value {
        Value::Bool(flag) => json!(flag),
        Value::Unsigned(number) if matches!(field.kind, Kind::U64) => json!(number.to_string()),
        Value::Unsigned(number) => json!(number),
        Value::Signed(number) if matches!(field.kind, Kind::I64) => json!(number.to_string()),
        Value::Signed(number) => json!(number),
        Value::Double(number) => json!(number),
        Value::Enum(number) => match field.kind {
            Kind::Enum(kind) => {
                let name = kind.values.iter().find(|(value, _)| value == number);
                name.map_or_else(|| json!(number), |(_, name)| json!(name))
            }
            _ => json!(number),
        },
        Value::Text(_) if private => json!(REDACTED),
        Value::Text(text) => json!(text),
        Value::Bytes(_) if private => json!(STANDARD.encode(REDACTED)),
        Value::Bytes(bytes) => json!(STANDARD.encode(bytes)),
        Value::Node(node) | Value::Pair(_, node) => show(node, private),
        Value::Any(url, node) => {
            let mut out = fields(node, private);
            out.insert("@type".to_owned(), json!(url));
            Json::Object(out)
        }
    }
}

/// As in the JSON mapping of Protocol Buffers: seconds with 0, 3, 6 or 9 digits.
fn duration(node: &Node<'_>) -> String {
    let (seconds, nanos) = (node.signed("seconds"), node.signed("nanos"));
    let sign = if seconds < 0 || nanos < 0 { "-" } else { "" };
    let (seconds, nanos) = (seconds.unsigned_abs(), nanos.unsigned_abs());
    match nanos {
        0 => format!("{sign}{seconds}s"),
        n if n % 1_000_000 == 0 => format!("{sign}{seconds}.{:03}s", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{sign}{seconds}.{:06}s", n / 1_000),
        n => format!("{sign}{seconds}.{n:09}s"),
    }
}
