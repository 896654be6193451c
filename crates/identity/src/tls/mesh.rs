//! TLS between proxies of a mesh: both sides present certificates, and their URIs say who they are. Server names are
//! for routing and are never verified.
//!
//! It reads no files. A session is resumed only between the same two configurations: both keep what is needed for it, a
//! server the key of its tickets and a client its tickets. Whoever gets another certificate or other authorities gets
//! another configuration, and makes a full handshake with everybody. Who resumes a session is known from it; the library
//! does not verify the certificates again, [`MeshServer::verify_resumed`] and [`MeshClient::verify_resumed`] do.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, Tls12Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme, SupportedProtocolVersion,
};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::TlsError;
use super::insecure::AcceptAny;
use super::pem::Source;
use super::{bad_pair, provider, trust};

/// How many sessions a client keeps for others to resume: connections that are made at the same time need one each.
const SESSIONS: usize = 8;

/// TLS 1.2.
static ONLY_OLDER: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];

/// A certificate with its key, shared by all configurations that present it.
#[derive(Clone, Debug)]
pub struct MeshCertificate(Arc<CertifiedKey>);

impl MeshCertificate {
    /// Parses PEM texts. `origin` is their name in errors.
    ///
    /// # Errors
    ///
    /// [`TlsError`] when one is unusable, or they do not belong together.
    pub fn parse(chain: &str, key: &str, origin: &str) -> Result<Self, TlsError> {
        let (chain, key) = (Source::text(chain, origin), Source::text(key, origin));
        let own = CertifiedKey::from_der(chain.certificates()?, key.private_key()?, &provider());
        match own {
            Ok(own) => Ok(Self(Arc::new(own))),
            Err(source) => Err(bad_pair(chain, key, source)),
        }
    }

    /// The first certificate, DER.
    #[must_use]
    pub fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.0.cert.first()
    }
}

/// Whose certificates are accepted, shared by all configurations.
#[derive(Clone, Debug)]
pub struct MeshTrust(Arc<Authorities>);

#[derive(Debug)]
enum Authorities {
    /// These sign everybody's certificates.
    Of(Roots),
    /// By trust domain: these sign the certificates with URIs of that domain, and no others.
    OfDomains(BTreeMap<String, Roots>),
}

#[derive(Debug)]
struct Roots {
    store: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl Roots {
    fn parse(pem: &str, origin: &str) -> Result<Self, TlsError> {
        let mut store = RootCertStore::empty();
        let certificates = Source::text(pem, origin).certificates()?;
        trust::add(&mut store, certificates, origin)?;
        let store = Arc::new(store);
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&store), provider())
            .clear_root_hint_subjects()
            .build();
        let clients = clients.map_err(|error| TlsError::BadCertificate {
            origin: origin.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Self { store, clients })
    }
}

impl MeshTrust {
    /// Authorities for every certificate, PEM. `origin` is their name in errors.
    ///
    /// # Errors
    ///
    /// [`TlsError`] when they are unusable.
    pub fn authorities(pem: &str, origin: &str) -> Result<Self, TlsError> {
        let roots = Roots::parse(pem, origin)?;
        Ok(Self(Arc::new(Authorities::Of(roots))))
    }

    /// For each trust domain its authorities, PEM.
    ///
    /// # Errors
    ///
    /// [`TlsError`] when they are unusable.
    pub fn domains(domains: &BTreeMap<String, String>, origin: &str) -> Result<Self, TlsError> {
        let roots = domains.iter().map(|(domain, pem)| {
            let origin = format!("{origin}, trust domain {domain}");
            Ok((domain.clone(), Roots::parse(pem, &origin)?))
        });
        let roots = roots.collect::<Result<_, TlsError>>()?;
        Ok(Self(Arc::new(Authorities::OfDomains(roots))))
    }

    /// The authorities for a certificate with these URIs.
    fn roots(&self, uris: &[String]) -> Result<&Roots, Error> {
        match &*self.0 {
            Authorities::Of(roots) => Ok(roots),
            Authorities::OfDomains(domains) => {
                let domain = uris.first().and_then(|uri| trust_domain(uri));
                let roots = domain.and_then(|domain| domains.get(domain));
                roots.ok_or_else(|| Error::InvalidCertificate(CertificateError::UnknownIssuer))
            }
        }
    }
}

