//! Conditions on requests.

use serde::{Deserialize, Serialize};

/// Conditions, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Match {
    /// On the path.
    #[serde(default, skip_serializing_if = "PathMatch::is_any")]
    pub path: PathMatch,
    /// The method in capital letters; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// On headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<ValueMatch>,
    /// On parameters of the query.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<ValueMatch>,
}

/// A condition on the path, without the query.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// Its beginning, letter by letter.
    Prefix(String),
    /// Its beginning, segment by segment: `/a` is the beginning of `/a` and `/a/b`, but not of
    /// `/ab`. Does not end with a slash.
    Segments(String),
    /// An expression for the whole path.
    Regex(String),
}

impl Default for PathMatch {
    /// Every path.
    fn default() -> Self {
        Self::Prefix("/".to_owned())
    }
}

impl PathMatch {
    /// Whether every path fits.
    fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// What the path is compared with.
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Segments(text) | Self::Regex(text) => {
                text
            }
        }
    }
}

/// A condition on a header or a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct ValueMatch {
    /// The name.
    pub name: String,
    /// The condition on the value.
    pub value: TextMatch,
}

/// A condition on a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TextMatch {
    /// Any value.
    Present,
    /// This value.
    Exact(String),
    /// Its beginning.
    Prefix(String),
    /// Its end.
    Suffix(String),
    /// An expression for the whole value.
    Regex(String),
}

/// A text as an expression (RE2) that only this text matches.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}
