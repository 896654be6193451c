//! TLS configurations for clients and for gRPC servers.
//!
//! Files are read once, when a configuration is built. The crypto provider is passed explicitly; no
//! process-wide default is required or set.

#[macro_use]
mod signatures;

mod agents;
mod error;
mod insecure;
pub mod mesh;
mod named;
mod pem;
mod shared_key;
mod trust;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

pub use self::agents::{AgentFiles, AgentTls, ExpectedServer};
pub use self::error::TlsError;
use self::named::NamedVerifier;
use self::pem::Source;
pub use self::shared_key::{SharedKeyTls, shared_key};

/// TLS 1.3.
static ONLY_NEWEST: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// The ALPN name of HTTP/2.
const H2: &[u8] = b"h2";

/// Verification of the server, and the client's own certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// PEM file, or directory of PEM files, that replaces the system's roots. In directories, entries
    /// that start with `..` are skipped and links to files are followed, since Kubernetes mounts
    /// secrets that way. A server whose own certificate is included is accepted, even if that is a CA
    /// certificate. `None` means the system's roots.
    pub ca: Option<PathBuf>,
    /// PEM files of the client's certificate chain and its key.
    pub client_cert: Option<(PathBuf, PathBuf)>,
    /// Accepts any certificate for any name; for experiments only.
    pub insecure_skip_verify: bool,
    /// Whether to offer HTTP/2 with ALPN. Servers that do not select it are accepted.
    pub alpn_h2: bool,
}

/// The crypto provider of all TLS configurations here.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Parses the name for verifying a server. An IP address is compared with the certificate's IP names
/// and is not sent as SNI.
///
/// # Errors
///
/// [`TlsError::ServerName`] when it is neither a DNS name nor an IP address.
pub fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::ServerName {
        name: name.to_owned(),
    })
}

/// Builds a client configuration for TLS 1.2 and 1.3.
///
/// # Errors
///
/// [`TlsError`] names the unusable file and the remedy.
pub fn client_config(options: &ClientTls) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Library)?;
    // Read even if nothing is verified, so that a wrong path is detected now and not years later.
    let named = match options.ca.as_deref() {
        Some(path) => Some((trust::from_path(path)?, path.display().to_string())),
        None => None,
    };
    let builder = if options.insecure_skip_verify {
        let verifier = Arc::new(insecure::AcceptAny::new(provider()));
        builder
            .dangerous()
            .with_custom_certificate_verifier(verifier)
    } else if let Some((roots, origin)) = named {
        let verifier = Arc::new(NamedVerifier::new(roots, &origin, provider())?);
        builder
            .dangerous()
            .with_custom_certificate_verifier(verifier)
    } else {
        builder.with_root_certificates(trust::system()?)
    };
    let mut config = match &options.client_cert {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let (certificate, key) = (Source::file(certificate)?, Source::file(key)?);
            builder
                .with_client_auth_cert(certificate.certificates()?, key.private_key()?)
                .map_err(|source| bad_pair(certificate, key, source))?
        }
    };
    if options.alpn_h2 {
        config.alpn_protocols = vec![H2.to_vec()];
    }
    Ok(Arc::new(config))
}

/// Builds a client configuration for TLS 1.2 and 1.3 that verifies servers with the CA certificates
/// of a PEM text. `origin` is the text's name in errors.
///
/// # Errors
///
/// [`TlsError`] contains the reason why the text is unusable.
pub fn client_config_with_roots(pem: &str, origin: &str) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = trust::from_text(&Source::text(pem, origin))?;
    let verifier = NamedVerifier::new(roots, origin, provider())?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Whether a client that trusts the CA certificates in `pem` would accept a server's certificate
