//! Tables in kubectl's format, and human-readable times.

use std::time::{Duration, SystemTime};

use legate_model::timestamp;

/// Formats rows in columns, the header first. Control characters are removed, because text from
/// pods and servers is printed to a terminal.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let header = header.iter().map(|cell| (*cell).to_owned()).collect();
    let mut all: Vec<Vec<String>> = vec![header];
    all.extend(
        rows.iter()
            .map(|row| row.iter().map(|cell| printable(cell)).collect()),
    );
    let columns = all.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = all.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in &all {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text += line.join("   ").trim_end();
        text.push('\n');
    }
    text
}

/// Replaces line breaks and control characters.
pub(super) fn printable(text: &str) -> String {
    let visible = |character: char| match character.is_control() {
        true => ' ',
        false => character,
    };
    text.trim().chars().map(visible).collect()
}

/// Formats a duration with at most two units: `12s`, `3m12s`, `2h5m`, `4d1h`.
pub(super) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let first = units.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let shown = units.iter().skip(first).take(2).enumerate();
    let shown = shown.filter(|(place, (count, _))| *place == 0 || *count > 0);
    shown
        .map(|(_, (count, unit))| format!("{count}{unit}"))
        .collect()
}

/// Formats a time as RFC 3339.
pub(super) fn time(time: SystemTime) -> String {
    timestamp::format(time).unwrap_or_else(|_| "an invalid time".to_owned())
}

/// Formats the time that is left until a certificate expires, or how long ago it expired.
pub(super) fn until(expires: SystemTime, now: SystemTime) -> String {
    match expires.duration_since(now) {
        Ok(left) => format!("in {}", duration(left)),
        Err(past) => format!("EXPIRED {} ago", duration(past.duration())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["web-1".to_owned(), "yes".to_owned()],
            vec!["a\u{1b}[2Jb".to_owned(), "no".to_owned()],
        ];
        let text = table(&["NAME", "READY"], &rows);
        assert_eq!(text, "NAME     READY\nweb-1    yes\na [2Jb   no\n");
    }

    #[test]
    fn durations_have_two_units() {
        let of = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!(of(0), "0s");
        assert_eq!(of(12), "12s");
        assert_eq!(of(60), "1m");
        assert_eq!(of(3 * 60 + 12), "3m12s");
        assert_eq!(of(86_400 + 5), "1d");
        assert_eq!(of(4 * 86_400 + 3 * 3600), "4d3h");
    }
}