fn trust_domain(uri: &str) -> Option<&str> {
    let rest = uri.strip_prefix("spiffe://")?;
    rest.split('/').next()
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct MeshServer {
    config: Arc<ServerConfig>,
    verifier: Arc<Verifier>,
}

impl MeshServer {
    /// For the library.
    #[must_use]
    pub fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    /// Verifies the certificates of a client that has resumed a session; it has none if it needs none.
    ///
    /// # Errors
    ///
    /// The library's [`Error`], as in a full handshake.
    pub fn verify_resumed(&self, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        let Some((leaf, others)) = chain.split_first() else {
            return Ok(());
        };
        let now = now(&*self.config.time_provider)?;
        let verified = self.verifier.verify_client_cert(leaf, others, now);
        verified.map(drop)
    }
}

/// The configuration of a client.
#[derive(Clone, Debug)]
pub struct MeshClient {
    config: Arc<ClientConfig>,
    verifier: Arc<Verifier>,
}

impl MeshClient {
    /// For the library.
    #[must_use]
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// Verifies the certificates of a server with which a session was resumed.
    ///
    /// # Errors
    ///
    /// The library's [`Error`], as in a full handshake.
    pub fn verify_resumed(&self, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        let (leaf, others) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        let now = now(&*self.config.time_provider)?;
        self.verifier.verify_server(leaf, others, now)
    }
}

fn now(time: &dyn TimeProvider) -> Result<UnixTime, Error> {
    time.current_time().ok_or(Error::FailedToGetCurrentTime)
}

/// One side of TLS between proxies.
#[derive(Clone, Debug, Default)]
pub struct MeshTls {
    /// The certificate to present. A server needs one.
    pub certificate: Option<MeshCertificate>,
    /// Whose certificates are accepted; `None` accepts any.
    pub trust: Option<MeshTrust>,
    /// The other side needs one of these URIs; any if it is empty.
    pub uris: Vec<String>,
    /// Whether TLS 1.2 is refused.
    pub only_newest: bool,
    /// Whether TLS 1.3 is refused.
    pub only_older: bool,
    /// OpenSSL's names of the accepted TLS 1.2 cipher suites; empty accepts all.
    pub cipher_suites: Vec<String>,
    /// ALPN protocols, the preferred one first.
    pub alpn: Vec<String>,
    /// The time at which certificates have to be valid; that of the system by default.
    pub time: Option<Arc<dyn TimeProvider>>,
}

impl MeshTls {
    /// A server's configuration. With `require_client_certificate`, clients without a certificate are refused; without
    /// it, a certificate is verified if there is one.
    ///
    /// # Errors
    ///
    /// [`TlsError`] when the certificate is missing, a cipher suite is not supported, or there are no random numbers for
    /// the key of tickets.
    pub fn server(&self, require_client_certificate: bool) -> Result<MeshServer, TlsError> {
        let Some(certificate) = &self.certificate else {
            return Err(TlsError::NoCertificate {
                origin: "a listener with TLS".to_owned(),
            });
        };
        let builder = ServerConfig::builder_with_provider(self.provider()?)
            .with_protocol_versions(self.versions())
            .map_err(TlsError::Library)?;
        let verifier = Arc::new(self.verifier(require_client_certificate));
        let builder = if require_client_certificate || self.trust.is_some() {
            builder.with_client_cert_verifier(Arc::clone(&verifier) as _)
        } else {
            builder.with_no_client_auth()
        };
        let own = SingleCertAndKey::from(Arc::clone(&certificate.0));
        let mut config = builder.with_cert_resolver(Arc::new(own));
        config.alpn_protocols = self.alpn();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Ticketer::new().map_err(TlsError::Library)?;
        config.send_tls13_tickets = 1;
        if let Some(time) = &self.time {
            config.time_provider = Arc::clone(time);
        }
        Ok(MeshServer {
            config: Arc::new(config),
            verifier,
        })
    }

    /// A client's configuration, which sends its server name if `with_sni`.
    ///
    /// # Errors
    ///
    /// [`TlsError`] when a cipher suite is not supported.
    pub fn client(&self, with_sni: bool) -> Result<MeshClient, TlsError> {
        let verifier = Arc::new(self.verifier(true));
        let builder = ClientConfig::builder_with_provider(self.provider()?)
            .with_protocol_versions(self.versions())
            .map_err(TlsError::Library)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as _);
        let mut config = match &self.certificate {
            Some(own) => {
                let own = SingleCertAndKey::from(Arc::clone(&own.0));
                builder.with_client_cert_resolver(Arc::new(own))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn();
        config.resumption =
            Resumption::in_memory_sessions(SESSIONS).tls12_resumption(Tls12Resumption::Disabled);
        config.enable_sni = with_sni;
        if let Some(time) = &self.time {
            config.time_provider = Arc::clone(time);
        }
        Ok(MeshClient {
            config: Arc::new(config),
            verifier,
        })
    }

    fn verifier(&self, mandatory: bool) -> Verifier {
        Verifier {
            signatures: AcceptAny::new(provider()),
            trust: self.trust.clone(),
            uris: self.uris.clone(),
            mandatory,
        }
    }

    fn alpn(&self) -> Vec<Vec<u8>> {
        let names = self.alpn.iter();
        names.map(|name| name.clone().into_bytes()).collect()
    }

    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        match (self.only_newest, self.only_older) {
            (true, _) => super::ONLY_NEWEST,
            (false, true) => ONLY_OLDER,
            (false, false) => rustls::ALL_VERSIONS,
        }
    }

    fn provider(&self) -> Result<Arc<CryptoProvider>, TlsError> {
        if self.cipher_suites.is_empty() {
            return Ok(provider());
        }
        let names: Vec<String> = self.cipher_suites.iter().map(|name| iana(name)).collect();
        Ok(Arc::new(super::with_suites(&names)?))
    }
}

/// The registered name of a cipher suite of which OpenSSL's name is given, such as `ECDHE-RSA-AES128-GCM-SHA256`.
fn iana(name: &str) -> String {
    let name = name
        .replace("AES128", "AES_128")
        .replace("AES256", "AES_256");
    let (exchange, cipher) = ["ECDHE-ECDSA-", "ECDHE-RSA-"]
        .iter()
        .find_map(|exchange| Some((*exchange, name.strip_prefix(exchange)?)))
        .unwrap_or(("", &name));
    format!("TLS-{exchange}WITH-{cipher}").replace('-', "_")
}

/// The URIs of a certificate. Empty if it cannot be parsed.
#[must_use]
pub fn certificate_uris(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let extensions = parsed.extensions().iter();
    let names = extensions.filter_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    let uris = names.flatten().filter_map(|name| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    });
    uris.collect()
}

