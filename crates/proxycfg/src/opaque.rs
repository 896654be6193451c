//! Weakly typed values of opaque config maps, as in `Proxy.Config`.
//!
//! Operators write `"5000"` for a number and `ConnectTimeoutMs` for `connect_timeout_ms`; both
//! forms are accepted. This module has no list of keys.

use std::borrow::Cow;

use legate_model::Opaque;
use serde_json::Value;

/// The value of a key has a type that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("config key {key:?} is {found} and must be {wanted}")]
pub struct OpaqueError {
    /// The key.
    pub key: String,
    /// Its value, truncated to a readable length.
    pub found: String,
    /// The expected type.
    pub wanted: &'static str,
}

const SHOWN: usize = 60;

impl OpaqueError {
    /// An error with the key, its value and the expected type.
    pub fn new(key: &str, found: &Value, wanted: &'static str) -> Self {
        let mut found = found.to_string();
        if let Some((end, _)) = found.char_indices().nth(SHOWN) {
            found.truncate(end);
            found.push('…');
        }
        Self {
            key: key.to_owned(),
            found,
            wanted,
        }
    }
}

/// The value of a key: an exact match, or else a match without regard to case and underscores. Null
/// counts as absent.
pub fn lookup<'a>(map: &'a Opaque, key: &str) -> Option<&'a Value> {
    map.get(key)
        .or_else(|| {
            map.iter()
                .find(|(name, _)| spelled_alike(name, key))
                .map(|(_, value)| value)
        })
        .filter(|value| !value.is_null())
}

/// Whether two keys differ only in case and underscores.
pub fn spelled_alike(a: &str, b: &str) -> bool {
    fn plain(text: &str) -> impl Iterator<Item = u8> {
        let letters = text.bytes().filter(|byte| *byte != b'_');
        letters.map(|byte| byte.to_ascii_lowercase())
    }
    plain(a).eq(plain(b))
}

/// A string. Numbers and booleans are converted to their text.
///
/// # Errors
///
/// When the key holds a list or a map.
pub fn text<'a>(map: &'a Opaque, key: &str) -> Result<Option<Cow<'a, str>>, OpaqueError> {
    match lookup(map, key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(Cow::Borrowed(text))),
        Some(scalar @ (Value::Number(_) | Value::Bool(_))) => {
            Ok(Some(Cow::Owned(scalar.to_string())))
        }
        Some(other) => Err(OpaqueError::new(key, other, "a text")),
    }
}

/// A whole number. Fractions are truncated, and numeric strings and booleans are converted.
///
/// # Errors
///
/// When the key holds anything else.
pub fn integer(map: &Opaque, key: &str) -> Result<Option<i64>, OpaqueError> {
    let Some(value) = lookup(map, key) else {
        return Ok(None);
    };
    let number = match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            let fraction = number.as_f64()?.trunc();
            // Exact: doubles represent every whole number in this range.
            (fraction.abs() < 9e15).then_some(fraction as i64)
        }),
        Value::String(text) if text.is_empty() => return Ok(None),
        Value::String(text) => text.trim().parse().ok(),
        Value::Bool(flag) => Some(i64::from(*flag)),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    number
        .map(Some)
        .ok_or_else(|| OpaqueError::new(key, value, "a whole number"))
}

/// A non-negative whole number.
///
/// # Errors
///
/// When the key holds anything else, or a number above `u32::MAX`.
pub fn count(map: &Opaque, key: &str) -> Result<Option<u32>, OpaqueError> {
    let Some(number) = integer(map, key)? else {
        return Ok(None);
    };
    u32::try_from(number).map(Some).map_err(|_| {
        OpaqueError::new(
            key,
            &Value::from(number),
            "a whole number from 0 to 4294967295",
        )
    })
}

/// A map.
///
/// # Errors
///
/// When the key holds anything else.
pub fn section<'a>(map: &'a Opaque, key: &str) -> Result<Option<&'a Opaque>, OpaqueError> {
    match lookup(map, key) {
        None => Ok(None),
        Some(Value::Object(section)) => Ok(Some(section)),
        Some(other) => Err(OpaqueError::new(key, other, "a map")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map(value: Value) -> Opaque {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn keys_are_found_however_they_are_spelled() {
        let config = map(json!({"ConnectTimeoutMs": 7, "protocol": "http", "Protocol": "tcp"}));
        assert_eq!(integer(&config, "connect_timeout_ms"), Ok(Some(7)));
        assert_eq!(text(&config, "protocol").unwrap().unwrap(), "http");
        assert_eq!(integer(&config, "absent"), Ok(None));
    }

    #[test]
    fn values_are_weakly_typed() {
        let config = map(json!({"a": "5000", "b": 1.9, "c": true, "d": null, "e": ""}));
        assert_eq!(integer(&config, "a"), Ok(Some(5000)));
        assert_eq!(integer(&config, "b"), Ok(Some(1)));
        assert_eq!(integer(&config, "c"), Ok(Some(1)));
        assert_eq!(integer(&config, "d"), Ok(None));
        assert_eq!(integer(&config, "e"), Ok(None));
        assert_eq!(text(&config, "b").unwrap().unwrap(), "1.9");
    }

    #[test]
    fn unusable_values_are_named() {
        let config = map(json!({"a": [1], "b": -1, "c": "soon", "d": "x".repeat(500)}));
        let error = text(&config, "a").unwrap_err();
        assert_eq!(
            error.to_string(),
            "config key \"a\" is [1] and must be a text"
        );
        assert!(count(&config, "b").is_err());
        assert!(integer(&config, "c").is_err());
        assert!(section(&config, "d").unwrap_err().to_string().len() < 150);
    }
}
