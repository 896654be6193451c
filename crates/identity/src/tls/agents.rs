//! Mutual TLS between servers, of one datacenter or of several, with the certificates of `legate tls cert create`.
//!
//! A server has the name `server.<datacenter>.<domain>`. Both sides verify that the other one is signed by the CA
//! and has such a name. So a client's certificate of the same CA is no server's, and a server cannot pretend to be
//! in another datacenter. Servers that are reached through gateways also have the name
//! `<node>.server.<datacenter>.<domain>`, by which gateways find them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};

use super::insecure::AcceptAny;
use super::pem::Source;
use super::{
    ServerPolicy, TlsError, bad_pair, provider, restricted, server_config_of, with_suites,
};
use crate::agents::{
    AgentAuthorityRequest, AgentRequest, generate_agent_authority, issue_for_agent,
};
use crate::{CertificateInfo, IdentityError};

/// How long the certificate of a server in development mode is valid.
const DEVELOPMENT: Duration = Duration::from_hours(24 * 365);

/// The files of a server's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFiles {
    /// The certificate chain, as PEM.
    pub certificate: PathBuf,
    /// Its key, as PEM.
    pub key: PathBuf,
    /// The CAs of all servers, in [`ServerPolicy::client_authorities`], and what both sides accept.
    pub policy: ServerPolicy,
}

/// Who must be at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedServer<'a> {
    /// A server of any datacenter.
    Any,
    /// A server of a datacenter.
    OfDatacenter(&'a str),
    /// The server of a node in a datacenter.
    OfNode {
        /// The node.
        node: &'a str,
        /// The datacenter.
        datacenter: &'a str,
    },
}

impl ExpectedServer<'_> {
    /// The name that its certificate must have. `None`: any name of a server.
    pub fn name(&self, domain: &str) -> Option<String> {
        let domain = domain.trim_end_matches('.');
        match self {
            Self::Any => None,
            Self::OfDatacenter(datacenter) => Some(format!("server.{datacenter}.{domain}")),
            Self::OfNode { node, datacenter } => {
                Some(format!("{node}.server.{datacenter}.{domain}"))
            }
        }
    }
}

/// Both sides of connections between servers.
#[derive(Clone, Debug)]
pub struct AgentTls {
    /// `None`: nothing is verified.
    roots: Option<Arc<RootCertStore>>,
    server: Arc<ServerConfig>,
    client: ClientConfig,
    own: Option<CertificateDer<'static>>,
    domain: Arc<str>,
}

impl AgentTls {
    /// Reads the files. `domain` is that of the servers' names; `protocols` are the accepted ALPN names.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the unusable file.
    pub fn read(files: &AgentFiles, domain: &str, protocols: &[&str]) -> Result<Self, TlsError> {
        let AgentFiles {
            certificate,
            key,
            policy,
        } = files;
        let roots = Arc::new(policy.roots()?);
        let (own, chain) = own_certificate(certificate, key)?;
        let mut server = restricted(&*server_config_of(own.clone())?, policy)?;
        let names = protocols.iter().map(|name| name.as_bytes().to_vec());
        server.alpn_protocols = names.collect();
        let client =
            ClientConfig::builder_with_provider(Arc::new(with_suites(&policy.cipher_suites)?))
                .with_protocol_versions(policy.versions())
                .map_err(TlsError::Library)?
                .dangerous()
                .with_custom_certificate_verifier(verifier(&roots, domain, None)?)
                .with_client_cert_resolver(own);
        Ok(Self {
            roots: Some(roots),
            server: Arc::new(server),
            client,
            own: chain.into_iter().next(),
            domain: domain.into(),
        })
    }

    /// Both sides without verification, for development: they have a certificate of their own with the names of this
    /// server, and accept every other one that has the names that are expected.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if a name is invalid, or the system provides no randomness.
    pub fn unverified(
        node: &str,
        datacenter: &str,
        domain: &str,
        protocols: &[&str],
        now: SystemTime,
    ) -> Result<Self, TlsError> {
        let own = ExpectedServer::OfDatacenter(datacenter);
        let by_node = ExpectedServer::OfNode { node, datacenter };
        let names = [own, by_node]
            .into_iter()
            .filter_map(|one| one.name(domain));
        let (chain, own) = self_made(names.collect(), now)?;
        let builder = || {
            ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .map_err(TlsError::Library)
        };
        let mut server = builder()?
            .with_client_cert_verifier(Arc::new(Unverified::new(domain, None)))
            .with_cert_resolver(own.clone());
        let names = protocols.iter().map(|name| name.as_bytes().to_vec());
        server.alpn_protocols = names.collect();
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Library)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified::new(domain, None)))
            .with_client_cert_resolver(own);
        Ok(Self {
            roots: None,
            server: Arc::new(server),
            client,
            own: chain.into_iter().next(),
            domain: domain.into(),
        })
    }

    /// The side that listens. It refuses clients without a certificate of the CA; [`Self::datacenters`] tells whether
    /// that is a server's.
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// The side that connects to a server and asks for one protocol.
    ///
    /// # Errors
    ///
    /// [`TlsError`], which only a defect causes.
    pub fn client(
        &self,
        server: ExpectedServer<'_>,
        protocol: &str,
    ) -> Result<Arc<ClientConfig>, TlsError> {
        let mut client = self.client.clone();
        let name = server.name(&self.domain);
        let verifier: Arc<dyn ServerCertVerifier> = match &self.roots {
            Some(roots) => verifier(roots, &self.domain, name)?,
            None => Arc::new(Unverified::new(&self.domain, name)),
        };
        client.dangerous().set_certificate_verifier(verifier);
        client.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Ok(Arc::new(client))
    }

    /// Whether this server's own certificate is one of the server that is expected.
    pub fn is_own(&self, server: ExpectedServer<'_>) -> bool {
        let Some((own, name)) = self.own.as_ref().zip(server.name(&self.domain)) else {
            return false;
        };
        let parsed = ParsedCertificate::try_from(own).ok();
        let both = parsed.zip(ServerName::try_from(name).ok());
        both.is_some_and(|(own, name)| verify_server_name(&own, &name).is_ok())
    }

    /// The datacenters of a verified server's certificate, in lower case. Empty: it is not a server's.
    pub fn datacenters(&self, certificate: &CertificateDer<'_>) -> Vec<String> {
        datacenters_of(certificate, &self.domain)
    }
}

