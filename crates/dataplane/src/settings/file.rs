//! Settings from a JSON file: keys in any case, `null` like absent, the last of doubled keys
//! wins. A key that no setting has is refused, because it is most likely a misspelt one.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::go;
use super::table::{IGNORED_FILE_KEYS, Kind, SETTINGS, Setting};
use super::values::{Source, Value, Values};

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The name does not end in `.json`.
    #[error("invalid config file format. Should be a json file")]
    Suffix,
    /// It cannot be read.
    #[error("open {}: {}", path.display(), go::os_error(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// It is not JSON.
    #[error("config file {}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A key's value is of another type than the setting takes.
    #[error("config file {}: {key}: {reason}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key with those it lies under, joined by dots.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// No setting has this key.
    #[error("config file {}: unknown key {key}; known here: {known}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The key with those it lies under, joined by dots.
        key: String,
        /// The keys that could stand in its place.
        known: String,
    },
}

/// Reads the file.
pub(super) fn load(path: &Path) -> Result<Values, FileError> {
    let bytes = std::fs::read(path).map_err(|source| FileError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    let node: Node = serde_json::from_slice(&bytes).map_err(|source| FileError::Json {
        path: path.to_path_buf(),
        source,
    })?;
    let mut values = Values::default();
    match node {
        Node::Null => {}
        Node::Object(entries) => walk(path, "", entries, &mut values)?,
        other => {
            let reason = format!("expected an object, found {}", other.describe());
            let key = "the whole document".to_owned();
            return Err(FileError::Value {
                path: path.to_path_buf(),
                key,
                reason,
            });
        }
    }
    Ok(values)
}

fn walk(
    path: &Path,
    under: &str,
    entries: Vec<(String, Node)>,
    values: &mut Values,
) -> Result<(), FileError> {
    for (name, node) in entries {
        let key = if under.is_empty() {
            name
        } else {
            format!("{under}.{name}")
        };
        let wrong = |reason| FileError::Value {
            path: path.to_path_buf(),
            key: key.clone(),
            reason,
        };
        match find(&key) {
            Place::Ignored => {}
            Place::Setting(_) | Place::Group if matches!(node, Node::Null) => {}
            Place::Setting(setting) => {
                let value = typed(setting.kind, node).map_err(wrong)?;
                values.put(setting.key, Source::File, value);
            }
            Place::Group => match node {
                Node::Object(entries) => walk(path, &key, entries, values)?,
                other => {
                    return Err(wrong(format!(
                        "expected an object, found {}",
                        other.describe()
                    )));
                }
            },
            Place::Nowhere => {
                let known = siblings(under);
                return Err(FileError::Unknown {
                    path: path.to_path_buf(),
                    key,
                    known,
                });
            }
        }
    }
    Ok(())
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

fn typed(kind: Kind, node: Node) -> Result<Value, String> {
    let expected = |what: &str, node: &Node| format!("expected {what}, found {}", node.describe());
    Ok(match (kind, node) {
        (Kind::Text | Kind::Secret, Node::Text(text)) => Value::Text(text),
        (Kind::Text | Kind::Secret, node) => return Err(expected("a string", &node)),
        (Kind::Int, Node::Int(number)) => Value::Int(number),
        (Kind::Int, node) => return Err(expected("an integer", &node)),
        (Kind::Bool, Node::Bool(flag)) => Value::Bool(flag),
        (Kind::Bool, node) => return Err(expected("true or false", &node)),
        (Kind::Duration, Node::Text(text)) => Value::Duration(go::parse_duration(&text)?),
        (Kind::Duration, Node::Int(nanoseconds)) => Value::Duration(nanoseconds),
        (Kind::Duration, Node::Float(nanoseconds)) => Value::Duration(truncated(nanoseconds)?),
        (Kind::Duration, node) => return Err(format!("invalid duration: {}", node.describe())),
        (Kind::Pairs, Node::Object(entries)) => {
            let mut pairs = BTreeMap::new();
            for (name, node) in entries {
                match node {
                    Node::Text(text) => drop(pairs.insert(name, text)),
                    // Like a missing value in the original: the empty string.
                    Node::Null => drop(pairs.insert(name, String::new())),
                    other => return Err(expected(&format!("a string for {name}"), &other)),
                }
            }
            Value::Pairs(pairs)
        }
        (Kind::Pairs, node) => return Err(expected("an object of strings", &node)),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the fraction of a nanosecond is dropped on purpose"
)]
fn truncated(nanoseconds: f64) -> Result<i64, String> {
    // 2^63 is the first value that does not fit, and exact as a float.
    if nanoseconds.abs() < 9_223_372_036_854_775_808.0 {
        Ok(nanoseconds as i64)
    } else {
        Err(format!(
            "invalid duration: {nanoseconds} nanoseconds are too many"
        ))
    }
}

/// JSON with the order and the doubles of its keys.
enum Node {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List,
    Object(Vec<(String, Node)>),
}

impl Node {
    /// The type in words; never the value, which may be a secret.
    fn describe(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "a number",
            Self::Float(_) => "a number with a fraction or too large a number",
            Self::Text(_) => "a string",
            Self::List => "a list",
            Self::Object(_) => "an object",
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value))
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "only told apart from integers that fit"
    )]
    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(i64::try_from(value).map_or(Node::Float(value as f64), Node::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        while items.next_element::<Node>()?.is_some() {}
        Ok(Node::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut found = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            found.push(entry);
        }
        Ok(Node::Object(found))
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
