//! Why a bootstrap document cannot be made.

/// Why there is no bootstrap document. The message names the key of the proxy's configuration, or
/// the setting, that has to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BootstrapError(pub(super) String);

impl BootstrapError {
    /// About a key of the proxy's configuration.
    pub(super) fn key(key: &str, reason: impl std::fmt::Display) -> Self {
        Self(format!("proxy config key {key}: {reason}"))
    }
}
