//! Variables of a login, extracted from a verified proof of identity, for selectors and templates.

use std::collections::{BTreeMap, BTreeSet};

/// Variables of one login or, with empty values, of an auth method.
///
/// Texts have names like `value.team` or `serviceaccount.name`; lists have names like `list.groups`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    /// Single values.
    pub values: BTreeMap<String, String>,
    /// Lists of values.
    pub lists: BTreeMap<String, Vec<String>>,
    /// Names of variables of both kinds that this login lacks; their values are empty.
    pub missing: BTreeSet<String>,
}

impl Variables {
    /// Whether the login has a variable.
    pub(crate) fn has(&self, name: &str) -> bool {
        let known = self.values.contains_key(name) || self.lists.contains_key(name);
        known && !self.missing.contains(name)
    }

    /// Whether a name is a group of user-defined variables: `value` or `list`.
    pub(crate) fn is_group(&self, name: &str) -> bool {
        let prefix = format!("{name}.");
        let mut names = self.values.keys().chain(self.lists.keys());
        ["value", "list"].contains(&name) && names.any(|known| known.starts_with(&prefix))
    }

    /// Names of the login's variables in a group.
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