/// chain, the leaf first, for `name` at the time `now`. `origin` is the text's name in errors. Opens
/// no connection and never reads the clock; for inspecting connections of other processes.
///
/// # Errors
///
/// [`TlsError`] contains the reason why the text or name is unusable, or, as [`TlsError::Refused`],
/// why the certificates are refused.
pub fn verify_server(
    chain: &[CertificateDer<'static>],
    pem: &str,
    origin: &str,
    name: &str,
    now: SystemTime,
) -> Result<(), TlsError> {
    let roots = trust::from_text(&Source::text(pem, origin))?;
    let verifier = NamedVerifier::new(roots, origin, provider())?;
    let name = server_name(name)?;
    let now = now.duration_since(SystemTime::UNIX_EPOCH);
    let now = UnixTime::since_unix_epoch(now.unwrap_or_default());
    let Some((own, others)) = chain.split_first() else {
        return Err(TlsError::Refused(rustls::Error::NoCertificatesPresented));
    };
    let verified = verifier.verify_server_cert(own, others, &name, &[], now);
    verified.map(|_| ()).map_err(TlsError::Refused)
}

/// Builds a gRPC server configuration for TLS 1.2 and 1.3 with HTTP/2 in ALPN.
///
/// With `client_ca_pem`, clients must have a certificate that is signed by one of these CAs.
///
/// # Errors
///
/// [`TlsError`] names the unusable text.
pub fn server_config(
    cert_pem: &str,
    key_pem: &str,
    client_ca_pem: Option<&str>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Library)?;
    let builder = match client_ca_pem {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let origin = "the client CA";
            let mut roots = RootCertStore::empty();
            trust::add(
                &mut roots,
                Source::text(pem, origin).certificates()?,
                origin,
            )?;
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
            let verifier = verifier.map_err(|error| TlsError::BadCertificate {
                origin: origin.to_owned(),
                reason: error.to_string(),
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let certificate = Source::text(cert_pem, "the server certificate");
    let key = Source::text(key_pem, "the server key");
    let mut config = builder
        .with_single_cert(certificate.certificates()?, key.private_key()?)
        .map_err(|source| bad_pair(certificate, key, source))?;
    config.alpn_protocols = vec![H2.to_vec()];
    Ok(Arc::new(config))
}

/// The configuration of a server whose certificate is not known yet: handshakes fail until `certificate` has one.
/// Otherwise as [`server_config`] without client certificates.
///
/// # Errors
///
/// [`TlsError::Library`], when the library does not support the defaults.
pub fn server_config_of(
    certificate: Arc<dyn ResolvesServerCert>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Library)?;
    let mut config = builder
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![H2.to_vec()];
    Ok(Arc::new(config))
}

/// Restrictions of a server on its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerPolicy {
    /// PEM files, or directories of them: clients must have a certificate signed by one of these CAs.
    /// Empty means that no client certificate is required.
    pub client_authorities: Vec<PathBuf>,
    /// Whether only TLS 1.3 is accepted.
    pub only_newest: bool,
    /// Names of the accepted TLS 1.2 cipher suites, such as `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`.
    /// Empty means all.
    pub cipher_suites: Vec<String>,
}

impl ServerPolicy {
    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for path in &self.client_authorities {
            roots.extend(trust::from_path(path)?.store.roots);
        }
        Ok(roots)
    }

    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        match self.only_newest {
            true => ONLY_NEWEST,
            false => rustls::ALL_VERSIONS,
        }
    }
}

/// Returns a server configuration with the same certificates and these restrictions.
///
/// # Errors
///
/// [`TlsError`] names the unusable file or cipher suite.
pub fn restricted(config: &ServerConfig, policy: &ServerPolicy) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(with_suites(&policy.cipher_suites)?);
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(policy.versions())
        .map_err(TlsError::Library)?;
    let builder = if policy.client_authorities.is_empty() {
        builder.with_no_client_auth()
    } else {
        let roots = Arc::new(policy.roots()?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, self::provider()).build();
        let verifier = verifier.map_err(|error| TlsError::BadCertificate {
            origin: "the file of the clients' authorities".to_owned(),
            reason: error.to_string(),
        })?;
        builder.with_client_cert_verifier(verifier)
    };
    let mut restricted = builder.with_cert_resolver(config.cert_resolver.clone());
    restricted.alpn_protocols.clone_from(&config.alpn_protocols);
    Ok(restricted)
}

/// The crypto provider restricted to these TLS 1.2 suites. All TLS 1.3 suites are retained.
fn with_suites(names: &[String]) -> Result<CryptoProvider, TlsError> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    if names.is_empty() {
        return Ok(provider);
    }
    let mut chosen = Vec::new();
    for name in names {
        // Go's short name of one suite.
        let name = match name.strip_suffix("_CHACHA20_POLY1305") {
            Some(_) => format!("{name}_SHA256"),
            None => name.clone(),
        };
        let known = provider
            .cipher_suites
            .iter()
            .find(|suite| format!("{:?}", suite.suite()).replace("TLS13_", "TLS_") == name);
        let Some(known) = known else {
            return Err(TlsError::UnknownSuite { name });
        };
        chosen.push(known.suite());
    }
    provider
        .cipher_suites
        .retain(|suite| suite.tls13().is_some() || chosen.contains(&suite.suite()));
    Ok(provider)
}

fn bad_pair(certificate: Source, key: Source, source: rustls::Error) -> TlsError {
    TlsError::BadPair {
        certificate: certificate.origin,
        key: key.origin,
        source,
    }
}

#[cfg(test)]
mod tests;
