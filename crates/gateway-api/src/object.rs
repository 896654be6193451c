//! Objects of a cluster: who they are, what they ask for, and what of that nobody here understands.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of an object in its namespace. That of an object without a namespace has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// The key of these names.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What every object has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// The namespace; empty for an object without one.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The number of the spec's last change.
    pub generation: i64,
    /// When it was made, as Kubernetes writes it: such texts are ordered like the times.
    pub creation_timestamp: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

impl Meta {
    /// The name in the namespace.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::new(&self.namespace, &self.name)
    }

    /// Orders objects: the older one precedes, and among those of one second the name decides.
    #[must_use]
    pub fn age(&self) -> (&str, &str, &str) {
        (&self.creation_timestamp, &self.namespace, &self.name)
    }
}

/// An object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object<T> {
    /// Who it is.
    pub meta: Meta,
    /// What it asks for.
    pub spec: T,
    /// The paths of fields of the spec that have no meaning here. Whoever uses the object answers
    /// for them: none is ignored.
    pub unserved: Vec<String>,
    /// Why the object cannot be read. It has then only what could be read without its rules and
    /// listeners.
    pub broken: Option<String>,
}

/// The parts of a spec in which other versions differ most, and without which the rest may be read.
const PARTS: [&str; 2] = ["rules", "listeners"];

/// Fields that ask for nothing with this value, in their experimental versions.
const NOTHING: [(&str, &str); 2] = [("defaultScope", "None"), ("useDefaultGateways", "None")];

impl<T: DeserializeOwned + Serialize + Default> Object<T> {
    /// Reads an object from its document.
    #[must_use]
    pub fn decode(document: &Value) -> Self {
        let (meta, nameless) = match Meta::deserialize(&document["metadata"]) {
            Ok(meta) => (meta, None),
            Err(error) => (Meta::default(), Some(format!("metadata: {error}"))),
        };
        let spec = match &document["spec"] {
            Value::Null => &Value::Object(serde_json::Map::new()),
            spec => spec,
        };
        let (decoded, broken) = match T::deserialize(spec) {
            Ok(decoded) => (decoded, None),
            Err(error) => {
                let mut rest = spec.clone();
                if let Value::Object(fields) = &mut rest {
                    fields.retain(|name, _| !PARTS.contains(&name.as_str()));
                }
                (
                    T::deserialize(&rest).unwrap_or_default(),
                    Some(error.to_string()),
                )
            }
        };
        let mut unserved = Vec::new();
        if broken.is_none() {
            // What was understood is what can be written again.
            let understood = serde_json::to_value(&decoded).unwrap_or_default();
            add_unserved(spec, &understood, "", &mut unserved);
        }
        Self {
            meta,
            spec: decoded,
            unserved,
            broken: nameless.or(broken),
        }
    }
}

impl<T> Object<T> {
    /// The first field without a meaning in a part of the spec, and otherwise outside of these
    /// parts: `rules[3]` is a part.
    pub(crate) fn unserved_in(&self, part: &str) -> Option<&str> {
        let is_in = |path: &&String| {
            let rest = path.strip_prefix(part);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.unserved.iter().find(is_in).map(String::as_str)
    }

    /// The first field without a meaning that is in no element of this list.
    pub(crate) fn unserved_outside(&self, list: &str) -> Option<&str> {
        let inside = format!("{list}[");
        let mut paths = self.unserved.iter();
        let found = paths.find(|path| !path.starts_with(&inside));
        found.map(String::as_str)
    }
}

fn add_unserved(written: &Value, understood: &Value, path: &str, unserved: &mut Vec<String>) {
    match (written, understood) {
        (Value::Object(written), Value::Object(understood)) => {
            for (name, value) in written {
                let path = match path {
                    "" => name.clone(),
                    path => format!("{path}.{name}"),
                };
                let asks_nothing = NOTHING
                    .iter()
                    .any(|(field, nothing)| *field == path && value == nothing);
                match understood.get(name) {
                    Some(understood) => add_unserved(value, understood, &path, unserved),
                    None if value.is_null() || asks_nothing => {}
                    None => unserved.push(path),
                }
            }
        }
        (Value::Array(written), Value::Array(understood)) => {
            for (at, (written, understood)) in written.iter().zip(understood).enumerate() {
                add_unserved(written, understood, &format!("{path}[{at}]"), unserved);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::types::HttpRoute;

    #[test]
    fn fields_without_a_meaning_are_found() {
        let document = json!({
            "metadata": {"namespace": "a", "name": "b", "generation": 3},
            "spec": {
                "useDefaultGateways": "None",
                "hostnames": ["a.test"],
                "rules": [
                    {"matches": [{"path": {"type": "Exact", "value": "/"}}]},
                    {"filters": [{"type": "ExternalAuth", "externalAuth": {"protocol": "GRPC"}}]},
                ],
            },
        });
        let route = Object::<HttpRoute>::decode(&document);
        assert_eq!(route.meta.key(), Key::new("a", "b"));
        assert_eq!(route.unserved, ["rules[1].filters[0].externalAuth"]);
        assert_eq!(route.unserved_in("rules[0]"), None);
        assert!(route.unserved_in("rules[1]").is_some());
        assert_eq!(route.unserved_outside("rules"), None);
    }

    #[test]
    fn what_can_be_read_of_a_broken_object_is_kept() {
        let spec = json!({"hostnames": ["a.test"], "rules": "all"});
        let route = Object::<HttpRoute>::decode(&json!({"spec": spec}));
        assert_eq!(route.spec.hostnames, ["a.test"]);
        assert!(route.broken.is_some());
    }

    #[test]
    fn an_object_whose_name_cannot_be_read_is_broken() {
        let document = json!({"metadata": {"namespace": "a", "name": 7}, "spec": {}});
        let route = Object::<HttpRoute>::decode(&document);
        let broken = route.broken.expect("it is broken");
        assert!(broken.starts_with("metadata: "), "{broken}");
    }
}
