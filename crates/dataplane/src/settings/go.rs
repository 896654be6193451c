//! Literals as the original's flags and file take them: the grammar and the error texts of Go's
//! standard library, so that scripts which match on either keep working.

/// `true` and `false` in Go's spellings.
pub(super) fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!(
            "strconv.ParseBool: parsing {}: invalid syntax",
            quote(text)
        )),
    }
}

/// A decimal integer with an optional sign.
pub(super) fn parse_int(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let well_formed = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let reason = if well_formed {
        "value out of range"
    } else {
        "invalid syntax"
    };
    match text.parse() {
        Ok(value) if well_formed => Ok(value),
        _ => Err(format!("strconv.Atoi: parsing {}: {reason}", quote(text))),
    }
}

/// A duration like `1h2m`, in nanoseconds. It may be negative.
pub(super) fn parse_duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let (whole, after_whole) = split_digits(rest);
        let (fraction, after_number) = match after_whole.strip_prefix('.') {
            Some(after_point) => split_digits(after_point),
            None => ("", after_whole),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after_number
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after_number.len());
        let (unit, after) = after_number.split_at(end);
        let scale = unit_nanoseconds(unit).ok_or_else(|| match unit {
            "" => format!("time: missing unit in duration {}", quote(text)),
            _ => format!(
                "time: unknown unit {} in duration {}",
                quote(unit),
                quote(text)
            ),
        })?;
        let part = scaled(whole, fraction, scale).ok_or_else(invalid)?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

fn unit_nanoseconds(unit: &str) -> Option<i128> {
    Some(match unit {
        "ns" => 1,
        // Micro sign and Greek mu look the same.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

fn scaled(whole: &str, fraction: &str, scale: i128) -> Option<i128> {
    let whole: i128 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    // An hour has 13 digits of nanoseconds; what lies behind cannot matter.
    let fraction = &fraction[..fraction.len().min(15)];
    let below = match fraction {
        "" => 0,
        digits => {
            let power = 10_i128.pow(u32::try_from(digits.len()).ok()?);
            digits.parse::<i128>().ok()? * scale / power
        }
    };
    whole.checked_mul(scale)?.checked_add(below)
}

/// Text in double quotes with Go's escapes.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// What the operating system says, in the lower case and without the number that people know
/// from the original.
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
            let expected = format!("strconv.Atoi: parsing {}: invalid syntax", quote(text));
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

    #[test]
    fn quoting() {
        assert_eq!(
            quote("a\"b\\c\nd\u{1}\u{7f}é\u{85}"),
            r#""a\"b\\c\nd\x01\x7fé\u0085""#
        );
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
