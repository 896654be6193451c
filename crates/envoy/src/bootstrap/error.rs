//! Why a bootstrap document cannot be built.

/// Why there is no bootstrap document. The message names the proxy configuration key or the setting
/// to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BootstrapError(pub(super) String);

impl BootstrapError {
    /// An error in a key of the proxy's configuration.
    pub(super) fn key(key: &str, reason: impl std::fmt::Display) -> Self {
        Self(format!("proxy config key {key}: {reason}"))
    }
}
