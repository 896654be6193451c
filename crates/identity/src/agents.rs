//! Certificates for RPC between servers and their clients, with the profiles of `consul tls`: a
//! separate CA and the certificates that it signs. They are not identities of the mesh.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyIdMethod, KeyUsagePurpose, NameConstraints, SanType,
    SerialNumber,
};
use time::OffsetDateTime;

use crate::certificate::first_certificate;
use crate::{CertificateInfo, IdentityError, PrivateKey, tls};

/// Parameters of a new CA.
#[derive(Clone, Debug)]
pub struct AgentAuthorityRequest {
    /// Common name.
    pub common_name: String,
    /// URI of the cluster, if it has one.
    pub uri: Option<String>,
    /// Domains for which it may sign; empty means any.
    pub permitted_domains: Vec<String>,
    /// Serial number, below 2^127.
    pub serial: u128,
    /// Start of the validity.
    pub now: SystemTime,
    /// Length of the validity.
    pub ttl: Duration,
}

/// Parameters of a certificate, whose key is generated with it.
#[derive(Clone, Debug)]
pub struct AgentRequest {
    /// Common name.
    pub common_name: String,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// IP addresses.
    pub ips: Vec<IpAddr>,
    /// Whether it is for TLS handshakes of servers and clients. If false, it has no extended key usages.
    pub handshakes: bool,
    /// Serial number, below 2^127.
    pub serial: u128,
    /// Start of the validity.
    pub now: SystemTime,
    /// Length of the validity.
    pub ttl: Duration,
}

/// Generates a self-signed CA: its certificate as PEM, and its EC P-256 key.
///
/// # Errors
///
/// When a name or the validity cannot be encoded, or the system provides no randomness.
pub fn generate_agent_authority(
    request: AgentAuthorityRequest,
) -> Result<(String, PrivateKey), IdentityError> {
    let key = PrivateKey::generate()?;
    let mut params = params(
        &request.common_name,
        request.serial,
        request.now,
        request.ttl,
    )?;
    if let Some(uri) = request.uri {
        params.subject_alt_names = vec![SanType::URI(name(&uri)?)];
    }
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    if !request.permitted_domains.is_empty() {
        let domains = request.permitted_domains.into_iter();
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: domains.map(GeneralSubtree::DnsName).collect(),
            excluded_subtrees: Vec::new(),
        });
    }
    params.key_identifier_method = KeyIdMethod::PreSpecified(key.key_id());
    let certificate = params.self_signed(&key).map_err(IdentityError::Sign)?;
    Ok((certificate.pem(), key))
}

/// Issues a certificate as PEM with a new EC P-256 key, signed by a CA that is given as PEM.
///
/// # Errors
///
/// When the CA is unreadable or may not sign, its key does not match, a name or the validity cannot
/// be encoded, or the CA may not sign a name.
pub fn issue_for_agent(
    authority: &str,
    authority_key: &str,
    request: AgentRequest,
) -> Result<(String, PrivateKey), IdentityError> {
    // Validates that the pair matches and that the certificate may sign.
    crate::Authority::from_pem(authority, authority_key)?;
    let der = first_certificate(authority)?;
    let issuer = Issuer::from_ca_cert_der(&der, PrivateKey::from_pem(authority_key)?);
    let issuer = issuer.map_err(|error| IdentityError::ParseCertificate {
        reason: error.to_string(),
    })?;
    let key = PrivateKey::generate()?;
    let mut params = params(
        &request.common_name,
        request.serial,
        request.now,
        request.ttl,
    )?;
    for dns in &request.dns_names {
        params.subject_alt_names.push(SanType::DnsName(name(dns)?));
    }
    let ips = request.ips.into_iter().map(SanType::IpAddress);
    params.subject_alt_names.extend(ips);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    if request.handshakes {
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
    }
    params.key_identifier_method = KeyIdMethod::PreSpecified(key.key_id());
    let certificate = params
        .signed_by(&key, &issuer)
        .map_err(IdentityError::Sign)?;
    CertificateInfo::from_der(certificate.der())?;
    // All names are checked, since clients may verify any of them.
    let mut names = request.dns_names.iter();
    if let Some(name) = names.find(|name| tls::server_name(name).is_ok()) {
        let chain = [certificate.der().clone()];
        let verified = tls::verify_server(&chain, authority, "the authority", name, request.now);
        verified.map_err(|error| IdentityError::NotPermitted {
            reason: error.to_string(),
        })?;
    }
    Ok((certificate.pem(), key))
}

fn params(
    common_name: &str,
    serial: u128,
    now: SystemTime,
    ttl: Duration,
) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.serial_number = Some(SerialNumber::from_slice(&serial.to_be_bytes()));
    params.not_before = date(now)?;
    params.not_after = date(now.checked_add(ttl).ok_or(IdentityError::Validity)?)?;
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// A time with the resolution of certificates, within the years that they can represent.
fn date(time: SystemTime) -> Result<OffsetDateTime, IdentityError> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok();
    since
        .and_then(|since| i64::try_from(since.as_secs()).ok())
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .ok_or(IdentityError::Validity)
}

fn name(text: &str) -> Result<Ia5String, IdentityError> {
    text.try_into().map_err(|_| IdentityError::InvalidName {
        name: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn authority(domains: &[&str]) -> (String, String) {
        let made = generate_agent_authority(AgentAuthorityRequest {
            common_name: "Agent CA".to_owned(),
            uri: None,
            permitted_domains: domains.iter().map(|domain| (*domain).to_owned()).collect(),
            serial: 1,
            now: SystemTime::now(),
            ttl: 5 * DAY,
        });
        let (certificate, key) = made.unwrap();
        (certificate, key.to_pem())
    }

    fn issued(authority: &(String, String), dns: &str) -> Result<String, IdentityError> {
        let request = AgentRequest {
            common_name: dns.to_owned(),
            dns_names: vec![dns.to_owned()],
            ips: vec![IpAddr::from([127, 0, 0, 1])],
            handshakes: true,
            serial: 2,
            now: SystemTime::now(),
            ttl: DAY,
        };
        let issued = issue_for_agent(&authority.0, &authority.1, request);
        issued.map(|(certificate, _)| certificate)
    }

    #[test]
    fn a_client_that_trusts_the_ca_accepts_the_server() {
        let authority = authority(&["consul"]);
        let name = "server.dc1.consul";
        let certificate = first_certificate(&issued(&authority, name).unwrap()).unwrap();
        let chain = [certificate.into_owned()];
        for (name, accepted) in [(name, true), ("other.dc1.consul", false)] {
            let now = SystemTime::now();
            let verified = tls::verify_server(&chain, &authority.0, "test", name, now);
            assert_eq!(verified.is_ok(), accepted, "{name}: {verified:?}");
        }
        // No client would accept it.
        let refused = issued(&authority, "server.example");
        assert!(matches!(refused, Err(IdentityError::NotPermitted { .. })));
    }

    #[test]
    fn the_key_must_match_the_ca() {
        let (one, other) = (authority(&[]), authority(&[]));
        let request = AgentRequest {
            common_name: "x".to_owned(),
            dns_names: Vec::new(),
            ips: Vec::new(),
            handshakes: false,
            serial: 2,
            now: SystemTime::now(),
            ttl: DAY,
        };
        let refused = issue_for_agent(&one.0, &other.1, request);
        assert!(matches!(refused, Err(IdentityError::KeyMismatch)));
    }
}
