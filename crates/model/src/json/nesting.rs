//! The nesting of JSON values whose content is opaque here, such as a proxy's `Config`.

use serde_json::Value;

use super::decode::Opaque;
use crate::invalid::Invalid;

/// The maximum number of nested objects and lists, the outermost object included.
///
/// Sidecars receive a proxy's `Config` as a `google.protobuf.Struct`, which nests three messages for each object, and
/// decoders of protobuf accept 100 nested messages.
pub const MAX_NESTING: usize = 32;

/// Refuses values that are nested too deeply.
///
/// # Errors
///
/// [`Invalid`] names the field and the key.
pub(crate) fn validate_nesting(field: &str, object: &Opaque) -> Result<(), Invalid> {
    match object.iter().find(|(_, value)| is_too_deep(value)) {
        None => Ok(()),
        Some((key, _)) => Err(Invalid::new(
            format!("{field}.{key}"),
            format!("objects and lists are nested more than {MAX_NESTING} levels deep"),
        )),
    }
}

/// Whether the value of a key of an opaque object is nested too deeply.
#[must_use]
pub fn is_too_deep(value: &Value) -> bool {
    exceeds(value, MAX_NESTING - 1)
}

fn exceeds(value: &Value, levels: usize) -> bool {
    let Some(within) = levels.checked_sub(1) else {
        return value.is_object() || value.is_array();
    };
    match value {
        Value::Object(fields) => fields.values().any(|value| exceeds(value, within)),
        Value::Array(values) => values.iter().any(|value| exceeds(value, within)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nested(levels: usize, wrap: impl Fn(Value) -> Value) -> Value {
        (0..levels).fold(json!(1), |inner, _| wrap(inner))
    }

    #[test]
    fn the_outermost_object_is_the_first_level() {
        for wrap in [|value| json!({ "a": value }), |value| json!([value])] {
            let config =
                |levels: usize| Opaque::from_iter([("k".to_owned(), nested(levels - 1, wrap))]);
            validate_nesting("Config", &config(1)).unwrap();
            validate_nesting("Config", &config(MAX_NESTING)).unwrap();
            let error = validate_nesting("Config", &config(MAX_NESTING + 1)).unwrap_err();
            assert!(error.to_string().starts_with("Config.k: "), "{error}");
        }
    }
}
