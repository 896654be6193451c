//! Errors of keys and certificates.

/// A key or certificate cannot be created or parsed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The system provided no randomness or refused the algorithm.
    #[error("cannot generate a private key: {0}")]
    GenerateKey(#[source] rcgen::Error),
    /// The text is not a private key; it is never quoted.
    #[error(
        "not a private key in PEM form (PKCS#8, SEC1 or PKCS#1; EC P-256, P-384, P-521, RSA or Ed25519)"
    )]
    ParseKey,
    /// The text or bytes are not a certificate.
    #[error("not a certificate: {reason}")]
    ParseCertificate {
        /// The parser's message.
        reason: String,
    },
    /// The certificate may not sign others.
    #[error("the certificate cannot be an authority: {reason}")]
    NotAnAuthority {
        /// The reason.
        reason: &'static str,
    },
    /// A chain of certificates is not valid under a root.
    #[error("the certificate cannot be verified: {reason}")]
    InvalidChain {
        /// The reason.
        reason: String,
    },
    /// The certificate and the key do not match.
    #[error("the private key does not belong to the certificate: give both of the same pair")]
    KeyMismatch,
    /// The certificate request is malformed, or its signature is invalid.
    #[error("invalid CSR: {reason}")]
    InvalidRequest {
        /// The problem, which the requester has to fix.
        reason: String,
    },
    /// The name is not valid in certificates.
    #[error("{name:?} is not valid in a certificate: only ASCII is supported")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// The CA may not sign this, such as a name outside of its domains; clients would refuse it.
    #[error("the authority may not sign this certificate: {reason}")]
    NotPermitted {
        /// The reason.
        reason: String,
    },
    /// The validity is outside the years that certificates can represent.
    #[error("the validity of the certificate is out of range: check the clock and the lifetime")]
    Validity,
    /// The text is not a sealing key; it is never quoted.
    #[error(
        "not a key of 32 bytes in hexadecimal digits or base64: make one with \
         `openssl rand -hex 32`"
    )]
    ParseSealingKey,
    /// The system provided no randomness.
    #[error("cannot encrypt: the system provides no randomness")]
    Seal,
    /// The value was sealed with another key or for another place, or is damaged.
    #[error("cannot decrypt: it was encrypted with another key, or it is damaged")]
    Unseal,
    /// Encoding or signing failed.
    #[error("cannot sign the certificate: {0}")]
    Sign(#[source] rcgen::Error),
}

impl IdentityError {
    pub(crate) fn request(reason: impl ToString) -> IdentityError {
        IdentityError::InvalidRequest {
            reason: reason.to_string(),
        }
    }
}
