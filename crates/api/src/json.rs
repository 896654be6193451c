//! Conversion between JSON objects and `google.protobuf.Struct`.
//!
//! A `Struct` has only one type of numbers, 64-bit floats. Integers that a float represents exactly
//! are converted back to JSON integers; others lose precision.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::{Map, Number, Value as Json};

/// The largest magnitude up to which every integer has an exact float: 2^53.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Converts a JSON object.
#[must_use]
pub fn to_struct(object: &Map<String, Json>) -> Struct {
    Struct {
        fields: object
            .iter()
            .map(|(key, value)| (key.clone(), to_value(value)))
            .collect(),
    }
}

/// Converts to a JSON object. Values without a kind and numbers that JSON does not have (NaN,
/// infinities) become `null`.
#[must_use]
pub fn from_struct(object: &Struct) -> Map<String, Json> {
    object
        .fields
        .iter()
        .map(|(key, value)| (key.clone(), from_value(value)))
        .collect()
}

fn to_value(value: &Json) -> Value {
    let kind = match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        // Every serde_json number has a float form; `arbitrary_precision` is off.
        Json::Number(value) => Kind::NumberValue(value.as_f64().unwrap_or(f64::NAN)),
        Json::String(value) => Kind::StringValue(value.clone()),
        Json::Array(values) => Kind::ListValue(ListValue {
            values: values.iter().map(to_value).collect(),
        }),
        Json::Object(object) => Kind::StructValue(to_struct(object)),
    };
    Value { kind: Some(kind) }
}

fn from_value(value: &Value) -> Json {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(value)) => Json::Bool(*value),
        Some(Kind::NumberValue(value)) => from_number(*value),
        Some(Kind::StringValue(value)) => Json::String(value.clone()),
        Some(Kind::ListValue(list)) => list.values.iter().map(from_value).collect(),
        Some(Kind::StructValue(object)) => Json::Object(from_struct(object)),
    }
}

fn from_number(value: f64) -> Json {
    if value.fract() == 0.0 && value.abs() <= EXACT {
        // In range by the check above, so the cast changes nothing.
        return Json::Number(Number::from(value as i64));
    }
    Number::from_f64(value).map_or(Json::Null, Json::Number)
}
