//! The error of all validations: a field and a reason. It never contains secrets.

/// A value that decodes but is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct Invalid {
    path: String,
    reason: String,
}

impl Invalid {
    /// Creates an error. `path` names the field as the user wrote it
    /// (`Proxy.Upstreams[0].LocalBindPort`); `reason` contains the problem and the permitted values.
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Invalid {
            path: path.into(),
            reason: reason.into(),
        }
    }

    /// The invalid field.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Why it is invalid.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Prefixes the path with the object that contains the field.
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
