//! JSON objects: read from the text of a user or a server, and without what says nothing.

use serde_json::{Map, Value, json};

/// The object without entries that say nothing: `null`, `""` and `[]`.
pub(super) fn without_empty(mut object: Value) -> Value {
    if let Value::Object(entries) = &mut object {
        entries.retain(|_, value| ![Value::Null, json!(""), json!([])].contains(value));
    }
    object
}

/// An object from its text.
pub(super) fn parse_object(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str::<Map<String, Value>>(text).map(Value::Object)
}
