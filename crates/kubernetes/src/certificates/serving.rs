//! The certificate that the webhook presents: the newest one, issued by the operator or read from
//! files.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use legate_identity::CertificateInfo;
use legate_identity::tls::{TlsError, provider, server_config};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Resolves to the current certificate. Without one, TLS handshakes fail.
#[derive(Default)]
pub(super) struct Serving(ArcSwapOption<Arc<dyn ResolvesServerCert>>);

impl Serving {
    /// The TLS configuration of a port that presents it.
    ///
    /// # Errors
    /// If the TLS library supports no protocol version.
    pub(super) fn tls(self: &Arc<Serving>) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Library)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Presents this certificate on new connections.
    ///
    /// # Errors
    /// If certificate or key are invalid or do not match.
    pub(super) fn set(&self, cert: &str, key: &str) -> Result<(), TlsError> {
        let resolver = server_config(cert, key, None)?.cert_resolver.clone();
        self.0.store(Some(Arc::new(resolver)));
        Ok(())
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().as_ref()?.resolve(hello)
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Serving")
    }
}

/// Reads `tls.crt` and `tls.key` of a folder and presents them. Returns the expiry.
///
/// # Errors
/// A sentence that names the file.
pub(super) fn from_folder(folder: &Path, serving: &Serving) -> Result<SystemTime, String> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let (cert, key) = (read("tls.crt")?, read("tls.key")?);
    serving
        .set(&cert, &key)
        .and_then(|()| {
            CertificateInfo::from_pem(&cert).map_err(|error| TlsError::BadCertificate {
                origin: "tls.crt".to_owned(),
                reason: error.to_string(),
            })
        })
        .map(|info| info.not_after)
        .map_err(|error| format!("the files in {} cannot be used: {error}", folder.display()))
}
