//! Formats of a time in UTC, as Envoy's `%START_TIME(...)%` has them.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The format without parameters: `2006-01-02T15:04:05.000Z`.
const DEFAULT: &str = "%Y-%m-%dT%H:%M:%E3SZ";

/// A format of a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TimeFormat(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// One letter of `strftime`.
    Field(char),
    /// Digits of a part of a second, `%3f`.
    Fraction(usize),
    /// Seconds with digits of a part of one, `%E3S`.
    Seconds(usize),
}

impl TimeFormat {
    /// Parses a format; the default one if it is empty. `None` if it has something else than is known here.
    pub(super) fn parse(format: &str) -> Option<TimeFormat> {
        let format = if format.is_empty() { DEFAULT } else { format };
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut rest = format.chars();
        while let Some(next) = rest.next() {
            if next != '%' {
                text.push(next);
                continue;
            }
            let piece = match rest.next()? {
                '%' => {
                    text.push('%');
                    continue;
                }
                'f' => Piece::Fraction(9),
                digit @ '1'..='9' if rest.next() == Some('f') => Piece::Fraction(value(digit)),
                'E' => match (rest.next()?, rest.next()) {
                    (digit @ '1'..='9', Some('S')) => Piece::Seconds(value(digit)),
                    _ => return None,
                },
                field if "YmdHMSyeIpabABjsTFDRzZ".contains(field) => Piece::Field(field),
                _ => return None,
            };
            if !text.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
            }
            pieces.push(piece);
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        Some(TimeFormat(pieces))
    }

    /// A time in this format. A time before 1970 is shown as its begin.
    pub(super) fn show(&self, time: SystemTime) -> String {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (time, nanos) = (Utc::new(since.as_secs()), since.subsec_nanos());
        let mut out = String::new();
        for piece in &self.0 {
            let digits = |count: usize| format!("{nanos:09}").split_at(count).0.to_owned();
            // Writing to a string does not fail.
            let _ = match piece {
                Piece::Text(text) => out.write_str(text),
                Piece::Field(field) => time.field(*field, &mut out),
                Piece::Fraction(count) => out.write_str(&digits(*count)),
                Piece::Seconds(count) => write!(out, "{:02}.{}", time.second, digits(*count)),
            };
        }
        out
    }
}

fn value(digit: char) -> usize {
    digit.to_digit(10).map_or(0, |value| value as usize)
}

/// A time in UTC.
struct Utc {
    unix: u64,
    year: u64,
    /// From 1.
    month: usize,
    /// Of the month, from 1.
    day: u64,
    /// Of the year, from 1.
    day_of_year: u64,
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Utc {
    fn new(unix: u64) -> Utc {
        let (days, seconds) = (unix / 86_400, unix % 86_400);
        let (mut year, mut left) = (1970, days);
        // 400 years always have the same number of days.
        year += left / 146_097 * 400;
        left %= 146_097;
        while left >= days_of_year(year) {
            left -= days_of_year(year);
            year += 1;
        }
        let day_of_year = left + 1;
        let mut month = 1;
        while left >= days_of_month(year, month) {
            left -= days_of_month(year, month);
            month += 1;
        }
        Utc {
            unix,
            year,
            month,
            day: left + 1,
            day_of_year,
            // The first day of 1970 was a Thursday.
            weekday: usize::try_from((days + 4) % 7).unwrap_or_default(),
            hour: seconds / 3600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }

    fn field(&self, field: char, out: &mut String) -> std::fmt::Result {
        let (weekday, month) = (WEEKDAYS[self.weekday], MONTHS[self.month - 1]);
        match field {
            'Y' => write!(out, "{}", self.year),
            'm' => write!(out, "{:02}", self.month),
            'd' => write!(out, "{:02}", self.day),
            'e' => write!(out, "{:2}", self.day),
            'H' => write!(out, "{:02}", self.hour),
            'I' => write!(out, "{:02}", (self.hour + 11) % 12 + 1),
            'M' => write!(out, "{:02}", self.minute),
            'S' => write!(out, "{:02}", self.second),
            'y' => write!(out, "{:02}", self.year % 100),
            'p' => out.write_str(if self.hour < 12 { "AM" } else { "PM" }),
            'a' => out.write_str(&weekday[..3]),
            'A' => out.write_str(weekday),
            'b' => out.write_str(&month[..3]),
            'B' => out.write_str(month),
            'j' => write!(out, "{:03}", self.day_of_year),
            's' => write!(out, "{}", self.unix),
            'T' => self.fields("H:M:S", out),
            'F' => self.fields("Y-m-d", out),
            'D' => self.fields("m/d/y", out),
            'R' => self.fields("H:M", out),
            'z' => out.write_str("+0000"),
            _ => out.write_str("UTC"),
        }
    }

    /// Several fields, with the punctuation between them.
    fn fields(&self, fields: &str, out: &mut String) -> std::fmt::Result {
        for field in fields.chars() {
            if field.is_ascii_alphabetic() {
                self.field(field, out)?;
            } else {
                out.write_char(field)?;
            }
        }
        Ok(())
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: u64, month: usize) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn show(format: &str, seconds: u64, nanos: u32) -> String {
        let time = UNIX_EPOCH + Duration::new(seconds, nanos);
        TimeFormat::parse(format).unwrap().show(time)
    }

    #[test]
    fn dates() {
        let format = "%Y-%m-%d %a %j";
        let cases = [
            (0, "1970-01-01 Thu 001"),
            (951_782_400, "2000-02-29 Tue 060"),
            (1_709_164_799, "2024-02-28 Wed 059"),
            (1_735_603_200, "2024-12-31 Tue 366"),
            (4_107_542_400, "2100-03-01 Mon 060"),
            (253_402_300_799, "9999-12-31 Fri 365"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(show(format, seconds, 0), expected);
        }
    }

    #[test]
    fn each_field() {
        let time = 1_709_164_799;
        assert_eq!(show("", time, 7_000_000), "2024-02-28T23:59:59.007Z");
        assert_eq!(
            show("%d/%b/%Y:%H:%M:%S %z %s", time, 0),
            "28/Feb/2024:23:59:59 +0000 1709164799"
        );
        assert_eq!(
            show("%A %B %e %I%p %y %T %D %F %R %Z%%", time, 0),
            "Wednesday February 28 11PM 24 23:59:59 02/28/24 2024-02-28 23:59 UTC%"
        );
        assert_eq!(
            show("%f %3f %6f %9f %E6S", time, 1_234_567),
            "001234567 001 001234 001234567 59.001234"
        );
        assert_eq!(show("%I", 0, 0), "12");
    }

    #[test]
    fn unknown_fields() {
        for format in ["%Q", "%", "%3d", "%E", "%E3H", "%n", "%0f", "%Ez"] {
            assert_eq!(TimeFormat::parse(format), None, "{format}");
        }
    }
}
