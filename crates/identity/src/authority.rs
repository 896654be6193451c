//! A CA certificate with its key: creates roots, issues leaf certificates and signs requests.
//!
//! Certificate profiles are those of Consul's built-in CA, so that Consul's tools and proxies accept
//! them. Callers decide whether a requester may have a name.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
    SubjectPublicKeyInfo,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use time::OffsetDateTime;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use crate::certificate::{first_certificate, ip_address, is_signed};
use crate::cross_sign::name;
use crate::key::key_id;
use crate::{CertificateInfo, IdentityError, PrivateKey};

/// How far leaf certificates are backdated, for proxies whose clock is behind.
const BACKDATE: Duration = Duration::from_secs(60);

/// Backdating is limited to a tenth of the lifetime. Otherwise certificates with lifetimes of seconds
/// would be expired when they are issued.
const BACKDATE_PART: u32 = 10;

/// What the keys of authorities are for.
const AUTHORITY_USAGES: [KeyUsagePurpose; 3] = [
    KeyUsagePurpose::DigitalSignature,
    KeyUsagePurpose::KeyCertSign,
    KeyUsagePurpose::CrlSign,
];

/// Parameters of a new root.
#[derive(Clone, Debug)]
pub struct RootRequest {
    /// Common name, the only part of the subject.
    pub common_name: String,
    /// URI of the trust domain, `spiffe://<trust domain>`.
    pub uri: String,
    /// Serial number, below 2^127.
    pub serial: u128,
    /// Start of the validity.
    pub now: SystemTime,
    /// Length of the validity.
    pub ttl: Duration,
}

/// Parameters of a leaf certificate, whose key is generated with it.
#[derive(Clone, Debug)]
pub struct LeafRequest {
    /// URI names; a SPIFFE ID is exactly one.
    pub uris: Vec<String>,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// IP addresses.
    pub ips: Vec<IpAddr>,
    /// Serial number, below 2^127.
    pub serial: u128,
    /// The current time; the validity starts a minute earlier, or a tenth of `ttl` if that is less.
    pub now: SystemTime,
    /// Length of the validity.
    pub ttl: Duration,
}

/// Serial number and validity of a certificate for another party's key, set by the signer.
#[derive(Clone, Copy, Debug)]
pub struct CsrProfile {
    /// Serial number, below 2^127.
    pub serial: u128,
    /// The current time; the validity starts a minute earlier, or a tenth of `ttl` if that is less.
    pub now: SystemTime,
    /// Length of the validity.
    pub ttl: Duration,
}

/// A leaf certificate and its key.
#[derive(Clone, Debug)]
pub struct IssuedCertificate {
    /// The certificate alone, without intermediates.
    pub cert_pem: String,
    /// Its private key.
    pub key: PrivateKey,
    /// The parsed certificate.
    pub info: CertificateInfo,
}

/// A CA certificate with its key.
pub struct Authority {
    cert_pem: String,
    key: PrivateKey,
    info: CertificateInfo,
    pub(crate) issuer: Issuer<'static, PrivateKey>,
}

impl Authority {
    /// Generates a self-signed root with a new EC P-256 key.
    ///
    /// # Errors
    ///
    /// When a name or the validity cannot be encoded, or the system provides no randomness.
    pub fn generate_root(request: RootRequest) -> Result<Authority, IdentityError> {
        Authority::root_of(request, PrivateKey::generate()?)
    }

    /// Creates a self-signed root with this key.
    ///
    /// # Errors
    ///
    /// When a name or the validity cannot be encoded.
    pub fn root_of(request: RootRequest, key: PrivateKey) -> Result<Authority, IdentityError> {
        let mut params = validity(request.serial, request.now, request.ttl)?;
        params
            .distinguished_name
            .push(DnType::CommonName, request.common_name);
        params.subject_alt_names = vec![uri_name(request.uri)?];
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = AUTHORITY_USAGES.to_vec();
        params.key_identifier_method = KeyIdMethod::PreSpecified(key.key_id());
        let certificate = params.self_signed(&key).map_err(IdentityError::Sign)?;
        Authority::new(certificate.der(), certificate.pem(), key)
    }

    /// Parses a CA certificate, the first in the text, and its key.
    ///
    /// # Errors
    ///
    /// When one is unreadable, they do not match, or the certificate may not sign.
    pub fn from_pem(cert: &str, key: &str) -> Result<Authority, IdentityError> {
        let der = first_certificate(cert)?;
        Authority::new(&der, cert.to_owned(), PrivateKey::from_pem(key)?)
    }

    fn new(
        der: &CertificateDer<'_>,
        cert_pem: String,
        key: PrivateKey,
    ) -> Result<Authority, IdentityError> {
        let info = CertificateInfo::from_der(der)?;
        if !info.is_ca {
            let reason = "its basic constraints do not include CA";
            return Err(IdentityError::NotAnAuthority { reason });
        }
        check_pair(der, &key)?;
        let issuer = Issuer::from_ca_cert_der(der, key.clone()).map_err(|error| {
            IdentityError::ParseCertificate {
                reason: error.to_string(),
            }
        })?;
        Ok(Authority {
            cert_pem,
            key,
            info,
            issuer,
        })
    }

