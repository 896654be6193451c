//! The error of every validation: which field, and why. It never carries secrets.

/// A value that decodes but cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct Invalid {
    path: String,
    reason: String,
}

impl Invalid {
    /// `path` names the field as the user wrote it (`Proxy.Upstreams[0].LocalBindPort`), `reason`
    /// says what is wrong and what is allowed.
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Invalid {
            path: path.into(),
            reason: reason.into(),
        }
    }

    /// The field that is wrong.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is wrong with it.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The same error seen from the object that contains the field.
    #[must_use]
    pub fn within(self, parent: impl std::fmt::Display) -> Self {
        let path = if self.path.is_empty() || self.path.starts_with('[') {
            format!("{parent}{}", self.path)
        } else {
            format!("{parent}.{}", self.path)
        };
        Invalid {
            path,
            reason: self.reason,
        }
    }
}
