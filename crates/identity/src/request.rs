//! Certificate requests for another signer.

use rcgen::{CertificateParams, DistinguishedName, DnType};

use crate::authority::{names, parse_request, request_der, uri_name};
use crate::certificate::colon_hex;
use crate::key::key_id;
use crate::{IdentityError, LeafRequest, PrivateKey};

/// A new key and the request for its certificate.
#[derive(Clone, Debug)]
pub struct LeafKey {
    /// The key.
    pub key: PrivateKey,
    /// The request as PEM.
    pub csr_pem: String,
}

impl LeafKey {
    /// Generates an EC P-256 key and a request with these names. Serial number and validity are set
    /// by the signer.
    ///
    /// # Errors
    ///
    /// When a name cannot be encoded, or the system provides no randomness.
    pub fn generate(request: &LeafRequest) -> Result<LeafKey, IdentityError> {
        let key = PrivateKey::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = names(request)?;
        let csr = params.serialize_request(&key);
        let pem = csr.and_then(|csr| csr.pem()).map_err(IdentityError::Sign)?;
        Ok(LeafKey { key, csr_pem: pem })
    }
}

/// A request for the certificate of an intermediate with this key, as PEM.
///
/// # Errors
///
/// When a name cannot be encoded.
pub fn intermediate_request(
    key: &PrivateKey,
    common_name: &str,
    uri: &str,
) -> Result<String, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.subject_alt_names = vec![uri_name(uri.to_owned())?];
    let csr = params.serialize_request(key);
    csr.and_then(|csr| csr.pem()).map_err(IdentityError::Sign)
}

/// SHA-256 of the public key in a request, hex bytes joined by colons. Verifies the request's
/// signature.
///
/// # Errors
///
/// [`IdentityError::InvalidRequest`] when it is malformed or not signed with its own key.
pub fn csr_public_key(csr_pem: &str) -> Result<String, IdentityError> {
    let der = request_der(csr_pem)?;
    let request = parse_request(&der)?;
    let key = request.certification_request_info.subject_pki.raw;
    Ok(colon_hex(&key_id(key)))
}