    /// The certificate as PEM.
    #[must_use]
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The private key as PEM. This exposes the secret.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    /// The parsed certificate.
    #[must_use]
    pub fn info(&self) -> &CertificateInfo {
        &self.info
    }

    /// Issues a leaf certificate for a new EC P-256 key.
    ///
    /// # Errors
    ///
    /// When a name or the validity cannot be encoded, or the system provides no randomness.
    pub fn issue(&self, request: LeafRequest) -> Result<IssuedCertificate, IdentityError> {
        let names = names(&request)?;
        let profile = CsrProfile {
            serial: request.serial,
            now: request.now,
            ttl: request.ttl,
        };
        let key = PrivateKey::generate()?;
        let certificate = self.leaf(&key, names, profile)?;
        Ok(IssuedCertificate {
            info: CertificateInfo::from_der(certificate.der())?,
            cert_pem: certificate.pem(),
            key,
        })
    }

    /// Signs a request with the leaf profile and returns the certificate as PEM.
    ///
    /// The key and the URI, DNS and IP names are taken from the request; everything else in it is
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`IdentityError::InvalidRequest`] when it is malformed, not signed with its own key, does not
    /// have exactly one URI, or has a name of another type.
    pub fn sign_csr(&self, csr_pem: &str, profile: CsrProfile) -> Result<String, IdentityError> {
        let der = request_der(csr_pem)?;
        let request = parse_request(&der)?;
        let names = requested_names(&request)?;
        let uris = names.iter().filter(|name| matches!(name, SanType::URI(_)));
        let count = uris.count();
        if count != 1 {
            let reason = format!("it has {count} URI names, exactly one is needed");
            return Err(IdentityError::request(reason));
        }
        let info = request.certification_request_info.subject_pki.raw;
        let key = SubjectPublicKeyInfo::from_der(info).map_err(IdentityError::request)?;
        Ok(self.leaf(&key, names, profile)?.pem())
    }

    /// Signs a request for an intermediate, which can sign leaves but no authorities, and returns the certificate as
    /// PEM.
    ///
    /// Key, subject and names are taken from the request; everything else in it is ignored.
    ///
    /// # Errors
    ///
    /// [`IdentityError::InvalidRequest`] when it is malformed, not signed with its own key, or has no subject, by
    /// which its leaves name their issuer.
    pub fn sign_intermediate(
        &self,
        csr_pem: &str,
        profile: CsrProfile,
    ) -> Result<String, IdentityError> {
        let der = request_der(csr_pem)?;
        let request = parse_request(&der)?;
        let asked = &request.certification_request_info;
        let mut params = backdated(profile)?;
        params.distinguished_name = name(&asked.subject).map_err(IdentityError::request)?;
        if params.distinguished_name.iter().next().is_none() {
            return Err(IdentityError::request("it has no subject"));
        }
        params.subject_alt_names = requested_names(&request)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = AUTHORITY_USAGES.to_vec();
        let key = SubjectPublicKeyInfo::from_der(asked.subject_pki.raw);
        let key = key.map_err(IdentityError::request)?;
        let id = key_id(asked.subject_pki.raw);
        params.key_identifier_method = KeyIdMethod::PreSpecified(id);
        let signed = params.signed_by(&key, &self.issuer);
        Ok(signed.map_err(IdentityError::Sign)?.pem())
    }

    fn leaf(
        &self,
        key: &impl PublicKeyData,
        names: Vec<SanType>,
        profile: CsrProfile,
    ) -> Result<rcgen::Certificate, IdentityError> {
        // The subject remains empty, so the library marks the names as critical.
        let mut params = backdated(profile)?;
        params.subject_alt_names = names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
            KeyUsagePurpose::DataEncipherment,
            KeyUsagePurpose::KeyAgreement,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let id = key_id(&key.subject_public_key_info());
        params.key_identifier_method = KeyIdMethod::PreSpecified(id);
        params
            .signed_by(key, &self.issuer)
            .map_err(IdentityError::Sign)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("info", &self.info)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// The names in a request.
#[derive(Debug, Default)]
pub struct CsrNames {
    /// Its URIs.
    pub uris: Vec<String>,
    /// Its DNS names.
    pub dns_names: Vec<String>,
    /// Its IP addresses.
    pub ips: Vec<IpAddr>,
}

/// Parses the names in a request after verifying its signature.
///
/// # Errors
///
/// [`IdentityError::InvalidRequest`] when it is malformed, not signed with its own key, or has a name
/// other than URIs, DNS names and IP addresses.
pub fn csr_names(csr_pem: &str) -> Result<CsrNames, IdentityError> {
    let der = request_der(csr_pem)?;
    let mut names = CsrNames::default();
    for name in requested_names(&parse_request(&der)?)? {
        match name {
            SanType::URI(uri) => names.uris.push(uri.to_string()),
            SanType::DnsName(name) => names.dns_names.push(name.to_string()),
            SanType::IpAddress(ip) => names.ips.push(ip),
            other => return Err(IdentityError::request(format!("{other:?} is not allowed"))),
        }
    }
    Ok(names)
}

/// The names for a leaf certificate.
pub(crate) fn names(request: &LeafRequest) -> Result<Vec<SanType>, IdentityError> {
    let mut names = Vec::new();
    for uri in &request.uris {
        names.push(uri_name(uri.clone())?);
    }
    for name in &request.dns_names {
        names.push(dns_name(name.clone())?);
    }
    names.extend(request.ips.iter().copied().map(SanType::IpAddress));
    Ok(names)
}

/// Parameters with an empty subject and the fields that all certificates share.
pub(crate) fn validity(
    serial: u128,
    not_before: SystemTime,
    ttl: Duration,
) -> Result<CertificateParams, IdentityError> {
    let not_after = not_before.checked_add(ttl);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from_slice(&serial.to_be_bytes()));
    params.not_before = date(not_before)?;
    params.not_after = date(not_after.ok_or(IdentityError::Validity)?)?;
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// As [`validity`], but backdated.
pub(crate) fn backdated(profile: CsrProfile) -> Result<CertificateParams, IdentityError> {
    let backdate = BACKDATE.min(profile.ttl / BACKDATE_PART);
    let not_before = profile.now.checked_sub(backdate);
    let not_before = not_before.ok_or(IdentityError::Validity)?;
    validity(profile.serial, not_before, profile.ttl)
}

/// A time with the resolution of certificates: whole seconds.
fn date(time: SystemTime) -> Result<OffsetDateTime, IdentityError> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok();
    since
        .and_then(|since| i64::try_from(since.as_secs()).ok())
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .ok_or(IdentityError::Validity)
}

