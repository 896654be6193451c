//! Lines in their final form, captured by a writer.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tracing::subscriber::with_default;

use super::*;

/// Captures what is written.
#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Vec<u8>>>);

impl io::Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn captured(level: Level, json: bool, log: impl FnOnce()) -> String {
    let capture = Capture::default();
    let writer = capture.clone();
    let options = LogOptions {
        name: "legate-dataplane",
        level,
        json,
    };
    with_default(subscriber(options, move || writer.clone()), log);
    let bytes = capture.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

/// The text after the time, which must have the documented form.
fn without_time(line: &str) -> &str {
    let (time, rest) = line.split_once(' ').unwrap();
    let shape: String = time
        .chars()
        .map(|letter| if letter.is_ascii_digit() { '0' } else { letter })
        .collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000Z");
    rest
}

fn check_text(log: impl FnOnce(), expected: &str) {
    let line = captured(Level::Trace, false, log);
    assert_eq!(without_time(&line), expected);
}

#[test]
fn text_pads_levels_and_names_the_logger() {
    check_text(
        || tracing::info!(target: "dns-proxy", "running dns proxy"),
        "[INFO]  legate-dataplane.dns-proxy: running dns proxy\n",
    );
    check_text(
        || tracing::error!("gone"),
        "[ERROR] legate-dataplane.runtime: gone\n",
    );
    check_text(
        || tracing::warn!(target: "legate_dataplane", "late"),
        "[WARN]  legate-dataplane: late\n",
    );
}

#[test]
fn text_quotes_only_if_required() {
    let address = "10.0.0.7:8502";
    check_text(
        || {
            tracing::info!(
                address,
                tries = 3,
                tls = false,
                why = "no \"route\"",
                none = "",
                "x"
            )
        },
        "[INFO]  legate-dataplane.runtime: x: address=10.0.0.7:8502 tries=3 tls=false \
         why=\"no \\\"route\\\"\" none=\"\"\n",
    );
    check_text(
        || tracing::info!(addresses = ?["a:1", "b:2"], colour = "\u{1b}[31m", "x"),
        "[INFO]  legate-dataplane.runtime: x: addresses=[\"a:1\", \"b:2\"] colour=\"\\x1b[31m\"\n",
    );
}

#[test]
fn text_prefixes_lines_of_a_value_with_bars() {
    check_text(
        || tracing::info!(a = 1, output = "one\ntwo \"2\"\n", b = 2, "exit"),
        "[INFO]  legate-dataplane.runtime: exit: a=1\n  output=\n  | one\n  | two \"2\"\n b=2\n",
    );
}

#[test]
fn fields_of_spans_come_first_and_the_latest_value_is_used() {
    check_text(
        || {
            let span = tracing::info_span!("session", server = "a", state = "new");
            span.record("state", "open");
            span.in_scope(|| tracing::info!(token = 7, "x"));
        },
        "[INFO]  legate-dataplane.runtime: x: server=a state=open token=7\n",
    );
}

#[test]
fn json_has_the_four_members_and_typed_fields() {
    let line = captured(Level::Info, true, || {
        let error: &dyn std::error::Error = &io::Error::other("refused\nhere");
        tracing::warn!(error, port = 8502, open = true, "cannot \"connect\"");
    });
    assert_eq!(line.matches('\n').count(), 1);
    let mut object: Value = serde_json::from_str(&line).unwrap();
    let time = object["@timestamp"].take();
    assert_eq!(
        time.as_str().unwrap().len(),
        "2026-11-21T01:42:14.847123Z".len()
    );
    let expected = serde_json::json!({
        "@level": "warn", "@message": "cannot \"connect\"", "@module": "legate-dataplane.runtime",
        "@timestamp": null, "error": "refused\nhere", "port": 8502, "open": true,
    });
    assert_eq!(object, expected);
}

#[test]
fn fields_cannot_replace_reserved_members() {
    let line = captured(Level::Info, true, || {
        tracing::info!("@level" = "error", "x")
    });
    let object: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(object["@level"], "info");
}

#[test]
fn events_below_the_level_are_dropped() {
    let log = || {
        tracing::debug!("small");
        tracing::warn!("large");
    };
    assert_eq!(captured(Level::Info, false, log).lines().count(), 1);
    assert_eq!(captured(Level::Debug, false, log).lines().count(), 2);
    assert_eq!(captured(Level::Error, false, log), "");
}

#[test]
fn levels_are_case_insensitive() {
    assert_eq!("WARN".parse::<Level>().unwrap(), Level::Warn);
    assert_eq!("trace".parse::<Level>().unwrap(), Level::Trace);
    let error = "loud".parse::<Level>().unwrap_err().to_string();
    assert_eq!(
        error,
        "unknown log level \"loud\": use trace, debug, info, warn or error"
    );
}

#[test]
fn followers_have_their_own_level() {
    use futures_util::FutureExt;

    let log = || {
        let read = |json| {
            let mut lines = follow(Level::Debug, json).unwrap();
            tracing::debug!(json, "seen by followers");
            let mut seen = Vec::new();
            while let Some(Some(line)) = lines.next().now_or_never() {
                // Other tests log concurrently.
                seen.extend(Some(line).filter(|line| line.contains("seen by followers")));
            }
            seen
        };
        let [text] = read(false).try_into().unwrap();
        assert!(
            text.ends_with("[DEBUG] legate-dataplane.runtime: seen by followers: json=false\n")
        );
        let [json] = read(true).try_into().unwrap();
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["@level"], "debug");
        tracing::warn!("the end");
    };
    let own = captured(Level::Warn, false, log);
    assert_eq!(own.lines().count(), 1, "{own}");
}
