//! Parses certificates into plain values. Parsing does not verify them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use sha1::{Digest, Sha1};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::IdentityError;
use crate::key::key_id;
use crate::tls::provider;

/// The parts of a certificate that the mesh uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// SHA-1 of the certificate's DER form, lower-case hex bytes joined by colons.
    pub id: String,
    /// Serial number, lower-case hex bytes joined by colons.
    pub serial: String,
    /// URI names in the order of the certificate.
    pub uris: Vec<String>,
    /// DNS names in the order of the certificate.
    pub dns_names: Vec<String>,
    /// IP addresses in the order of the certificate.
    pub ips: Vec<IpAddr>,
    /// First second of its validity.
    pub not_before: SystemTime,
    /// Last second of its validity.
    pub not_after: SystemTime,
    /// Subject key id, hex bytes joined by colons; the SHA-256 of the public key if the certificate
    /// has none.
    pub subject_key_id: String,
    /// Authority key id, if the certificate has one.
    pub authority_key_id: Option<String>,
    /// Whether it may sign others.
    pub is_ca: bool,
    /// Whether subject and issuer are equal, as in roots.
    pub is_self_issued: bool,
    /// SHA-256 of its public key, hex bytes joined by colons.
    pub public_key: String,
    /// The algorithm of its key: `ec`, `rsa`, or empty for others.
    pub key_type: &'static str,
    /// The size of its key; 0 for other algorithms.
    pub key_bits: u32,
}

impl CertificateInfo {
    /// Parses the first certificate in a PEM text.
    ///
    /// # Errors
    ///
    /// [`IdentityError::ParseCertificate`] when there is none or it is malformed.
    pub fn from_pem(pem: &str) -> Result<CertificateInfo, IdentityError> {
        CertificateInfo::from_der(&first_certificate(pem)?)
    }

    /// Parses a certificate in DER form.
    ///
    /// # Errors
    ///
    /// [`IdentityError::ParseCertificate`] when it is malformed.
    pub fn from_der(der: &[u8]) -> Result<CertificateInfo, IdentityError> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(malformed)?;
        if !rest.is_empty() {
            return Err(malformed("bytes after its end"));
        }
        let key = key_id(certificate.public_key().raw);
        let (key_type, key_bits) = key_kind(certificate.public_key());
        let mut info = CertificateInfo {
            id: colon_hex(&Sha1::digest(der)),
            serial: colon_hex(&certificate.serial.to_bytes_be()),
            uris: Vec::new(),
            dns_names: Vec::new(),
            ips: Vec::new(),
            not_before: unix_time(certificate.validity().not_before.timestamp()),
            not_after: unix_time(certificate.validity().not_after.timestamp()),
            subject_key_id: colon_hex(&key),
            authority_key_id: None,
            is_ca: certificate.is_ca(),
            is_self_issued: certificate.subject().as_raw() == certificate.issuer().as_raw(),
            public_key: colon_hex(&key),
            key_type,
            key_bits,
        };
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(names) => {
                    names.general_names.iter().for_each(|name| info.add(name));
                }
                ParsedExtension::SubjectKeyIdentifier(id) => info.subject_key_id = colon_hex(id.0),
                ParsedExtension::AuthorityKeyIdentifier(authority) => {
                    info.authority_key_id =
                        authority.key_identifier.as_ref().map(|id| colon_hex(id.0));
                }
                _ => {}
            }
        }
        Ok(info)
    }

    fn add(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::URI(uri) => self.uris.push((*uri).to_owned()),
            GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => self.ips.extend(ip_address(bytes)),
            _ => {}
        }
    }
}

/// The algorithm of a key in the API's notation, and its size.
fn key_kind(key: &SubjectPublicKeyInfo<'_>) -> (&'static str, u32) {
    let bits = |size: usize| u32::try_from(size).unwrap_or_default();
    match key.parsed() {
        Ok(PublicKey::RSA(key)) => ("rsa", bits(key.key_size())),
        // An uncompressed point consists of one byte and two coordinates of whole bytes.
        Ok(PublicKey::EC(point)) => match bits(point.data().len().saturating_sub(1) / 2 * 8) {
            528 => ("ec", 521),
            bits => ("ec", bits),
        },
        _ => ("", 0),
    }
}

