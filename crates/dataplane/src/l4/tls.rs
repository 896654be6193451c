//! TLS configurations of listeners and clusters. Certificates and authorities are parsed once and shared by all
//! configurations that use them.
//!
//! It makes no handshake.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use legate_identity::tls::mesh::{MeshCertificate, MeshClient, MeshServer, MeshTls, MeshTrust};
use legate_identity::tls::{TlsError, mesh};
use legate_l4::config::Secrets;
use legate_l4::model::{
    Certificate, CommonTls, DownstreamTls, Secret, Source, TlsVersion, UpstreamTls, Validation,
};
use tokio_rustls::rustls::pki_types::CertificateDer;

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadTls {
    #[error("the secret {0} has not arrived")]
    Missing(String),
    #[error("the secret {0} is of another kind than its use needs")]
    Kind(String),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Parsed material by the value that it was parsed from. A value that is in use cannot change, so its address
/// identifies it.
#[derive(Debug, Default)]
pub(super) struct Material {
    certificates: Mutex<HashMap<usize, (Arc<Certificate>, MeshCertificate)>>,
    trust: Mutex<HashMap<usize, (Arc<Validation>, MeshTrust)>>,
}

impl Material {
    fn certificate(
        &self,
        name: &str,
        certificate: &Arc<Certificate>,
    ) -> Result<MeshCertificate, TlsError> {
        let mut known = self
            .certificates
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let address = Arc::as_ptr(certificate) as usize;
        if let Some((_, parsed)) = known.get(&address) {
            return Ok(parsed.clone());
        }
        let parsed = MeshCertificate::parse(&certificate.chain, &certificate.key, name)?;
        known.insert(address, (Arc::clone(certificate), parsed.clone()));
        Ok(parsed)
    }

    fn trust(&self, name: &str, validation: &Arc<Validation>) -> Result<MeshTrust, TlsError> {
        let mut known = self.trust.lock().unwrap_or_else(PoisonError::into_inner);
        let address = Arc::as_ptr(validation) as usize;
        if let Some((_, parsed)) = known.get(&address) {
            return Ok(parsed.clone());
        }
        let parsed = match &**validation {
            Validation::Authorities(pem) => MeshTrust::authorities(pem, name)?,
            Validation::TrustDomains(domains) => MeshTrust::domains(domains, name)?,
        };
        known.insert(address, (Arc::clone(validation), parsed.clone()));
        Ok(parsed)
    }

    /// Forgets what only this cache holds.
    pub(super) fn forget_unused(&self) {
        let mut certificates = self
            .certificates
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        certificates.retain(|_, (source, _)| Arc::strong_count(source) > 1);
        let mut trust = self.trust.lock().unwrap_or_else(PoisonError::into_inner);
        trust.retain(|_, (source, _)| Arc::strong_count(source) > 1);
    }

    fn common(&self, tls: &CommonTls, secrets: &Secrets) -> Result<MeshTls, BadTls> {
        let certificate = match &tls.certificate {
            None => None,
            Some(Source::Inline(inline)) => Some(self.certificate("in the resource", inline)?),
            Some(Source::Named(name)) => match secrets.get(name).map(|secret| &**secret) {
                Some(Secret::Certificate(certificate)) => {
                    Some(self.certificate(name, certificate)?)
                }
                Some(Secret::Validation(_)) => return Err(BadTls::Kind(name.to_string())),
                None => return Err(BadTls::Missing(name.to_string())),
            },
        };
        let trust = match &tls.validation {
            None => None,
            Some(Source::Inline(inline)) => Some(self.trust("in the resource", inline)?),
            Some(Source::Named(name)) => match secrets.get(name).map(|secret| &**secret) {
                Some(Secret::Validation(validation)) => Some(self.trust(name, validation)?),
                Some(Secret::Certificate(_)) => return Err(BadTls::Kind(name.to_string())),
                None => return Err(BadTls::Missing(name.to_string())),
            },
        };
        Ok(MeshTls {
            certificate,
            trust,
            uris: tls.uris.clone(),
            only_newest: tls.min_version == TlsVersion::V1_3,
            only_older: tls.max_version == TlsVersion::V1_2,
            cipher_suites: tls.cipher_suites.clone(),
            alpn: tls.alpn.clone(),
            time: None,
        })
    }

    /// The configuration of a listener's chain.
    pub(super) fn server(
        &self,
        tls: &DownstreamTls,
        secrets: &Secrets,
    ) -> Result<MeshServer, BadTls> {
        let common = self.common(&tls.common, secrets)?;
        Ok(common.server(tls.require_client_certificate)?)
    }

    /// The configuration of a cluster.
    pub(super) fn client(
        &self,
        tls: &UpstreamTls,
        secrets: &Secrets,
    ) -> Result<MeshClient, BadTls> {
        let common = self.common(&tls.common, secrets)?;
        Ok(common.client(!tls.sni.is_empty())?)
    }
}

/// The URIs in the first certificate of a peer.
pub(super) fn uris(chain: Option<&[CertificateDer<'_>]>) -> Vec<String> {
    let leaf = chain.and_then(<[_]>::first);
    leaf.map(mesh::certificate_uris).unwrap_or_default()
}
