//! Durations as the Gateway API writes them.

use std::time::Duration;

/// Reads a duration like `1h30m` or `500ms`: one to four times a number of at most five digits with
/// its unit.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        parts += 1;
        if digits > 5 || parts > 4 {
            return None;
        }
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit());
        let (unit, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        sum += match unit {
            "h" => Duration::from_secs(number * 3_600),
            "m" => Duration::from_secs(number * 60),
            "s" => Duration::from_secs(number),
            "ms" => Duration::from_millis(number),
            _ => return None,
        };
    }
    (parts > 0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let millis = Duration::from_millis;
        for (text, expected) in [
            ("0s", Some(millis(0))),
            ("500ms", Some(millis(500))),
            ("1h30m", Some(millis(5_400_000))),
            ("1s500ms", Some(millis(1_500))),
            ("", None),
            ("5", None),
            ("s", None),
            ("1d", None),
            ("123456s", None),
            ("99999999999999999999s", None),
            ("1.5s", None),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}