/// Whether the first certificate of `pem` is signed by the key of `issuer`, and their names match.
///
/// # Errors
///
/// [`IdentityError::ParseCertificate`] when one of them is unreadable.
pub fn is_issued_by(pem: &str, issuer: &str) -> Result<bool, IdentityError> {
    let (der, issuer) = (first_certificate(pem)?, first_certificate(issuer)?);
    let (_, certificate) = X509Certificate::from_der(&der).map_err(malformed)?;
    let (_, issuer) = X509Certificate::from_der(&issuer).map_err(malformed)?;
    let names = certificate.issuer().as_raw() == issuer.subject().as_raw();
    let (message, signature) = (
        certificate.tbs_certificate.as_ref(),
        &certificate.signature_value.data,
    );
    Ok(names && is_signed(message, signature, issuer.public_key()))
}

/// Whether a message is signed with a key, by any of the algorithms that certificates can have.
pub(crate) fn is_signed(message: &[u8], signature: &[u8], key: &SubjectPublicKeyInfo<'_>) -> bool {
    // A signature is valid for at most one algorithm.
    let algorithms = provider().signature_verification_algorithms.all;
    let key = &key.subject_public_key.data;
    let mut verified = algorithms
        .iter()
        .map(|algorithm| algorithm.verify_signature(key, message, signature));
    verified.any(|verified| verified.is_ok())
}

/// Verifies the certificates of a PEM text, a leaf followed by intermediates, under the first certificate of `root`, as
/// TLS servers verify those of their clients. Names are not checked.
///
/// # Errors
///
/// [`IdentityError::InvalidChain`] when they are not valid at `now`, [`IdentityError::ParseCertificate`] when one is
/// unreadable.
pub fn verify_chain(chain: &str, root: &str, now: SystemTime) -> Result<(), IdentityError> {
    let invalid = |reason: String| IdentityError::InvalidChain { reason };
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
    let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(malformed)?;
    let (leaf, intermediates) = chain
        .split_first()
        .ok_or_else(|| malformed("the text holds none"))?;
    let mut roots = RootCertStore::empty();
    roots.add(first_certificate(root)?).map_err(malformed)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider()).build();
    let verifier = verifier.map_err(|error| invalid(error.to_string()))?;
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    let now = UnixTime::since_unix_epoch(since.unwrap_or_default());
    let verified = verifier.verify_client_cert(leaf, intermediates, now);
    verified
        .map(drop)
        .map_err(|error| invalid(error.to_string()))
}

/// Splits a PEM text into its certificates, each ending with a newline.
///
/// # Errors
///
/// [`IdentityError::ParseCertificate`] when there is none or one is malformed.
pub fn split_certificates(pem: &str) -> Result<Vec<String>, IdentityError> {
    let mut certificates = Vec::new();
    for der in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let der = der.map_err(malformed)?;
        CertificateInfo::from_der(&der)?;
        certificates.push(certificate_pem(&der));
    }
    if certificates.is_empty() {
        return Err(malformed("the text holds none"));
    }
    Ok(certificates)
}

fn certificate_pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        // Base64 is ASCII.
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

pub(crate) fn first_certificate(pem: &str) -> Result<CertificateDer<'static>, IdentityError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(malformed)
}

pub(crate) fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(bytes).ok()?;
    Some(Ipv6Addr::from(octets).into())
}

fn malformed(reason: impl ToString) -> IdentityError {
    IdentityError::ParseCertificate {
        reason: reason.to_string(),
    }
}

fn unix_time(seconds: i64) -> SystemTime {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        SystemTime::UNIX_EPOCH - distance
    } else {
        SystemTime::UNIX_EPOCH + distance
    }
}

pub(crate) fn colon_hex(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

/// The hosts that the first certificate of a PEM text is for: its common name, then the DNS names
/// and IP addresses of its subject's alternative names. They need not be names that a client can
/// ask for.
///
/// # Errors
///
/// If the certificate cannot be parsed.
pub fn certificate_hosts(pem: &str) -> Result<Vec<String>, IdentityError> {
    let der = first_certificate(pem)?;
    let parsed = x509_parser::parse_x509_certificate(&der);
    let (_, certificate) = parsed.map_err(|error| IdentityError::ParseCertificate {
        reason: error.to_string(),
    })?;
    let names = certificate.subject().iter_common_name();
    let mut hosts: Vec<String> = names
        .filter_map(|name| name.as_str().ok())
        .map(str::to_owned)
        .collect();
    let alternative = certificate.subject_alternative_name().ok().flatten();
    for name in alternative.iter().flat_map(|one| &one.value.general_names) {
        match name {
            GeneralName::DNSName(name) => hosts.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => {
                hosts.extend(ip_address(bytes).map(|ip| ip.to_string()))
            }
            _ => {}
        }
    }
    Ok(hosts)
}
