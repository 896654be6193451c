//! What a verified proof of identity says, by the names that selectors and templates use.

use std::collections::{BTreeMap, BTreeSet};

/// The variables of one login, or (with empty values) of an auth method.
///
/// Texts have names like `value.team` or `serviceaccount.name`, lists names like `list.groups`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    /// Single values.
    pub values: BTreeMap<String, String>,
    /// Lists of values.
    pub lists: BTreeMap<String, Vec<String>>,
    /// Those of both kinds that this login does not have, and whose values are empty therefore.
    pub missing: BTreeSet<String>,
}

impl Variables {
    /// Whether the login has a variable.
    pub(crate) fn has(&self, name: &str) -> bool {
        let known = self.values.contains_key(name) || self.lists.contains_key(name);
        known && !self.missing.contains(name)
    }

    /// Whether a name is what variables with free names begin with: `value` and `list`.
    pub(crate) fn is_group(&self, name: &str) -> bool {
        let prefix = format!("{name}.");
        let mut names = self.values.keys().chain(self.lists.keys());
        ["value", "list"].contains(&name) && names.any(|known| known.starts_with(&prefix))
    }

    /// The variables of a group that the login has.
    pub(crate) fn group(&self, name: &str) -> impl Iterator<Item = &str> {
        let prefix = format!("{name}.");
        let names = self.values.keys().chain(self.lists.keys());
        names
            .map(String::as_str)
            .filter(move |known| known.starts_with(&prefix) && self.has(known))
    }

    /// Every name, for error messages.
    pub(crate) fn names(&self) -> String {
        let names: Vec<&str> = self
            .values
            .keys()
            .chain(self.lists.keys())
            .map(String::as_str)
            .collect();
        match names.as_slice() {
            [] => "none".to_owned(),
            names => names.join(", "),
        }
    }
}
