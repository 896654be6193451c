//! Differences between two JSON documents or resource sets, as a list of fields. Pure; the size is bounded by a
//! budget.

use legate_envoy_json::encode;
use legate_resources::ResourceSet;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Maximum fields, resources and failures in a response.
pub(super) const FIELDS: usize = 5_000;
/// Maximum length of a value, in bytes of JSON.
const VALUE: usize = 4 * 1024;

/// The compared resource types, by short name. Secrets do not depend on config entries and are never shown.
const TYPES: [(&str, &str); 4] = [
    (
        "listeners",
        "type.googleapis.com/envoy.config.listener.v3.Listener",
    ),
    (
        "routes",
        "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
    ),
    (
        "clusters",
        "type.googleapis.com/envoy.config.cluster.v3.Cluster",
    ),
    (
        "endpoints",
        "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
    ),
];

const ANY: &str = "type.googleapis.com/google.protobuf.Any";

/// A field that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Change {
    /// Its path, such as `virtual_hosts[0].routes[1].match`; empty for the whole document.
    pub(super) path: String,
    /// The old value; `None` if the field is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Value>,
    /// The new value; `None` if the field is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<Value>,
    /// Whether the field is part of an access rule.
    #[serde(skip)]
    access: bool,
}

/// A resource of a proxy that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ResourceChange {
    r#type: &'static str,
    name: String,
    /// `added`, `removed` or `changed`.
    change: &'static str,
    /// The fields that differ, without access rules.
    fields: Vec<Change>,
    /// The access rules that differ.
    access_rules: Vec<Change>,
}

/// The number of fields, resources and failures that may still be shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub(super) left: usize,
    /// Whether the budget was exhausted.
    pub(super) exceeded: bool,
}

impl Default for Budget {
    /// The budget of a whole response.
    fn default() -> Self {
        Self {
            left: FIELDS,
            exceeded: false,
        }
    }
}

impl Budget {
    pub(super) fn take(&mut self) -> bool {
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.exceeded |= !some;
        some
    }

    /// Takes the budget for these resources and their fields, and removes those beyond it.
    pub(super) fn limit(&mut self, resources: &mut Vec<ResourceChange>) {
        resources.retain_mut(|resource| {
            let shown = self.take();
            resource.fields.retain(|_| shown && self.take());
            resource.access_rules.retain(|_| shown && self.take());
            shown
        });
    }
}

/// The resources that differ, ordered by type and name.
pub(super) fn resources(
    before: &ResourceSet,
    after: &ResourceSet,
    budget: &mut Budget,
) -> Vec<ResourceChange> {
    let mut found = Vec::new();
    for (short, url) in TYPES {
        let (old, new) = (before.get(url), after.get(url));
        let mut names: Vec<_> = old.keys().chain(new.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let (old, new) = (old.get(name), new.get(name));
            let change = match (old, new) {
                (Some(old), Some(new)) if old.version == new.version => continue,
                (Some(_), Some(_)) => "changed",
                (None, _) => "added",
                (_, None) => "removed",
            };
            if !budget.take() {
                return found;
            }
            let text = |body: Option<&[u8]>| body.map(readable);
            let old = text(old.map(|one| &*one.body));
            let new = text(new.map(|one| &*one.body));
            let mut all = Vec::new();
            documents(old.as_ref(), new.as_ref(), &mut all, budget);
            let (access_rules, fields) = all.into_iter().partition(|change| change.access);
            found.push(ResourceChange {
                r#type: short,
                name: without_address(short, name),
                change,
                fields,
                access_rules,
            });
        }
    }
    found
}

/// Removes the listen address from a listener's name, so that changes of several proxies can be grouped.
fn without_address(kind: &str, name: &str) -> String {
    let cut = (kind == "listeners")
        .then(|| name.split_once(':'))
        .flatten();
    cut.map_or(name, |(name, _)| name).to_owned()
}

fn readable(any: &[u8]) -> Value {
    encode(ANY, any).unwrap_or_else(|error| json!({ "unreadable": error.to_string() }))
}

/// Collects the fields in which two documents differ.
pub(super) fn documents(
    before: Option<&Value>,
    after: Option<&Value>,
    found: &mut Vec<Change>,
    budget: &mut Budget,
) {
    compare(&Path::default(), before, after, found, budget);
}

#[derive(Default, Clone)]
struct Path {
    text: String,
    access: bool,
}

impl Path {
    fn field(&self, name: &str) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = match name.chars().all(plain) {
            true if self.text.is_empty() => name.to_owned(),
            true => format!(".{name}"),
            // Names of chain nodes contain dots.
            false => format!("[{name:?}]"),
        };
        Self {
            text: format!("{}{name}", self.text),
            access: self.access,
        }
    }

    fn item(&self, at: usize) -> Self {
        Self {
            text: format!("{}[{at}]", self.text),
            access: self.access,
        }
    }
}