pub(crate) fn uri_name(uri: String) -> Result<SanType, IdentityError> {
    let name = uri.as_str().try_into();
    name.map(SanType::URI)
        .map_err(|_| IdentityError::InvalidName { name: uri })
}

fn dns_name(dns: String) -> Result<SanType, IdentityError> {
    let name = dns.as_str().try_into();
    name.map(SanType::DnsName)
        .map_err(|_| IdentityError::InvalidName { name: dns })
}

fn check_pair(der: &CertificateDer<'_>, key: &PrivateKey) -> Result<(), IdentityError> {
    let parsed = x509_parser::parse_x509_certificate(der);
    let (_, certificate) = parsed.map_err(|error| IdentityError::ParseCertificate {
        reason: error.to_string(),
    })?;
    if key_id(certificate.public_key().raw) == key.key_id() {
        Ok(())
    } else {
        Err(IdentityError::KeyMismatch)
    }
}

pub(crate) fn request_der(
    csr_pem: &str,
) -> Result<CertificateSigningRequestDer<'static>, IdentityError> {
    CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes()).map_err(IdentityError::request)
}

pub(crate) fn parse_request(der: &[u8]) -> Result<X509CertificationRequest<'_>, IdentityError> {
    let (rest, request) =
        X509CertificationRequest::from_der(der).map_err(IdentityError::request)?;
    if !rest.is_empty() {
        return Err(IdentityError::request("bytes after its end"));
    }
    let asked = &request.certification_request_info;
    let signature = &request.signature_value.data;
    match is_signed(asked.raw, signature, &asked.subject_pki) {
        true => Ok(request),
        false => Err(IdentityError::request("it is not signed with its own key")),
    }
}

fn requested_names(request: &X509CertificationRequest<'_>) -> Result<Vec<SanType>, IdentityError> {
    let mut names = Vec::new();
    for extension in request.requested_extensions().into_iter().flatten() {
        if let ParsedExtension::SubjectAlternativeName(asked) = extension {
            for name in &asked.general_names {
                names.push(requested_name(name)?);
            }
        }
    }
    Ok(names)
}

fn requested_name(name: &GeneralName<'_>) -> Result<SanType, IdentityError> {
    match name {
        GeneralName::URI(uri) => uri_name((*uri).to_owned()),
        GeneralName::DNSName(name) => dns_name((*name).to_owned()),
        GeneralName::IPAddress(bytes) => ip_address(bytes)
            .map(SanType::IpAddress)
            .ok_or_else(|| IdentityError::request("an IP address of neither 4 nor 16 bytes")),
        GeneralName::RFC822Name(_) => Err(IdentityError::request("e-mail names are not allowed")),
        other => Err(IdentityError::request(format!(
            "{other:?} is not a URI, DNS name or IP address"
        ))),
    }
}

#[cfg(test)]
mod tests;
