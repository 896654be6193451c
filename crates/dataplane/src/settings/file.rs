//! Reads settings from a JSON file. Keys are case-insensitive, `null` counts as absent, and the last
//! of duplicate keys wins. Unknown keys are refused, because most of them are typos.

use std::fmt;
use std::path::Path;

use anyhow::anyhow;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::go;
use super::table::{IGNORED_FILE_KEY, Item, Kind, SETTINGS};
use super::values::{Source, Values};

/// Reads the file.
pub(super) fn read(path: &Path, values: &mut Values) -> anyhow::Result<()> {
    let file = path.display();
    let bytes =
        std::fs::read(path).map_err(|error| anyhow!("open {file}: {}", go::os_error(&error)))?;
    let document = serde_json::from_slice(&bytes).map_err(|error| error.to_string());
    let taken = document.and_then(|document| walk("", document, values));
    taken.map_err(|reason| anyhow!("config file {file}: {reason}"))
}

/// Reads the object at `prefix`, which is empty for the whole document and otherwise ends in a dot.
/// Errors start with the key.
fn walk(prefix: &str, object: &RawValue, values: &mut Values) -> Result<(), String> {
    let place = prefix.strip_suffix('.').unwrap_or("the whole document");
    if !object.get().starts_with('{') {
        return match parse(place, object)? {
            Json::Null => Ok(()),
            other => Err(format!("{place}: {}", expected("an object", &other))),
        };
    }
    let Entries(entries) = parse(place, object)?;
    for (name, value) in entries {
        let (key, group) = (format!("{prefix}{name}"), format!("{prefix}{name}."));
        let is = |known: &str| known.eq_ignore_ascii_case(&key);
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.file.is_some_and(is)) {
            let taken = take(setting.key, parse(&key, value)?, values);
            taken.map_err(|reason| format!("{key}: {reason}"))?;
        } else if !names(&group).is_empty() {
            walk(&group, value, values)?;
        } else if !is(IGNORED_FILE_KEY) {
            let known = names(prefix).join(", ");
            return Err(format!("unknown key {key}; known here: {known}"));
        }
    }
    Ok(())
}

fn parse<'a, T: Deserialize<'a>>(key: &str, value: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(value.get()).map_err(|error| format!("{key}: {error}"))
}

/// The distinct names that can follow a prefix.
fn names(prefix: &str) -> Vec<&'static str> {
    let mut names = Vec::new();
    for key in SETTINGS.iter().filter_map(|setting| setting.file) {
        let below = match key.split_at_checked(prefix.len()) {
            Some((start, rest)) if start.eq_ignore_ascii_case(prefix) => rest.split('.').next(),
            _ => None,
        };
        names.extend(below.filter(|name| !names.contains(name)));
    }
    names
}

/// Stores the value of a setting.
fn take(item: Item, value: Json, values: &mut Values) -> Result<(), String> {
    let kind = item.setting().kind;
    let text = match (kind, value) {
        (_, Json::Null) => return Ok(()),
        (Kind::Text | Kind::Secret | Kind::Duration, Json::String(text)) => text,
        (Kind::Int, Json::Number(number)) if number.is_i64() => number.to_string(),
        (Kind::Bool, Json::Bool(flag)) => flag.to_string(),
        (Kind::Duration, Json::Number(number)) => format!("{}ns", nanoseconds(&number)?),
        (Kind::Duration, other) => return Err(format!("invalid duration: {}", describe(&other))),
        (Kind::Pairs, Json::Object(entries)) => {
            for (name, value) in entries {
                let value = match value {
                    Json::String(text) => text,
                    // As in Consul's dataplane: a missing value is the empty string.
                    Json::Null => String::new(),
                    other => return Err(expected(&format!("a string for {name}"), &other)),
                };
                values.put_named(item, &name, Source::File, &value);
            }
            return Ok(());
        }
        (Kind::Text | Kind::Secret, other) => return Err(expected("a string", &other)),
        (Kind::Int, other) => return Err(expected("an integer", &other)),
        (Kind::Bool, other) => return Err(expected("true or false", &other)),
        (Kind::Pairs, other) => return Err(expected("an object of strings", &other)),
    };
    values.put(item, Source::File, &text)
}

/// A duration without a unit. Fractions of a nanosecond are dropped.
fn nanoseconds(number: &serde_json::Number) -> Result<i64, String> {
    match (number.as_i64(), number.as_f64()) {
        (Some(nanoseconds), _) => Ok(nanoseconds),
        // 2^63 is the smallest value that does not fit, and exact as a float.
        (_, Some(nanoseconds)) if nanoseconds.abs() < 9_223_372_036_854_775_808.0 => {
            Ok(nanoseconds as i64)
        }
        _ => Err(format!(
            "invalid duration: {number} nanoseconds are too many"
        )),
    }
}

