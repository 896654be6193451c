//! Why a TLS configuration cannot be made.

use std::path::PathBuf;

/// A TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}; check that it exists and is readable", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Malformed PEM.
    #[error("{origin} is not PEM: {reason}")]
    BadPem {
        /// The file, or which text.
        origin: String,
        /// What the parser found.
        reason: String,
    },
    /// PEM without a certificate where one is needed.
    #[error("{origin} holds no certificate: give a file with CERTIFICATE sections in PEM form")]
    NoCertificate {
        /// The file or directory, or which text.
        origin: String,
    },
    /// A certificate that cannot be used as a root.
    #[error("{origin} holds a certificate that cannot be trusted as a root: {reason}")]
    BadCertificate {
        /// The file, or which text.
        origin: String,
        /// What is wrong with it.
        reason: String,
    },
    /// PEM without a usable private key.
    #[error("{origin} holds no usable private key: give one in PEM form (PKCS#8, SEC1 or PKCS#1)")]
    NoKey {
        /// The file, or which text.
        origin: String,
    },
    /// Certificate and key are not a pair, or of an unsupported kind.
    #[error(
        "the certificate of {certificate} and the key of {key} cannot be used together: {source}"
    )]
    BadPair {
        /// Origin of the certificate.
        certificate: String,
        /// Origin of the key.
        key: String,
        /// What the TLS library says.
        source: rustls::Error,
    },
    /// The machine has no trust store.
    #[error("the system has no root certificates ({reason}): install them or name a CA file")]
    NoSystemRoots {
        /// What was found out on the way.
        reason: String,
    },
    /// Neither a DNS name nor an IP address.
    #[error("{name:?} is not a TLS server name: give a DNS name or an IP address")]
    ServerName {
        /// The text.
        name: String,
    },
    /// A server's certificates that a client would not accept.
    #[error("{0}")]
    Refused(rustls::Error),
    /// A cipher suite that is not spoken.
    #[error("the cipher suite {name:?} is not served: those with ECDHE and GCM or ChaCha20 are")]
    UnknownSuite {
        /// Its name.
        name: String,
    },
    /// The TLS library refused the rest.
    #[error("TLS cannot be set up: {0}")]
    Library(#[source] rustls::Error),
}