type Chain = Vec<CertificateDer<'static>>;

fn own_certificate(
    certificate: &Path,
    key: &Path,
) -> Result<(Arc<SingleCertAndKey>, Chain), TlsError> {
    let (certificate, key) = (Source::file(certificate)?, Source::file(key)?);
    let (chain, private) = (certificate.certificates()?, key.private_key()?);
    let own = CertifiedKey::from_der(chain.clone(), private, &provider());
    let own = own.map_err(|source| bad_pair(certificate, key, source))?;
    Ok((Arc::new(SingleCertAndKey::from(own)), chain))
}

/// A certificate with a new key and these names.
fn self_made(
    names: Vec<String>,
    now: SystemTime,
) -> Result<(Chain, Arc<SingleCertAndKey>), TlsError> {
    let origin = "the certificate of a server in development mode";
    let failed = |error: IdentityError| TlsError::BadCertificate {
        origin: origin.to_owned(),
        reason: error.to_string(),
    };
    let authority = AgentAuthorityRequest {
        common_name: "development".to_owned(),
        uri: None,
        permitted_domains: Vec::new(),
        serial: 1,
        now,
        ttl: DEVELOPMENT,
    };
    let (authority, key) = generate_agent_authority(authority).map_err(failed)?;
    let request = AgentRequest {
        common_name: names.first().cloned().unwrap_or_default(),
        dns_names: names,
        ips: Vec::new(),
        handshakes: true,
        serial: 2,
        now,
        ttl: DEVELOPMENT,
    };
    let issued = issue_for_agent(&authority, &key.to_pem(), request);
    let (certificate, key) = issued.map_err(failed)?;
    let certificate = Source::text(&certificate, origin);
    let key = Source::text(&key.to_pem(), origin);
    let (chain, private) = (certificate.certificates()?, key.private_key()?);
    let own = CertifiedKey::from_der(chain.clone(), private, &provider());
    let own = own.map_err(|source| TlsError::BadCertificate {
        origin: origin.to_owned(),
        reason: source.to_string(),
    })?;
    Ok((chain, Arc::new(SingleCertAndKey::from(own))))
}

fn verifier(
    roots: &Arc<RootCertStore>,
    domain: &str,
    name: Option<String>,
) -> Result<Arc<Verifier>, TlsError> {
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider()).build();
    let usual = usual.map_err(|error| TlsError::BadCertificate {
        origin: "the CA of the servers".to_owned(),
        reason: error.to_string(),
    })?;
    Ok(Arc::new(Verifier {
        usual,
        domain: domain.to_owned(),
        name,
    }))
}

/// The datacenters in the names `server.<datacenter>.<domain>`.
fn datacenters_of(certificate: &CertificateDer<'_>, domain: &str) -> Vec<String> {
    let Ok(info) = CertificateInfo::from_der(certificate) else {
        return Vec::new();
    };
    let end = format!(".{}", domain.trim_end_matches('.').to_ascii_lowercase());
    let datacenters = info.dns_names.iter().filter_map(|name| {
        let name = name.to_ascii_lowercase();
        let datacenter = name.strip_prefix("server.")?.strip_suffix(&end)?;
        let is_label = !datacenter.is_empty() && !datacenter.contains(['.', '*']);
        is_label.then(|| datacenter.to_owned())
    });
    datacenters.collect()
}

/// Accepts servers by their name, whatever address was dialled.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    domain: String,
    /// `None`: any server.
    name: Option<String>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _dialled: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let not_valid = || Error::InvalidCertificate(CertificateError::NotValidForName);
        // The certificate of any server must have a datacenter.
        let datacenter = datacenters_of(end_entity, &self.domain).into_iter().next();
        let of_any = datacenter.ok_or_else(not_valid)?;
        let of_any = ExpectedServer::OfDatacenter(&of_any).name(&self.domain);
        let name = self.name.clone().or(of_any).unwrap_or_default();
        let name = ServerName::try_from(name).map_err(|_| not_valid())?;
        self.usual
            .verify_server_cert(end_entity, intermediates, &name, ocsp_response, now)
    }

    signatures_of!(usual);
}

/// Accepts certificates by their names, whoever has signed them.
#[derive(Debug)]
struct Unverified {
    signatures: AcceptAny,
    domain: String,
    /// `None`: any server.
    name: Option<String>,
}

impl Unverified {
    fn new(domain: &str, name: Option<String>) -> Self {
        Self {
            signatures: AcceptAny::new(provider()),
            domain: domain.to_owned(),
            name,
        }
    }
}

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _dialled: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let not_valid = || Error::InvalidCertificate(CertificateError::NotValidForName);
        if datacenters_of(end_entity, &self.domain).is_empty() {
            return Err(not_valid());
        }
        if let Some(name) = &self.name {
            let name = ServerName::try_from(name.as_str()).map_err(|_| not_valid())?;
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, &name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    signatures_of!(signatures);
}

impl ClientCertVerifier for Unverified {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    signatures_of!(signatures);
}
