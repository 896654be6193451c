//! Durations in Go's notation, and RFC 3339 times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use legate_model::duration::{GoDuration, format, parse};
use legate_model::timestamp;
use proptest::prelude::*;

#[test]
fn texts_are_parsed_as_in_go() {
    for (text, nanos) in [
        ("0", 0),
        ("0s", 0),
        ("10s", 10_000_000_000),
        ("+10s", 10_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1.5h", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("250ms", 250_000_000),
        ("3us", 3_000),
        ("3µs", 3_000),
        ("3μs", 3_000),
        ("7ns", 7),
        ("0.1s", 100_000_000),
        ("-1m", -60_000_000_000),
        ("2540400h10m10s", 9_145_440_610_000_000_000),
    ] {
        let parsed: GoDuration = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(parsed.as_nanos(), nanos, "{text}");
    }
}

#[test]
fn other_texts_are_refused_with_the_reason() {
    for (text, reason) in [
        ("", "empty"),
        ("-", "empty"),
        ("10", "unit is missing"),
        ("s", "number is missing"),
        (".s", "number is missing"),
        ("1.2.3s", "two decimal points"),
        ("1d", "unit is unknown"),
        ("1 s", "unit is unknown"),
        ("1s-2s", "number is missing"),
        ("9999999h", "292 years"),
        ("99999999999999999999s", "292 years"),
    ] {
        let error = text.parse::<GoDuration>().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert!(parse("-1s").unwrap_err().to_string().contains("negative"));
}

#[test]
fn durations_are_formatted_as_in_go() {
    for (nanos, text) in [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5\u{b5}s"),
        (250_000_000, "250ms"),
        (1_000_000_000, "1s"),
        (1_500_000_000, "1.5s"),
        (60_000_000_000, "1m0s"),
        (5_400_000_000_000, "1h30m0s"),
        (3_600_000_000_001, "1h0m0.000000001s"),
    ] {
        assert_eq!(GoDuration::from_nanos(nanos).to_string(), text);
    }
    assert_eq!(GoDuration::from_secs(-90).to_string(), "-1m30s");
    assert_eq!(format(Duration::from_secs(72 * 3600)), "72h0m0s");
    assert_eq!(GoDuration::from(Duration::MAX).as_nanos(), i64::MAX);
}

proptest! {
    #[test]
    fn formatting_and_parsing_agree(nanos in (i64::MIN + 1)..=i64::MAX) {
        let duration = GoDuration::from_nanos(nanos);
        prop_assert_eq!(duration.to_string().parse::<GoDuration>(), Ok(duration));
    }

    #[test]
    fn parsing_never_panics(text in "[+-]?([0-9.]{0,21}[a-zµ]{0,2}){0,3}") {
        let _ = text.parse::<GoDuration>();
    }

    #[test]
    fn times_survive_a_round_trip(seconds in 0..4_000_000_000_u64, nanos in 0..1_000_000_000_u32) {
        let time = UNIX_EPOCH + Duration::new(seconds, nanos);
        let text = timestamp::format(time).unwrap();
        prop_assert_eq!(timestamp::parse(&text), Ok(time));
    }
}

#[test]
fn times_are_formatted_as_in_go() {
    let time = |millis| -> SystemTime { UNIX_EPOCH + Duration::from_millis(millis) };
    assert_eq!(timestamp::format(time(0)).unwrap(), "1970-01-01T00:00:00Z");
    assert_eq!(
        timestamp::format(time(1_700_000_000_250)).unwrap(),
        "2023-11-14T22:13:20.25Z"
    );
    assert_eq!(
        timestamp::parse("2023-11-14T23:13:20.25+01:00"),
        Ok(time(1_700_000_000_250))
    );
    // A time that is within the years of RFC 3339 only with its offset cannot be written again.
    assert!(timestamp::parse("9999-12-31T23:59:59Z").is_ok());
    assert!(timestamp::parse("9999-12-31T23:59:59-23:00").is_err());
    assert!(
        timestamp::parse("yesterday")
            .unwrap_err()
            .to_string()
            .contains("yesterday")
    );
}
