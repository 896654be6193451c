//! What can go wrong with keys and certificates.

/// A key or certificate cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The system gave no randomness or refused the algorithm.
    #[error("cannot generate a private key: {0}")]
    GenerateKey(#[source] rcgen::Error),
    /// The text of a private key; its content is never repeated.
    #[error(
        "not a private key in PEM form (PKCS#8, SEC1 or PKCS#1; EC P-256, P-384, P-521, RSA or Ed25519)"
    )]
    ParseKey,
    /// The text or bytes of a certificate.
    #[error("not a certificate: {reason}")]
    ParseCertificate {
        /// What the parser found.
        reason: String,
    },
    /// A certificate cannot sign others.
    #[error("the certificate cannot be an authority: {reason}")]
    NotAnAuthority {
        /// What it lacks.
        reason: &'static str,
    },
    /// A certificate and a key that do not belong together.
    #[error("the private key does not belong to the certificate: give both of the same pair")]
    KeyMismatch,
    /// The text of a certificate signing request, or its signature.
    #[error("invalid CSR: {reason}")]
    InvalidRequest {
        /// What is wrong with it; the requester has to change that.
        reason: String,
    },
    /// A name that a certificate cannot hold.
    #[error("{name:?} cannot stand in a certificate: only ASCII is possible")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// What no client would accept from an authority, such as a name outside of its domains.
    #[error("the authority may not sign this certificate: {reason}")]
    NotPermitted {
        /// What a client would say.
        reason: String,
    },
    /// A validity outside the years that a certificate can express.
    #[error("the validity of the certificate is out of range: check the clock and the lifetime")]
    Validity,
    /// The text of a sealing key; its content is never repeated.
    #[error(
        "not a key of 32 bytes in hexadecimal digits or base64: make one with \
         `openssl rand -hex 32`"
    )]
    ParseSealingKey,
    /// The system gave no randomness.
    #[error("cannot encrypt: the system gives no randomness")]
    Seal,
    /// Another key, another place, or damage.
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
