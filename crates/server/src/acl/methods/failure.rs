//! Why a proof of identity gives nothing, and whose fault that is.

use super::super::jwt::SignatureError;

/// Why a proof gives nothing. The texts are for people, and hold no secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The settings of the method cannot work.
    Broken(String),
    /// Who is to be asked does not answer, or not as it should: it may later.
    Unreachable(String),
    /// The proof is not accepted.
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
