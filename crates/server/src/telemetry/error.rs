//! The error of an invalid telemetry setting.

/// The address of a telemetry receiver is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{setting} {value:?} cannot be used: {reason}")]
pub struct TelemetryError {
    pub(super) setting: &'static str,
    pub(super) value: String,
    pub(super) reason: String,
}
