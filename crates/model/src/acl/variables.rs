//! What a verified proof of identity says, by the names that selectors and templates use.

use std::collections::BTreeMap;

/// The variables of one login, or (with empty values) of an auth method.
///
/// Texts have names like `value.team` or `serviceaccount.name`, lists names like `list.groups`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    /// Single values.
    pub values: BTreeMap<String, String>,
    /// Lists of values.
    pub lists: BTreeMap<String, Vec<String>>,
}

impl Variables {
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
