//! PEM texts with their origin: extraction of certificates and keys.

use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::TlsError;

/// A PEM text and its name in errors. It may contain a key, so it has no `Debug`.
pub(super) struct Source {
    pub(super) origin: String,
    pub(super) pem: Vec<u8>,
}

impl Source {
    pub(super) fn file(path: &Path) -> Result<Source, TlsError> {
        let pem = std::fs::read(path).map_err(|source| TlsError::Read {
            path: path.to_owned(),
            source,
        })?;
        let origin = path.display().to_string();
        Ok(Source { origin, pem })
    }

    pub(super) fn text(pem: &str, origin: &str) -> Source {
        Source {
            origin: origin.to_owned(),
            pem: pem.into(),
        }
    }

    /// All certificates, at least one.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.pem).collect();
        let certificates = parsed.map_err(|error| TlsError::BadPem {
            origin: self.origin.clone(),
            reason: error.to_string(),
        })?;
        if certificates.is_empty() {
            return Err(TlsError::NoCertificate {
                origin: self.origin.clone(),
            });
        }
        Ok(certificates)
    }

    /// The first private key. The parser's message is dropped, since it could quote a part of the
    /// key.
    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.pem).map_err(|_| TlsError::NoKey {
            origin: self.origin.clone(),
        })
    }
}
