//! The error type of verifying a proof of identity.

use super::super::jwt::SignatureError;

/// Why verification failed. The texts are shown to users and contain no secrets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The method's configuration is invalid.
    Broken(String),
    /// The verifying server does not respond, or not correctly. A retry may succeed.
    Unreachable(String),
    /// The proof is rejected.
    Refused(String),
}

impl From<SignatureError> for Failure {
    fn from(error: SignatureError) -> Self {
        match error {
            SignatureError::Key(_) => Self::Broken(error.to_string()),
            error => Self::Refused(error.to_string()),
        }
    }
}
