//! Durations in Go's notation (`1h30m`, `250ms`): wait times, TTLs, intervals, leeways.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A text that is not a duration, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration like 10s, 1h30m or 250ms (invalid duration: {reason})")]
pub struct InvalidDuration {
    text: String,
    reason: &'static str,
}

/// A signed duration of whole nanoseconds, as Go has it (about ±292 years).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

impl GoDuration {
    /// The zero duration.
    pub const ZERO: GoDuration = GoDuration(0);

    /// Creates a duration of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        GoDuration(nanos)
    }

    /// Creates a duration of `seconds` seconds; saturates at the longest duration.
    pub const fn from_secs(seconds: i64) -> Self {
        GoDuration(seconds.saturating_mul(SECOND as i64))
    }

    /// The number of nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Whether it is zero.
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// Whether it is negative.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Converts to an unsigned duration; negative values become zero.
    pub const fn to_duration(self) -> Duration {
        if self.0 <= 0 {
            Duration::ZERO
        } else {
            Duration::from_nanos(self.0 as u64)
        }
    }
}

impl From<Duration> for GoDuration {
    /// Saturates at the longest duration that Go can hold.
    fn from(duration: Duration) -> Self {
        GoDuration(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for GoDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        let fail = |reason| InvalidDuration {
            text: text.to_owned(),
            reason,
        };
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if unsigned == "0" {
            return Ok(GoDuration::ZERO);
        }
        if unsigned.is_empty() {
            return Err(fail("it is empty"));
        }
        let mut rest = unsigned;
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (nanos, after) = component(rest).map_err(fail)?;
            total = total.checked_add(nanos).ok_or_else(|| fail(TOO_LONG))?;
            rest = after;
        }
        match i64::try_from(total) {
            Ok(nanos) => Ok(GoDuration(if negative { -nanos } else { nanos })),
            Err(_) => Err(fail(TOO_LONG)),
        }
    }
}

const TOO_LONG: &str = "it is longer than about 292 years";

/// Parses one number with its unit from the start of a text: `1.5h30m` yields 1.5 h and the rest
/// `30m`.
fn component(text: &str) -> Result<(u64, &str), &'static str> {
    let number_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(number_end);
    let unit_end = rest
        .find(|c: char| c.is_ascii_digit() || c == '.' || c == '-' || c == '+')
        .unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err("a number is missing");
    }
    if fraction.contains('.') {
        return Err("a number has two decimal points");
    }
    let unit = match unit {
        "ns" => 1,
        // Go accepts both the micro sign and the Greek letter, which look the same.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "" => return Err("a unit is missing (ns, us, ms, s, m, h)"),
        _ => return Err("the unit is unknown (known: ns, us, ms, s, m, h)"),
    };
    let mut nanos = match whole {
        "" => 0,
        digits => digits
            .parse::<u64>()
            .ok()
            .and_then(|whole| whole.checked_mul(unit))
            .ok_or(TOO_LONG)?,
    };
    let mut place = unit as f64;
    let mut part = 0.0;
    for digit in fraction.bytes() {
        place /= 10.0;
        part += f64::from(digit - b'0') * place;
    }
    // Rounded, so that a fraction such as 0.1 is not one nanosecond short in binary.
    nanos = nanos.checked_add(part.round() as u64).ok_or(TOO_LONG)?;
    Ok((nanos, rest))
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let nanos = self.0.unsigned_abs();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if nanos < SECOND {
            let (unit, name) = match nanos {
                n if n < MICROSECOND => (1, "ns"),
                n if n < MILLISECOND => (MICROSECOND, "\u{b5}s"),
                _ => (MILLISECOND, "ms"),
            };
            return write!(f, "{}{name}", Decimal(nanos, unit));
        }
        let (hours, minutes) = (nanos / HOUR, nanos % HOUR / MINUTE);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", Decimal(nanos % MINUTE, SECOND))
    }
}

/// A number of nanoseconds, as a decimal number of a unit without trailing zeros.
struct Decimal(u64, u64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decimal(nanos, unit) = *self;
        write!(f, "{}", nanos / unit)?;
        let rest = nanos % unit;
        if rest == 0 {
            return Ok(());
        }
        let digits = unit.ilog10() as usize;
        let fraction = format!("{rest:0digits$}");
        write!(f, ".{}", fraction.trim_end_matches('0'))
    }
}

/// Parses a duration that must not be negative.
///
/// # Errors
///
/// [`InvalidDuration`] when the text is not a duration, or a negative one.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let duration: GoDuration = text.parse()?;
    if duration.is_negative() {
        return Err(InvalidDuration {
            text: text.to_owned(),
            reason: "it is negative",
        });
    }
    Ok(duration.to_duration())
}

/// Formats a duration as Go does: `1h30m0s`, `250ms`.
pub fn format(duration: Duration) -> String {
    GoDuration::from(duration).to_string()
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    /// Accepts a text in Go's notation, or a whole number of nanoseconds. An empty text is zero.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = GoDuration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration like \"10s\", or nanoseconds")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
                if text.is_empty() {
                    return Ok(GoDuration::ZERO);
                }
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, nanos: i64) -> Result<GoDuration, E> {
                Ok(GoDuration(nanos))
            }
            fn visit_u64<E: de::Error>(self, nanos: u64) -> Result<GoDuration, E> {
                i64::try_from(nanos)
                    .map(GoDuration)
                    .map_err(|_| E::custom("the number of nanoseconds is too large"))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The `format` of durations in JSON Schemas.
pub const FORMAT: &str = "go-duration";

fn schema(sign: &str) -> Schema {
    json_schema!({
        "type": "string",
        "format": FORMAT,
        "maxLength": 64,
        "pattern": format!("^{sign}([0-9]+(\\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$|^0$"),
    })
}

impl JsonSchema for GoDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schema("-?")
    }
}

/// The JSON Schema of durations that are not negative, for `Duration` fields:
/// `#[schemars(with = "duration::Unsigned")]`.
pub(crate) struct Unsigned;

impl JsonSchema for Unsigned {
    fn schema_name() -> Cow<'static, str> {
        "UnsignedDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schema("")
    }
}

/// For `Duration` fields: `#[serde(with = "duration::text")]` deserialises like [`GoDuration`],
/// refuses negative values, and serialises in Go's notation.
pub mod text {
    use super::*;

    /// Serialises in Go's notation.
    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        GoDuration::from(*value).serialize(serializer)
    }

    /// Deserialises Go's notation or nanoseconds.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let duration = GoDuration::deserialize(deserializer)?;
        if duration.is_negative() {
            return Err(de::Error::custom(format_args!(
                "the duration {duration} is negative"
            )));
        }
        Ok(duration.to_duration())
    }
}

/// Like [`text`], but serialises as whole nanoseconds. Consul returns some fields so, and its Go
/// client accepts no other form.
pub mod nanos {
    use super::*;

    pub use super::text::deserialize;

    /// Serialises as nanoseconds; saturates at Go's longest duration.
    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(GoDuration::from(*value).0)
    }
}
