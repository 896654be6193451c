//! Why a receiver of metrics or traces cannot be used.

/// The address of a receiver cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{setting} {value:?} cannot be used: {reason}")]
pub struct TelemetryError {
    pub(super) setting: &'static str,
    pub(super) value: String,
    pub(super) reason: String,
}
