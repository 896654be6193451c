//! Selectors of binding rules: filters over the variables of a login. A variable that the login lacks
//! is empty, and equals, contains and matches nothing.

use std::collections::BTreeSet;

use legate_filter::{AnyFields, FieldPath, Fields, Filter, FilterError, Kind, Step};
use serde::{Serialize, Serializer};

use crate::acl::variables::Variables;

/// Validates a selector against the variables of an auth method, whatever their values.
///
/// # Errors
///
/// [`FilterError`] locates the syntax error or names the unknown variable.
pub(super) fn check(selector: &str, known: &Variables) -> Result<(), FilterError> {
    Filter::parse(selector, known).map(|_| ())
}

/// Whether a login's variables match a selector. Variables that the auth method no longer has are
/// treated as missing from the login.
///
/// # Errors
///
/// [`FilterError`] when the selector is invalid.
pub(super) fn matches(selector: &str, login: &Variables) -> Result<bool, FilterError> {
    Ok(Filter::parse(selector, &AnyFields)?.matches(&Groups(login)))
}

impl Fields for Variables {
    fn find(&self, selector: &[String]) -> Result<FieldPath, (usize, String)> {
        let name = selector.join(".");
        let kind = if self.values.contains_key(&name) {
            Kind::Text
        } else if self.lists.contains_key(&name) {
            Kind::Texts
        } else if self.is_group(&name) {
            Kind::Map
        } else {
            return Err((selector.len().saturating_sub(1), self.names()));
        };
        let mut steps: Vec<Step> = Vec::with_capacity(selector.len());
        for part in selector {
            let key = part.clone();
            let kind = Kind::Map;
            steps.push(Step { key, kind });
        }
        if let Some(last) = steps.last_mut() {
            last.kind = kind;
        }
        Ok(FieldPath { steps })
    }
}

/// The variables of a login as `{"value": {"team": …}, "list": {"groups": […]}}`.
struct Groups<'a>(&'a Variables);

impl Serialize for Groups<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Groups(variables) = self;
        let names = variables.values.keys().chain(variables.lists.keys());
        let groups: BTreeSet<&str> = names
            .filter(|name| variables.has(name))
            .filter_map(|name| Some(name.split_once('.')?.0))
            .collect();
        serializer.collect_map(
            groups
                .into_iter()
                .map(|name| (name, Group(name, variables))),
        )
    }
}

/// The variables whose names start with one word.
struct Group<'a>(&'a str, &'a Variables);

impl Serialize for Group<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Group(group, variables) = self;
        let entries = variables.group(group).filter_map(|name| {
            let (_, rest) = name.split_once('.')?;
            let text = variables.values.get(name).map(Variable::Text);
            let list = variables.lists.get(name).map(Variable::List);
            Some((rest, text.or(list)?))
        });
        serializer.collect_map(entries)
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Variable<'a> {
    Text(&'a String),
    List(&'a Vec<String>),
}

#[cfg(test)]
mod tests;
