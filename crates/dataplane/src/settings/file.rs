//! Settings from a JSON file: keys in any case, `null` like absent, the last of doubled keys
//! wins. A key that no setting has is refused, because it is most likely a misspelt one.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::table::{IGNORED_FILE_KEYS, Kind, SETTINGS, Setting};
use super::values::{Source, Value, Values};
use super::{SettingsError, go, invalid};

/// Reads the file.
pub(super) fn load(path: &Path) -> Result<Values, SettingsError> {
    let file = path.display();
    let bytes = std::fs::read(path)
        .map_err(|error| invalid(format!("open {file}: {}", go::os_error(&error))))?;
    let mut values = Values::default();
    serde_json::from_slice(&bytes)
        .map_err(|error| error.to_string())
        .and_then(|document| walk("", document, &mut values))
        .map_err(|reason| invalid(format!("config file {file}: {reason}")))?;
    Ok(values)
}

/// Reads the object under a key, or the whole document where the key is empty. Errors begin with
/// the key.
fn walk(under: &str, object: &RawValue, values: &mut Values) -> Result<(), String> {
    let place = match under {
        "" => "the whole document",
        key => key,
    };
    if !object.get().starts_with('{') {
        return match parse(place, object)? {
            Json::Null => Ok(()),
            other => Err(format!("{place}: {}", expected("an object", &other))),
        };
    }
    let Entries(entries) = parse(place, object)?;
    for (name, value) in entries {
        let key = match under {
            "" => name,
            group => format!("{group}.{name}"),
        };
        match find(&key) {
            Place::Ignored => {}
            Place::Group => walk(&key, value, values)?,
            Place::Setting(setting) => match parse(&key, value)? {
                Json::Null => {}
                value => {
                    let value = typed(setting.kind, value);
                    let value = value.map_err(|reason| format!("{key}: {reason}"))?;
                    values.put(setting.key, Source::File, value);
                }
            },
            Place::Nowhere => {
                let known = siblings(under);
                return Err(format!("unknown key {key}; known here: {known}"));
            }
        }
    }
    Ok(())
}

fn parse<'a, T: Deserialize<'a>>(key: &str, value: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(value.get()).map_err(|error| format!("{key}: {error}"))
}

enum Place {
    Setting(&'static Setting),
    Group,
    Ignored,
    Nowhere,
}

fn find(key: &str) -> Place {
    if IGNORED_FILE_KEYS
        .iter()
        .any(|ignored| ignored.eq_ignore_ascii_case(key))
    {
        return Place::Ignored;
    }
    for setting in SETTINGS {
        let Some(full) = setting.file else { continue };
        if full.eq_ignore_ascii_case(key) {
            return Place::Setting(setting);
        }
        let is_group = full.get(..key.len()).is_some_and(|start| {
            start.eq_ignore_ascii_case(key) && full[key.len()..].starts_with('.')
        });
        if is_group {
            return Place::Group;
        }
    }
    Place::Nowhere
}

/// The names that can stand directly under a group, each once.
fn siblings(under: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for full in SETTINGS.iter().filter_map(|setting| setting.file) {
        let below = if under.is_empty() {
            Some(full)
        } else {
            full.get(..under.len())
                .filter(|start| start.eq_ignore_ascii_case(under))
                .and_then(|_| full[under.len()..].strip_prefix('.'))
        };
        let name = below.and_then(|below| below.split('.').next());
        names.extend(name.filter(|name| !names.contains(name)));
    }
    names.join(", ")
}

fn typed(kind: Kind, value: Json) -> Result<Value, String> {
    let what = match kind {
        Kind::Text | Kind::Secret => "a string",
        Kind::Int => "an integer",
        Kind::Bool => "true or false",
        Kind::Duration => return duration(&value).map(Value::Duration),
        Kind::Pairs => "an object of strings",
    };
    Ok(match (kind, value) {
        (Kind::Text | Kind::Secret, Json::String(text)) => Value::Text(text),
        (Kind::Int, Json::Number(number)) if number.is_i64() => {
            Value::Int(number.as_i64().unwrap_or_default())
        }
        (Kind::Bool, Json::Bool(flag)) => Value::Bool(flag),
        (Kind::Pairs, Json::Object(entries)) => Value::Pairs(pairs(entries)?),
        (_, other) => return Err(expected(what, &other)),
    })
}

fn pairs(entries: serde_json::Map<String, Json>) -> Result<BTreeMap<String, String>, String> {
    let text = |(name, value)| match value {
        Json::String(text) => Ok((name, text)),
        // Like a missing value in the original: the empty string.
        Json::Null => Ok((name, String::new())),
        other => Err(expected(&format!("a string for {name}"), &other)),
    };
    entries.into_iter().map(text).collect()
}

/// Text with units, or a number of nanoseconds.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the fraction of a nanosecond is dropped on purpose"
)]
fn duration(value: &Json) -> Result<i64, String> {
    match value {
        Json::String(text) => go::parse_duration(text),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(nanoseconds), _) => Ok(nanoseconds),
            // 2^63 is the first value that does not fit, and exact as a float.
            (_, Some(nanoseconds)) if nanoseconds.abs() < 9_223_372_036_854_775_808.0 => {
                Ok(nanoseconds as i64)
            }
            _ => Err(format!(
                "invalid duration: {number} nanoseconds are too many"
            )),
        },
        other => Err(format!("invalid duration: {}", describe(other))),
    }
}

fn expected(what: &str, found: &Json) -> String {
    format!("expected {what}, found {}", describe(found))
}

/// The type in words; never the value, which may be a secret.
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

/// The entries of a JSON object in their order, doubled ones included.
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
            .map(|values| values.duration(Item::PromRetentionTime))
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
        assert_eq!(meta(r#"{"a": "1", "B": ""}"#), Ok(2));
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
