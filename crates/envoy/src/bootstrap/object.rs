//! JSON objects: parsing the text of a user or a server, and removing empty entries.

use serde_json::{Map, Value, json};

/// Removes entries without content: `null`, `""` and `[]`.
pub(super) fn without_empty(mut object: Value) -> Value {
    if let Value::Object(entries) = &mut object {
        entries.retain(|_, value| ![Value::Null, json!(""), json!([])].contains(value));
    }
    object
}

/// Parses an object.
pub(super) fn parse_object(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str::<Map<String, Value>>(text).map(Value::Object)
}
