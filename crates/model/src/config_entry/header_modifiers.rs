//! Changes to the headers of requests and responses, set in routes and splits.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::format_string;
use crate::invalid::Invalid;

/// Changes to headers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct HeaderModifiers {
    /// Appended after existing values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub add: BTreeMap<String, String>,
    /// Set in place of existing values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Names of removed headers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub remove: Vec<String>,
}

impl HeaderModifiers {
    /// Merges two sets of changes that apply in sequence. `later` takes precedence for the same
    /// header; headers to remove are combined.
    #[must_use]
    pub fn then(&self, later: &HeaderModifiers) -> HeaderModifiers {
        let mut both = self.clone();
        let pairs = |of: &BTreeMap<String, String>| of.clone().into_iter();
        both.add.extend(pairs(&later.add));
        both.set.extend(pairs(&later.set));
        let known: BTreeSet<&String> = self.remove.iter().collect();
        let new = |name: &&String| !known.contains(name);
        both.remove.extend(later.remove.iter().filter(new).cloned());
        both
    }

    /// Total size of the names and values in bytes.
    pub fn bytes(&self) -> usize {
        let pairs = self.add.iter().chain(&self.set);
        let pairs = pairs.map(|(name, value)| name.len() + value.len());
        pairs.chain(self.remove.iter().map(String::len)).sum()
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first header that Envoy would refuse.
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        for (field, pairs) in [("Add", &self.add), ("Set", &self.set)] {
            for (name, value) in pairs {
                validate_name(&format!("{field}[{name:?}]"), name)?;
                if value.contains(['\0', '\r', '\n']) {
                    return Err(Invalid::new(
                        format!("{field}[{name:?}]"),
                        "a header's value cannot contain line breaks",
                    ));
                }
                format_string::validate(value)
                    .map_err(|reason| Invalid::new(format!("{field}[{name:?}]"), reason))?;
            }
        }
        let mut removed = self.remove.iter().enumerate();
        removed.try_for_each(|(at, name)| validate_name(&format!("Remove[{at}]"), name))
    }
}

/// # Errors
///
/// [`Invalid`] names the first header that Envoy would refuse, and its field.
pub(super) fn validate_both(
    request: Option<&HeaderModifiers>,
    response: Option<&HeaderModifiers>,
) -> Result<(), Invalid> {
    for (field, modifiers) in [("RequestHeaders", request), ("ResponseHeaders", response)] {
        if let Some(modifiers) = modifiers {
            modifiers.validate().map_err(|error| error.within(field))?;
        }
    }
    Ok(())
}

/// Envoy refuses changes to `Host` and to headers that start with `:`.
fn validate_name(field: &str, name: &str) -> Result<(), Invalid> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(token) {
        return Err(Invalid::new(
            field,
            format!("{name:?} is not the name of a header"),
        ));
    }
    if name.eq_ignore_ascii_case("host") {
        let reason = "the header Host cannot be changed: proxies choose it";
        return Err(Invalid::new(field, reason));
    }
    Ok(())
}