fn expected(what: &str, found: &Json) -> String {
    format!("expected {what}, found {}", describe(found))
}

/// The type as a word; never the value, which may be a secret.
fn describe(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(number) if number.is_i64() => "a number",
        Json::Number(_) => "a number with a fraction or too large a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// The entries of a JSON object in order, including duplicates.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Entries<'de>, A::Error> {
        let mut found = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            found.push(entry);
        }
        Ok(Entries(found))
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Item;
    use super::*;

    fn load(path: &Path) -> anyhow::Result<Values> {
        let mut values = Values::default();
        read(path, &mut values)?;
        Ok(values)
    }

    fn parsed(json: &str) -> Result<Values, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, json).unwrap();
        let prefix = format!("config file {}: ", path.display());
        load(&path).map_err(|error| error.to_string().replace(&prefix, ""))
    }

    #[test]
    fn keys_match_in_any_case_and_the_last_double_wins() {
        let values = parsed(
            r#"{"CONSUL": {"Addresses": "a", "grpcport": 1, "grpcPort": 2},
                "proxy": {"ID": "web", "nodeName": null}, "service": null, "logging": {"name": 7}}"#,
        )
        .unwrap();
        assert_eq!(values.text(Item::Addresses), "a");
        assert_eq!(values.int(Item::GrpcPort), 2);
        assert_eq!(values.text(Item::ProxyId), "web");
        assert!(!values.given(Item::ProxyNodeName));
    }

    #[test]
    fn durations_are_text_or_nanoseconds() {
        let retention = |json: &str| {
            parsed(&format!(
                r#"{{"telemetry":{{"prometheus":{{"retentionTime":{json}}}}}}}"#
            ))
            .map(|values| values.duration(Item::PromRetentionTime).unwrap().as_nanos())
        };
        assert_eq!(retention("\"1m\""), Ok(60_000_000_000));
        assert_eq!(retention("1500"), Ok(1500));
        assert_eq!(retention("1.9e3"), Ok(1900));
        assert_eq!(retention("1.9"), Ok(1));
        assert!(retention("1e300").unwrap_err().contains("too many"));
        assert!(
            retention("true")
                .unwrap_err()
                .contains("invalid duration: a boolean")
        );
        assert!(retention("\"5\"").unwrap_err().contains("missing unit"));
    }

    #[test]
    fn metadata_is_an_object_of_strings() {
        let meta = |json: &str| {
            parsed(&format!(
                r#"{{"consul":{{"credentials":{{"login":{{"meta":{json}}}}}}}}}"#
            ))
            .map(|values| values.pairs(Item::LoginMeta).len())
        };
        assert_eq!(meta(r#"{"a": "1", "B": "", "a=b": "="}"#), Ok(3));
        assert!(meta(r#"{"a": 1}"#).unwrap_err().contains("a string for a"));
        assert!(meta("[]").unwrap_err().contains("an object of strings"));
    }

    #[test]
    fn wrong_types_and_unknown_keys_are_named() {
        for (json, expected) in [
            (
                r#"{"consul":{"grpcPort":"8502"}}"#,
                "consul.grpcPort: expected an integer, found a string",
            ),
            (
                r#"{"consul":{"grpcPort":8502.0}}"#,
                "consul.grpcPort: expected an integer",
            ),
            (r#"{"mode":1}"#, "mode: expected a string, found a number"),
            (
                r#"{"logging":{"logJSON":"true"}}"#,
                "logging.logJSON: expected true or false",
            ),
            (
                r#"{"consul":[]}"#,
                "consul: expected an object, found a list",
            ),
            (
                r#"{"consul":{"grpcprot":1}}"#,
                "unknown key consul.grpcprot; known here: addresses, grpcPort",
            ),
            (r#"{"consul":{"nope":null}}"#, "unknown key consul.nope"),
            (
                r#"{"":{"mode":"sidecar"}}"#,
                "unknown key ; known here: mode",
            ),
            (r#"{"mode":{}}"#, "mode: expected a string, found an object"),
            (
                r#"{"extraArgs":[]}"#,
                "unknown key extraArgs; known here: mode, consul, proxy, service",
            ),
            ("[]", "the whole document: expected an object, found a list"),
            ("", "EOF while parsing"),
            ("{", "EOF while parsing"),
            ("{} {}", "trailing characters"),
        ] {
            let error = parsed(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
        let secret =
            parsed(r#"{"consul":{"credentials":{"static":{"token":987654}}}}"#).unwrap_err();
        assert!(!secret.contains("987654"), "{secret}");
        assert!(parsed("null").is_ok());
    }

    #[test]
    fn a_missing_file_reads_like_the_original() {
        let error = load(Path::new("nope.json")).unwrap_err().to_string();
        assert_eq!(error, "open nope.json: no such file or directory");
    }
}