fn compare(
    path: &Path,
    before: Option<&Value>,
    after: Option<&Value>,
    found: &mut Vec<Change>,
    budget: &mut Budget,
) {
    if before == after {
        return;
    }
    match (before, after) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let mut path = path.clone();
            path.access |= is_access(old) || is_access(new);
            let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                compare(
                    &path.field(name),
                    old.get(name),
                    new.get(name),
                    found,
                    budget,
                );
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => {
            items(path, old, new, found, budget);
        }
        _ => {
            if budget.take() {
                found.push(Change {
                    path: path.text.clone(),
                    before: before.map(shown),
                    after: after.map(shown),
                    access: path.access || of(before) || of(after),
                });
            }
        }
    }
}

fn of(value: Option<&Value>) -> bool {
    value.and_then(Value::as_object).is_some_and(is_access)
}

/// Whether this is an RBAC filter of Envoy.
fn is_access(object: &Map<String, Value>) -> bool {
    let kind = object.get("@type").and_then(Value::as_str);
    kind.is_some_and(|kind| kind.contains(".rbac."))
}

/// Compares arrays after removing their common prefix and suffix, so that an insertion is a single difference.
fn items(path: &Path, old: &[Value], new: &[Value], found: &mut Vec<Change>, budget: &mut Budget) {
    let same = |(a, b): &(&Value, &Value)| a == b;
    let first = old.iter().zip(new).take_while(same).count();
    let (old_rest, new_rest) = (&old[first..], &new[first..]);
    let from_end = old_rest.iter().rev().zip(new_rest.iter().rev());
    let last = from_end.take_while(same).count();
    let old_rest = &old_rest[..old_rest.len() - last];
    let new_rest = &new_rest[..new_rest.len() - last];
    for at in 0..old_rest.len().max(new_rest.len()) {
        let (old, new) = (old_rest.get(at), new_rest.get(at));
        compare(&path.item(first + at), old, new, found, budget);
    }
}

/// A value, or its length if it is too long.
fn shown(value: &Value) -> Value {
    match value.to_string().len() {
        length if length <= VALUE => value.clone(),
        length => Value::String(format!("({length} bytes of JSON)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(before: &Value, after: &Value) -> Vec<(String, Option<Value>, Option<Value>)> {
        let mut found = Vec::new();
        let mut budget = Budget::default();
        documents(Some(before), Some(after), &mut found, &mut budget);
        let parts = |change: Change| (change.path, change.before, change.after);
        found.into_iter().map(parts).collect()
    }

    #[test]
    fn only_differences_are_shown_with_their_paths() {
        let before = json!({"a": {"b": [1, 2, {"c": 3}]}, "d": "x"});
        let after = json!({"a": {"b": [1, 2, {"c": 4}]}, "e": true});
        assert_eq!(
            changes(&before, &after),
            [
                ("a.b[2].c".to_owned(), Some(json!(3)), Some(json!(4))),
                ("d".to_owned(), Some(json!("x")), None),
                ("e".to_owned(), None, Some(json!(true))),
            ]
        );
        let dotted = changes(&json!({"a": {}}), &json!({"a": {"b.c": 1}}));
        assert_eq!(dotted, [("a[\"b.c\"]".to_owned(), None, Some(json!(1)))]);
        assert_eq!(changes(&before, &before), []);
    }

    #[test]
    fn an_inserted_item_is_one_change() {
        let (before, after) = (json!({"r": [1, 2, 3]}), json!({"r": [1, 9, 2, 3]}));
        let added = [("r[1]".to_owned(), None, Some(json!(9)))];
        assert_eq!(changes(&before, &after), added);
        let removed = [("r[1]".to_owned(), Some(json!(9)), None)];
        assert_eq!(changes(&after, &before), removed);
    }

    #[test]
    fn the_budget_limits_the_differences() {
        let before = json!({"a": 1, "b": 1, "c": 1});
        let mut found = Vec::new();
        let mut budget = Budget {
            left: 3,
            ..Budget::default()
        };
        let none = json!({});
        documents(Some(&before), Some(&none), &mut found, &mut budget);
        assert_eq!((found.len(), budget.exceeded), (3, false));
        documents(Some(&before), Some(&none), &mut found, &mut budget);
        assert_eq!((found.len(), budget.exceeded), (3, true));
        let long = json!("x".repeat(VALUE));
        assert!(
            shown(&long)
                .as_str()
                .is_some_and(|text| text.contains("bytes of JSON"))
        );
    }
}
