//! The certificate that all proxies of a service share.

use std::time::SystemTime;

use legate_model::{Secret, ServiceName};

/// A service's certificate with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The service.
    pub service: ServiceName,
    /// Its SPIFFE ID.
    pub uri: String,
    /// The certificate, followed by the intermediates up to the root.
    pub cert_pem: String,
    /// Its private key.
    pub key_pem: Secret,
    /// Serial number, lower-case hex bytes joined by colons.
    pub serial: String,
    /// Start of its validity.
    pub valid_after: SystemTime,
    /// End of its validity.
    pub valid_before: SystemTime,
    /// Id of the key that signed it: the active root's `SigningKeyID` at that time.
    pub authority_key_id: String,
    /// Increases with each leaf that this server issues.
    pub index: u64,
}
