//! Value types of several specs: durations, free maps, validation rules.

use std::borrow::Cow;

use legate_model::duration::GoDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A duration in Go's notation, such as `1h30m` or `250ms`, stored as written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Period(String);

impl TryFrom<String> for Period {
    type Error = legate_model::duration::InvalidDuration;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse::<GoDuration>()?;
        Ok(Period(text))
    }
}

impl From<Period> for String {
    fn from(period: Period) -> String {
        period.0
    }
}

/// A [`Period`] that may be negative.
pub(super) const SIGNED_PERIOD: &str = "^-?([0-9]+(\\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$|^0$";

impl JsonSchema for Period {
    fn schema_name() -> Cow<'static, str> {
        "Period".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 64,
            "pattern": "^([0-9]+(\\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$|^0$",
        })
    }
}

/// An object with the user's own keys, sent to the servers verbatim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FreeMap(Map<String, Value>);

impl JsonSchema for FreeMap {
    fn schema_name() -> Cow<'static, str> {
        "FreeMap".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}

/// CEL rules that the API server validates, each with its error message.
pub(super) fn rules(rules: &[(&str, &str)]) -> Value {
    rules
        .iter()
        .map(|(rule, message)| json!({ "rule": rule, "message": message }))
        .collect()
}

/// A path: empty, or absolute.
pub(super) const PATH: &str = "^(/.*)?$";
/// Protocols of services.
pub(super) const PROTOCOLS: [&str; 5] = ["", "tcp", "http", "http2", "grpc"];
/// TLS versions.
pub(super) const TLS_VERSIONS: [&str; 6] =
    ["", "TLS_AUTO", "TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3"];