/// Verifies the other side's certificate by its authority and its URI.
#[derive(Debug)]
struct Verifier {
    /// Verifies signatures of handshakes; its verdict on certificates is not used.
    signatures: AcceptAny,
    trust: Option<MeshTrust>,
    uris: Vec<String>,
    mandatory: bool,
}

impl Verifier {
    /// The URIs of a certificate. A certificate with several of them names nobody.
    fn names(&self, certificate: &CertificateDer<'_>) -> Result<Vec<String>, Error> {
        let uris = certificate_uris(certificate);
        let several = uris.len() > 1 && uris.iter().any(|uri| uri.starts_with("spiffe://"));
        let expected = self.uris.is_empty() || uris.iter().any(|uri| self.uris.contains(uri));
        match expected && !several {
            true => Ok(uris),
            false => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
        }
    }

    fn verify_server(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let uris = self.names(end_entity)?;
        if let Some(trust) = &self.trust {
            let roots = trust.roots(&uris)?;
            verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(end_entity)?,
                &roots.store,
                intermediates,
                now,
                provider().signature_verification_algorithms.all,
            )?;
        }
        Ok(())
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _dialled: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.verify_server(end_entity, intermediates, now);
        verified.map(|()| ServerCertVerified::assertion())
    }

    signatures_of!(signatures);
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let uris = self.names(end_entity)?;
        match &self.trust {
            Some(trust) => {
                let roots = trust.roots(&uris)?;
                let clients = &roots.clients;
                clients.verify_client_cert(end_entity, intermediates, now)
            }
            None => Ok(ClientCertVerified::assertion()),
        }
    }

    signatures_of!(signatures);
}
