//! Verifies servers when root certificates are configured: with these roots, but also accepts a
//! server whose own certificate is configured, even if it is a CA certificate. `openssl req -x509`
//! creates self-signed certificates with CA:TRUE, and an operator who configures one means this
//! server. Only a byte-for-byte match counts: similar certificates are never trusted.

use std::collections::HashSet;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::TlsError;
use super::trust::NamedRoots;

/// Accepts certificates signed by the roots, and the configured certificates themselves, byte for
/// byte. Name, validity, purpose and possession of the key are verified in both cases.
#[derive(Debug)]
pub(super) struct NamedVerifier {
    usual: Arc<WebPkiServerVerifier>,
    named: HashSet<CertificateDer<'static>>,
}

impl NamedVerifier {
    /// Creates a verifier. The roots must not be empty; `origin` is their name in errors.
    pub(super) fn new(
        roots: NamedRoots,
        origin: &str,
        provider: Arc<CryptoProvider>,
    ) -> Result<NamedVerifier, TlsError> {
        let usual =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots.store), provider).build();
        let usual = usual.map_err(|error| TlsError::BadCertificate {
            origin: origin.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(NamedVerifier {
            usual,
            named: roots.certificates,
        })
    }
}

/// Verifies everything but the issuer of a certificate that is itself configured.
fn verify_itself(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), CertificateError> {
    // Also refuses unsupported critical extensions.
    let parsed = ParsedCertificate::try_from(certificate).map_err(bad_certificate)?;
    let (_, details) =
        X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    verify_time(&details, now)?;
    verify_purpose(&details)?;
    verify_server_name(&parsed, name).map_err(bad_certificate)
}

fn verify_time(certificate: &X509Certificate<'_>, time: UnixTime) -> Result<(), CertificateError> {
    let unix = |seconds: i64| {
        // Times before 1970 are clamped to 1970.
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            u64::try_from(seconds).unwrap_or_default(),
        ))
    };
    let validity = certificate.validity();
    let not_before = unix(validity.not_before.timestamp());
    let not_after = unix(validity.not_after.timestamp());
    if time < not_before {
        return Err(CertificateError::NotValidYetContext { time, not_before });
    }
    if time > not_after {
        return Err(CertificateError::ExpiredContext { time, not_after });
    }
    Ok(())
}

/// If a certificate has extended key usages, they must include server authentication.
fn verify_purpose(certificate: &X509Certificate<'_>) -> Result<(), CertificateError> {
    let purposes = certificate.extended_key_usage();
    match purposes.map_err(|_| CertificateError::BadEncoding)? {
        Some(purposes) if !purposes.value.server_auth && !purposes.value.any => {
            Err(CertificateError::InvalidPurpose)
        }
        _ => Ok(()),
    }
}

fn bad_certificate(error: Error) -> CertificateError {
    match error {
        Error::InvalidCertificate(reason) => reason,
        _ => CertificateError::BadEncoding,
    }
}

impl ServerCertVerifier for NamedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let usual = self.usual.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        if usual.is_ok() || !self.named.contains(end_entity) {
            return usual;
        }
        verify_itself(end_entity, server_name, now)?;
        Ok(ServerCertVerified::assertion())
    }

    signatures_of!(usual);
}
