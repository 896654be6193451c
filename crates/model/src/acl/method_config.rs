//! Parsing and validation that the settings of all auth method types have in common.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::invalid::Invalid;
use crate::json::decode::{DecodeError, Opaque, UnknownFields, from_value};

/// Parses type-specific settings; empty values count as absent.
pub(super) fn settings<T: DeserializeOwned>(config: &Opaque, kind: &str) -> Result<T, Invalid> {
    let mut own = config.clone();
    own.retain(|_, value| !value.is_null() && value.as_str() != Some(""));
    from_value(Value::Object(own), UnknownFields::Refuse).map_err(|error| match error {
        DecodeError::Value { path, message } => Invalid::new(path, message),
        DecodeError::UnknownFields { fields } => Invalid::new(
            fields.join(", "),
            format!("the {kind} auth method has no such setting"),
        ),
        DecodeError::Syntax(error) => Invalid::new("", error.to_string()),
    })
}

/// Validates that a URL can be requested.
pub(super) fn validate_url(field: &str, url: &str) -> Result<(), Invalid> {
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let host = rest.and_then(|rest| rest.split(['/', '?']).next());
    let graphic = url.bytes().all(|byte| byte.is_ascii_graphic());
    let good = |host: &str| !host.is_empty() && !host.contains('@');
    if graphic && !url.contains('#') && host.is_some_and(good) {
        return Ok(());
    }
    Err(Invalid::new(
        field,
        format!("{url:?} is not a URL that is served: use https://HOST[:PORT][/PATH]"),
    ))
}

/// Validates that a text looks like PEM certificates. The caller parses them.
pub(super) fn validate_ca(field: &str, pem: &str) -> Result<(), Invalid> {
    if pem.contains("-----BEGIN CERTIFICATE-----") && !pem.contains("PRIVATE KEY") {
        return Ok(());
    }
    let reason = "it must be the PEM of one or more certificates of authorities";
    Err(Invalid::new(field, reason))
}
