//! RFC 3339 times in JSON, formatted as in Go: UTC, fractions without trailing zeros.
//!
//! Never reads the clock.

use std::time::SystemTime;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Error as _, Serializer};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

/// How Go formats an unset time.
const GO_ZERO: &str = "0001-01-01T00:00:00Z";

/// A text that is not an RFC 3339 time, or a time that RFC 3339 cannot represent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time like 2030-01-31T12:00:00Z: {reason}")]
pub struct InvalidTime {
    text: String,
    reason: String,
}

/// Formats a time as RFC 3339 in UTC.
pub fn format(time: SystemTime) -> Result<String, InvalidTime> {
    OffsetDateTime::from(time)
        .format(&Rfc3339)
        .map_err(|error| InvalidTime {
            text: format!("{time:?}"),
            reason: error.to_string(),
        })
}

/// Parses an RFC 3339 time with any offset.
pub fn parse(text: &str) -> Result<SystemTime, InvalidTime> {
    let invalid = |reason: String| InvalidTime {
        text: text.to_owned(),
        reason,
    };
    let time = OffsetDateTime::parse(text, &Rfc3339).map_err(|error| invalid(error.to_string()))?;
    // The offset can move it out of the years that `format` can write.
    match time.checked_to_offset(UtcOffset::UTC) {
        Some(utc) => Ok(utc.into()),
        None => Err(invalid("in UTC it is after the year 9999".to_owned())),
    }
}

/// For `#[serde(with = "timestamp")]`.
pub fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*time).map_err(S::Error::custom)?)
}

/// For `#[serde(with = "timestamp")]`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// For optional times. An empty text and Go's zero time deserialise as `None`.
pub mod option {
    use super::*;

    /// For `#[serde(with = "timestamp::option")]`.
    pub fn serialize<S: Serializer>(
        time: &Option<SystemTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::serialize(time, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// For `#[serde(with = "timestamp::option")]`.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SystemTime>, D::Error> {
        match Option::<String>::deserialize(deserializer)? {
            None => Ok(None),
            Some(text) if text.is_empty() || text == GO_ZERO => Ok(None),
            Some(text) => parse(&text).map(Some).map_err(D::Error::custom),
        }
    }
}
