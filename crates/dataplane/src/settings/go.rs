//! Literals in Go's grammar, with the error texts of Go's standard library, so that scripts that
//! match on them keep working.

use std::num::{IntErrorKind, ParseIntError};

use legate_model::duration::GoDuration;

/// A boolean in one of Go's spellings.
pub(super) fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!(
            "strconv.ParseBool: parsing {text:?}: invalid syntax"
        )),
    }
}

/// A decimal integer with an optional sign.
pub(super) fn parse_int(text: &str) -> Result<i64, String> {
    text.parse().map_err(|error: ParseIntError| {
        let reason = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.Atoi: parsing {text:?}: {reason}")
    })
}

/// A duration like `1h2m`, in nanoseconds. It may be negative.
pub(super) fn parse_duration(text: &str) -> Result<i64, String> {
    let parsed = text.parse().map(GoDuration::as_nanos);
    parsed.map_err(|_| not_a_duration(text))
}

/// Go's error message for an invalid duration.
fn not_a_duration(text: &str) -> String {
    const UNITS: [&str; 8] = ["ns", "us", "\u{b5}s", "\u{3bc}s", "ms", "s", "m", "h"];
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = |c: char| c == '.' || c.is_ascii_digit();
    let mut units = unsigned.split(is_number).filter(|unit| !unit.is_empty());
    match units.find(|unit| !UNITS.contains(unit)) {
        Some(unit) if unsigned.starts_with(is_number) => {
            format!("time: unknown unit {unit:?} in duration {text:?}")
        }
        None if unsigned.ends_with(|c: char| c.is_ascii_digit()) => {
            format!("time: missing unit in duration {text:?}")
        }
        _ => format!("time: invalid duration {text:?}"),
    }
}

/// The operating system's error message as Go prints it: lower case, without the error number.
pub(super) fn os_error(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => nix::errno::Errno::from_raw(code).desc().to_lowercase(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers() {
        for (text, value) in [("0", 0), ("8502", 8502), ("+5", 5), ("-1", -1), ("007", 7)] {
            assert_eq!(parse_int(text), Ok(value));
        }
        for text in ["", "abc", "0x10", "1_000", " 1", "1 ", "8502.0", "+", "--1"] {
            let expected = format!("strconv.Atoi: parsing {text:?}: invalid syntax");
            assert_eq!(parse_int(text), Err(expected));
        }
        let error = parse_int("9223372036854775808").unwrap_err();
        assert!(error.ends_with("value out of range"), "{error}");
    }

    #[test]
    fn booleans() {
        for text in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(parse_bool(text), Ok(true));
        }
        for text in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(parse_bool(text), Ok(false));
        }
        assert_eq!(
            parse_bool("maybe").unwrap_err(),
            "strconv.ParseBool: parsing \"maybe\": invalid syntax"
        );
        assert!(parse_bool("tRUE").is_err());
    }

    #[test]
    fn durations() {
        const SECOND: i64 = 1_000_000_000;
        for (text, value) in [
            ("0", 0),
            ("-0", 0),
            ("60s", 60 * SECOND),
            ("1h2m", 3720 * SECOND),
            ("-1.5s", -1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", SECOND),
            ("1us2µs3μs", 6_000),
            ("+5ms", 5_000_000),
            ("0.123456789012345678s", 123_456_789),
            ("9223372036854775807ns", i64::MAX),
        ] {
            assert_eq!(parse_duration(text), Ok(value), "{text}");
        }
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("abc", "time: invalid duration \"abc\""),
            (".s", "time: invalid duration \".s\""),
            ("10", "time: missing unit in duration \"10\""),
            ("10 s", "time: unknown unit \" s\" in duration \"10 s\""),
            ("3d", "time: unknown unit \"d\" in duration \"3d\""),
            (
                "9223372036854775808ns",
                "time: invalid duration \"9223372036854775808ns\"",
            ),
            (
                "99999999999999999999999999999999999999999h",
                "time: invalid duration \"99999999999999999999999999999999999999999h\"",
            ),
        ] {
            assert_eq!(parse_duration(text), Err(error.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_a_parser(text in any::<String>()) {
            let _ = (parse_bool(&text), parse_int(&text), parse_duration(&text));
        }

        #[test]
        fn durations_survive_their_text(nanoseconds in any::<i64>()) {
            let text = format!("{nanoseconds}ns");
            prop_assert_eq!(parse_duration(&text), Ok(nanoseconds));
        }
    }
}
