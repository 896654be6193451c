//! Validates a certificate and key that operators provide for presentation to clients. Nothing is
//! stored.

use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

use crate::certificate::first_certificate;
use crate::key::{PrivateKey, key_id};

/// The minimum size of RSA keys in Envoy, in bits.
const RSA_BITS: usize = 2048;

/// A certificate and a key that cannot be used together. Texts are Consul's; the key is never quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPair {
    /// The key is unreadable.
    #[error("failed to parse private key PEM")]
    Key,
    /// The key is too short.
    #[error("key length must be at least {RSA_BITS} bits")]
    KeyLength,
    /// The certificate is unreadable.
    #[error("failed to parse certificate PEM: {0}")]
    Certificate(String),
    /// They do not match.
    #[error("tls: private key does not match public key")]
    Mismatch,
}

/// Validates that the first certificate of a PEM text and a PEM key match, and that Envoy accepts
/// them.
///
/// # Errors
///
/// [`BadPair`] names the invalid one.
pub fn check_pair(certificate: &str, key: &str) -> Result<(), BadPair> {
    let bad = |error: String| BadPair::Certificate(error);
    let der = first_certificate(certificate).map_err(|error| bad(error.to_string()))?;
    let (_, parsed) = X509Certificate::from_der(&der).map_err(|error| bad(error.to_string()))?;
    let public = parsed.public_key();
    if let Ok(PublicKey::RSA(rsa)) = public.parsed()
        && rsa.key_size() < RSA_BITS
    {
        return Err(BadPair::KeyLength);
    }
    let key = PrivateKey::from_pem(key).map_err(|_| BadPair::Key)?;
    match key_id(public.raw) == key.key_id() {
        true => Ok(()),
        false => Err(BadPair::Mismatch),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::{Authority, RootRequest};

    fn pair() -> (String, String) {
        let root = Authority::generate_root(RootRequest {
            common_name: "test".to_owned(),
            uri: "spiffe://test.consul".to_owned(),
            serial: 1,
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            ttl: Duration::from_secs(3600),
        });
        let root = root.unwrap();
        (root.cert_pem().to_owned(), root.key_pem())
    }

    #[test]
    fn a_certificate_requires_its_own_key() {
        let ((certificate, key), (_, other)) = (pair(), pair());
        assert_eq!(check_pair(&certificate, &key), Ok(()));
        assert_eq!(check_pair(&certificate, &other), Err(BadPair::Mismatch));
        assert_eq!(check_pair(&certificate, "x"), Err(BadPair::Key));
        let error = check_pair("x", &key).unwrap_err().to_string();
        assert!(error.contains("failed to parse certificate PEM"), "{error}");
    }
}
