//! A CA for tests, with its files in a temporary folder.
//!
//! It issues certificates of servers and clients of the control plane, never mesh identities, which
//! come from the mesh's own CA.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

/// A CA with its own root. The files are removed on drop.
pub struct TestCa {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as files and as text.
#[derive(Clone, Debug)]
pub struct CertFiles {
    /// Certificate, PEM file.
    pub cert: PathBuf,
    /// Private key, PEM file.
    pub key: PathBuf,
    /// Certificate, PEM.
    pub cert_pem: String,
    /// Private key, PEM.
    pub key_pem: String,
}

/// The TLS settings of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerTls {
    /// Whether the server selects `h2` by ALPN (it serves HTTP/2 in either case).
    pub alpn: bool,
    /// Whether clients must present a certificate of the same CA.
    pub require_client_cert: bool,
}

impl Default for ServerTls {
    fn default() -> Self {
        Self {
            alpn: true,
            require_client_cert: false,
        }
    }
}

impl TestCa {
    /// Creates a CA.
    ///
    /// # Panics
    ///
    /// If there is no temporary folder, or no key can be generated.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "legate test authority");
        let key = KeyPair::generate().expect("key pair");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("self-signed root");
        let folder = TempDir::new().expect("temporary folder");
        fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("ca.pem");
        Self { folder, issuer }
    }

    /// The folder of all files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// File with the root certificate.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Root certificate, PEM.
    #[must_use]
    pub fn ca_pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a certificate for a server with these DNS names and IP addresses; the first one is
    /// used in file names.
    ///
    /// # Panics
    ///
    /// If a name is invalid.
    #[must_use]
    pub fn server(&self, names: &[&str]) -> CertFiles {
        self.issue(names, &[ExtendedKeyUsagePurpose::ServerAuth])
    }

    /// Issues a certificate for a client with this name.
    ///
    /// # Panics
    ///
    /// If the name is invalid.
    #[must_use]
    pub fn client(&self, name: &str) -> CertFiles {
        self.issue(&[name], &[ExtendedKeyUsagePurpose::ClientAuth])
    }

    /// Issues a certificate for a server that also connects to others, as `legate tls cert create -server` does.
    ///
    /// # Panics
    ///
    /// If a name is invalid.
    #[must_use]
    pub fn agent(&self, names: &[&str]) -> CertFiles {
        let usages = [
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.issue(names, &usages)
    }

    /// The TLS configuration of a server with these DNS names and IP addresses.
    ///
    /// # Panics
    ///
    /// If a name is invalid.
    #[must_use]
    pub fn server_config(&self, names: &[&str], tls: ServerTls) -> Arc<ServerConfig> {
        let files = self.server(names);
        let certificate =
            CertificateDer::from_pem_slice(files.cert_pem.as_bytes()).expect("own certificate");
        let key = PrivateKeyDer::from_pem_slice(files.key_pem.as_bytes()).expect("own key");
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider supports TLS 1.2 and 1.3");
        let builder = if tls.require_client_cert {
            let mut roots = RootCertStore::empty();
            roots.add(self.issuer.der().clone()).expect("own root");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .expect("one root is enough");
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder
            .with_single_cert(vec![certificate], key)
            .expect("key fits certificate");
        if tls.alpn {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        Arc::new(config)
    }

    fn issue(&self, names: &[&str], usages: &[ExtendedKeyUsagePurpose]) -> CertFiles {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let file = names
            .first()
            .map_or("certificate", String::as_str)
            .to_owned();
        let mut params = CertificateParams::new(names).expect("DNS names and IP addresses");
        params
            .distinguished_name
            .push(DnType::CommonName, file.as_str());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages.to_vec();
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("key pair");
        let certificate = params.signed_by(&key, &self.issuer).expect("signature");
        // File names of certificates with the same name are distinguished by the first bytes of
        // their keys.
        let mark: String = key.public_key_raw()[1..5]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let path = |kind: &str| {
            self.folder
                .path()
                .join(format!("{}-{mark}-{kind}.pem", file.replace(':', "_")))
        };
        let files = CertFiles {
            cert: path("cert"),
            key: path("key"),
            cert_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        };
        fs::write(&files.cert, &files.cert_pem).expect("certificate file");
        fs::write(&files.key, &files.key_pem).expect("key file");
        files
    }
}

impl Default for TestCa {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for TestCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestCa")
            .field("folder", &self.folder.path())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_have_the_same_content_as_the_text() {
        let ca = TestCa::new();
        let first = ca.server(&["localhost", "127.0.0.1", "::1"]);
        let second = ca.server(&["localhost"]);
        assert_ne!(
            first.cert, second.cert,
            "a second certificate keeps the first"
        );
        assert_eq!(fs::read_to_string(&first.cert).unwrap(), first.cert_pem);
        assert_eq!(fs::read_to_string(&first.key).unwrap(), first.key_pem);
        assert_eq!(fs::read_to_string(ca.ca_file()).unwrap(), ca.ca_pem());
        assert!(first.cert.starts_with(ca.folder()));
    }

    #[test]
    fn server_settings_are_valid() {
        let ca = TestCa::new();
        let config = ca.server_config(
            &["localhost"],
            ServerTls {
                alpn: false,
                require_client_cert: true,
            },
        );
        assert!(config.alpn_protocols.is_empty());
        let config = ca.server_config(&["localhost"], ServerTls::default());
        assert_eq!(config.alpn_protocols, [b"h2".to_vec()]);
    }
}
