//! TLS between programs that have the same sealing key, without certificates.
//!
//! Both sides derive the same Ed25519 key from the sealing key, present it as a raw public key (RFC
//! 7250) and accept no other one. TLS 1.3 only.

use std::sync::Arc;

use aws_lc_rs::signature::Ed25519KeyPair;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, SignatureScheme,
};

use super::{TlsError, provider};
use crate::{IdentityError, SealingKey};

/// What the key is derived for.
const PURPOSE: &[u8] = b"TLS between servers";

/// Both sides of a connection.
#[derive(Clone, Debug)]
pub struct SharedKeyTls {
    /// For the side that connects. The server name is not verified: only the key counts.
    pub client: Arc<ClientConfig>,
    /// For the side that listens. Clients without the key are refused.
    pub server: Arc<ServerConfig>,
}

/// Configurations for connections between programs with this key.
///
/// `protocol` is negotiated by ALPN: programs with different protocols refuse each other.
///
/// # Errors
///
/// [`TlsError::Library`] with the TLS library's error, which only a defect causes.
pub fn shared_key(key: &SealingKey, protocol: &str) -> Result<SharedKeyTls, TlsError> {
    let failed = |_: IdentityError| Error::General("the key cannot be derived".to_owned());
    let rejected = |source: Error| TlsError::Library(source);
    let provider = provider();
    let seed = key.derive(PURPOSE).map_err(failed).map_err(rejected)?;
    let certified = certified(&provider, &seed).map_err(rejected)?;
    let certified = Arc::new(certified);
    let verifier = Arc::new(SameKey {
        public: certified.cert[0].clone(),
        provider: Arc::clone(&provider),
    });
    let protocols = vec![protocol.as_bytes().to_vec()];
    let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(rejected)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
            Arc::clone(&certified),
        )));
    client.alpn_protocols.clone_from(&protocols);
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(rejected)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
    server.alpn_protocols = protocols;
    Ok(SharedKeyTls {
        client: Arc::new(client),
        server: Arc::new(server),
    })
}

fn certified(provider: &CryptoProvider, seed: &[u8]) -> Result<CertifiedKey, Error> {
    let unusable = || Error::General("the derived key is not usable".to_owned());
    let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| unusable())?;
    let document = pair.to_pkcs8().map_err(|_| unusable())?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(document.as_ref().to_vec()));
    let signing = provider.key_provider.load_private_key(private)?;
    let public = signing.public_key().ok_or_else(unusable)?;
    let public = CertificateDer::from(public.as_ref().to_vec());
    Ok(CertifiedKey::new(vec![public], signing))
}

/// Accepts the own public key and nothing else.
#[derive(Debug)]
struct SameKey {
    public: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl SameKey {
    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        if *presented == self.public {
            Ok(())
        } else {
            let refused = CertificateError::ApplicationVerificationFailure;
            Err(Error::InvalidCertificate(refused))
        }
    }
}

/// What verifiers of servers and of clients have in common: TLS 1.3 with a raw Ed25519 key.
macro_rules! raw_ed25519 {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for SameKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    raw_ed25519!();
}

impl ClientCertVerifier for SameKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    raw_ed25519!();
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConnection, ServerConnection};

    use super::*;

    /// A handshake in memory. Returns the first error.
    fn handshake(client: &SharedKeyTls, server: &SharedKeyTls) -> Result<(), Error> {
        let name = ServerName::try_from("legate").unwrap();
        let mut client = ClientConnection::new(Arc::clone(&client.client), name).unwrap();
        let mut server = ServerConnection::new(Arc::clone(&server.server)).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &*bytes).unwrap();
            server.process_new_packets()?;
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &*bytes).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn only_the_same_key_and_protocol_are_accepted() {
        let key = SealingKey::generate().unwrap();
        let same = SealingKey::from_text(&key.to_text()).unwrap();
        let other = SealingKey::generate().unwrap();
        let [one, two, foreign] =
            [&key, &same, &other].map(|key| shared_key(key, "protocol/1").unwrap());
        handshake(&one, &two).unwrap();
        handshake(&two, &one).unwrap();
        assert!(matches!(
            handshake(&one, &foreign).unwrap_err(),
            Error::InvalidCertificate(_)
        ));
        assert!(handshake(&foreign, &one).is_err());
        let newer = shared_key(&key, "protocol/2").unwrap();
        assert!(handshake(&newer, &one).is_err());
        // A client that accepts any server, and does not have the key.
        let mut reckless = ClientConfig::clone(&foreign.client);
        reckless
            .dangerous()
            .set_certificate_verifier(Arc::new(SameKey {
                public: one_public(&key),
                provider: provider(),
            }));
        let reckless = SharedKeyTls {
            client: Arc::new(reckless),
            ..foreign
        };
        assert!(matches!(
            handshake(&reckless, &one).unwrap_err(),
            Error::InvalidCertificate(_)
        ));
    }

    fn one_public(key: &SealingKey) -> CertificateDer<'static> {
        let seed = key.derive(PURPOSE).unwrap();
        certified(&provider(), &seed).unwrap().cert[0].clone()
    }
}
