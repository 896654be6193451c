//! Errors when building TLS configurations.

use std::path::PathBuf;

/// A TLS configuration cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}; check that it exists and is readable", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Malformed PEM.
    #[error("{origin} is not PEM: {reason}")]
    BadPem {
        /// The file, or the name of the text.
        origin: String,
        /// The parser's message.
        reason: String,
    },
    /// PEM without a certificate where one is needed.
    #[error("{origin} holds no certificate: give a file with CERTIFICATE sections in PEM form")]
    NoCertificate {
        /// The file or directory, or the name of the text.
        origin: String,
    },
    /// A certificate that cannot be used as a root.
    #[error("{origin} holds a certificate that cannot be trusted as a root: {reason}")]
    BadCertificate {
        /// The file, or the name of the text.
        origin: String,
        /// The reason.
        reason: String,
    },
    /// PEM without a usable private key.
    #[error("{origin} holds no usable private key: give one in PEM form (PKCS#8, SEC1 or PKCS#1)")]
    NoKey {
        /// The file, or the name of the text.
        origin: String,
    },
    /// Certificate and key do not match or are of an unsupported kind.
    #[error(
        "the certificate of {certificate} and the key of {key} cannot be used together: {source}"
    )]
    BadPair {
        /// Origin of the certificate.
        certificate: String,
        /// Origin of the key.
        key: String,
        /// The TLS library's error.
        source: rustls::Error,
    },
    /// The system has no trust store.
    #[error("the system has no root certificates ({reason}): install them or name a CA file")]
    NoSystemRoots {
        /// Errors during the search.
        reason: String,
    },
    /// Neither a DNS name nor an IP address.
    #[error("{name:?} is not a TLS server name: give a DNS name or an IP address")]
    ServerName {
        /// The text.
        name: String,
    },
    /// The server's certificates would be refused by a client.
    #[error("{0}")]
    Refused(rustls::Error),
    /// The cipher suite is not supported.
    #[error("the cipher suite {name:?} is not served: those with ECDHE and GCM or ChaCha20 are")]
    UnknownSuite {
        /// Its name.
        name: String,
    },
    /// The TLS library refused the configuration.
    #[error("TLS cannot be set up: {0}")]
    Library(#[source] rustls::Error),
}
