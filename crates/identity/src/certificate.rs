//! What a certificate says, as plain values. It is read, not verified.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha1::{Digest, Sha1};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::IdentityError;
use crate::key::key_id;

/// The parts of a certificate that the mesh works with.
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
    /// Identifier of its key, hex bytes joined by colons; the SHA-256 of the public key when the
    /// certificate does not say one.
    pub subject_key_id: String,
    /// Identifier of the key that signed it, when it says so.
    pub authority_key_id: Option<String>,
    /// Whether it may sign others.
    pub is_ca: bool,
}

impl CertificateInfo {
    /// Reads the first certificate in a PEM text.
    ///
    /// # Errors
    ///
    /// [`IdentityError::ParseCertificate`] when there is none or it is malformed.
    pub fn from_pem(pem: &str) -> Result<CertificateInfo, IdentityError> {
        CertificateInfo::from_der(&first_certificate(pem)?)
    }

    /// Reads a certificate in DER form.
    ///
    /// # Errors
    ///
    /// [`IdentityError::ParseCertificate`] when it is malformed.
    pub fn from_der(der: &[u8]) -> Result<CertificateInfo, IdentityError> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(malformed)?;
        if !rest.is_empty() {
            return Err(malformed("bytes after its end"));
        }
        let mut info = CertificateInfo {
            id: colon_hex(&Sha1::digest(der)),
            serial: colon_hex(&certificate.serial.to_bytes_be()),
            uris: Vec::new(),
            dns_names: Vec::new(),
            ips: Vec::new(),
            not_before: unix_time(certificate.validity().not_before.timestamp()),
            not_after: unix_time(certificate.validity().not_after.timestamp()),
            subject_key_id: colon_hex(&key_id(certificate.public_key().raw)),
            authority_key_id: None,
            is_ca: certificate.is_ca(),
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

fn colon_hex(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}
