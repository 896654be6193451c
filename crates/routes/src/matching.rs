//! Conditions on requests.

/// Conditions, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// On the path.
    pub path: PathMatch,
    /// The method in capital letters; `None` for any.
    pub method: Option<String>,
    /// On headers.
    pub headers: Vec<ValueMatch>,
    /// On parameters of the query.
    pub query: Vec<ValueMatch>,
}

/// A condition on the path, without the query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ValueMatch {
    /// The name.
    pub name: String,
    /// The condition on the value.
    pub value: TextMatch,
}

/// A condition on a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
