//! What a failed TLS handshake counts as.

use std::io;

use tokio_rustls::rustls::{CertificateError, Error};

use super::stats::Counter;

/// Counts a failed handshake as Envoy does.
pub(super) fn count(
    error: &io::Error,
    connection_error: &Counter,
    no_certificate: &Counter,
    verify_error: &Counter,
    verify_san: &Counter,
) {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    match cause {
        Some(Error::NoCertificatesPresented) => no_certificate.inc(),
        Some(Error::InvalidCertificate(CertificateError::NotValidForName)) => verify_san.inc(),
        Some(Error::InvalidCertificate(_)) => verify_error.inc(),
        Some(_) => connection_error.inc(),
        // The peer has left.
        None => {}
    }
}
