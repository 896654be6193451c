//! Servers whose own certificate is configured as a root, though it is a CA certificate.

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use time::OffsetDateTime;

use super::*;

const NAME: &str = "server.dc1.consul";
const ADDRESS: &str = "127.0.0.1";

/// A self-signed certificate, as created by `openssl req -x509`.
struct Own {
    pem: String,
    key: KeyPair,
    params: CertificateParams,
}

fn params() -> CertificateParams {
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let address = SanType::IpAddress(ADDRESS.parse().unwrap());
    params.subject_alt_names.push(address);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_before = OffsetDateTime::now_utc() - HOUR;
    params.not_after = OffsetDateTime::now_utc() + HOUR;
    params
}

fn own_with(change: impl FnOnce(&mut CertificateParams)) -> Own {
    let mut params = params();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    Own { pem, key, params }
}

fn own() -> Own {
    own_with(|_| {})
}

impl Own {
    fn serves(&self) -> Arc<ServerConfig> {
        server_config(&self.pem, &self.key.serialize_pem(), None).unwrap()
    }

    /// Result of a handshake with this server when `ca` is trusted.
    async fn handshake_with(&self, ca: &Path, name: &str) -> Result<(), String> {
        let client = ClientTls {
            ca: Some(ca.to_owned()),
            ..ClientTls::default()
        };
        handshake(&client, self.serves(), name).await.map(drop)
    }

    /// Result of a handshake with its own certificate as the only root.
    async fn handshake(&self, name: &str) -> Result<(), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &self.pem).unwrap();
        self.handshake_with(file.path(), name).await
    }
}

#[tokio::test]
async fn a_server_may_present_the_configured_certificate_itself() {
    let own = own();
    for name in [NAME, ADDRESS] {
        own.handshake(name).await.unwrap();
    }
    // Also with extended key usages, and in a directory with other files.
    for purpose in [
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::Any,
    ] {
        let own = own_with(|params| params.extended_key_usages = vec![purpose]);
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a.pem"), root().cert_pem()).unwrap();
        fs::write(directory.path().join("b.pem"), &own.pem).unwrap();
        own.handshake_with(directory.path(), NAME).await.unwrap();
    }
    // Not only for CA certificates: other certificates are treated alike.
    own_with(|params| params.is_ca = IsCa::ExplicitNoCa)
        .handshake(NAME)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_tls_1_2_server_proves_that_it_has_the_key_as_well() {
    let own = own();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &own.pem).unwrap();
    let client = ClientTls {
        ca: Some(file.path().to_owned()),
        ..ClientTls::default()
    };
    let serving = |key: &KeyPair, version| {
        let certificate = Source::text(&own.pem, "test").certificates().unwrap();
        let key = Source::text(&key.serialize_pem(), "test");
        let signer = provider().key_provider;
        let key = signer.load_private_key(key.private_key().unwrap()).unwrap();
        // Unlike the usual constructor, this one accepts a mismatched key.
        let shown = rustls::sign::CertifiedKey::new(certificate, key);
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(shown)));
        Arc::new(config)
    };
    let stranger = KeyPair::generate().unwrap();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let right = serving(&own.key, version);
        handshake(&client, right, NAME).await.unwrap();
        let wrong = serving(&stranger, version);
        let error = handshake(&client, wrong, NAME).await.unwrap_err();
        assert!(error.contains("BadSignature"), "{error}");
    }
}

#[tokio::test]
async fn name_time_and_purpose_are_verified_as_well() {
    for name in ["server.dc2.consul", "127.0.0.2"] {
        let error = own().handshake(name).await.unwrap_err();
        assert!(error.contains("not valid for name"), "{error}");
    }
    let now = OffsetDateTime::now_utc();
    let expired = own_with(|params| params.not_after = now - HOUR / 2);
    let error = expired.handshake(NAME).await.unwrap_err();
    assert!(error.contains("expired"), "{error}");
    let early = own_with(|params| params.not_before = now + HOUR / 2);
    let error = early.handshake(NAME).await.unwrap_err();
    assert!(error.contains("not valid yet"), "{error}");
    let client = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let error = own_with(|params| params.extended_key_usages = client)
        .handshake(NAME)
        .await
        .unwrap_err();
    assert!(error.contains("InvalidPurpose"), "{error}");
}

#[tokio::test]
async fn similar_certificates_are_refused() {
    let (own, other) = (own(), own());
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    // The same names, but another key.
    fs::write(&ca, &other.pem).unwrap();
    let error = own.handshake_with(&ca, NAME).await.unwrap_err();
    assert!(error.contains("CaUsedAsEndEntity"), "{error}");
    // The same key, signed again: different bytes.
    let mut params = params();
    params.not_after += HOUR;
    fs::write(&ca, params.self_signed(&own.key).unwrap().pem()).unwrap();
    let error = own.handshake_with(&ca, NAME).await.unwrap_err();
    assert!(error.contains("CaUsedAsEndEntity"), "{error}");
    // A CA that the configured certificate has signed is not itself configured.
    fs::write(&ca, &other.pem).unwrap();
    let issuer = Issuer::new(other.params, other.key);
    let key = KeyPair::generate().unwrap();
    let pem = self::params().signed_by(&key, &issuer).unwrap().pem();
    let params = self::params();
    let below = Own { pem, key, params };
    let error = below.handshake_with(&ca, NAME).await.unwrap_err();
    assert!(error.contains("CaUsedAsEndEntity"), "{error}");
}

#[tokio::test]
async fn certificates_that_it_signed_are_trusted_as_before() {
    let own = own();
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    fs::write(&ca, &own.pem).unwrap();
    let mut params = params();
    params.is_ca = IsCa::ExplicitNoCa;
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(own.params, own.key);
    let pem = params.signed_by(&key, &issuer).unwrap().pem();
    let leaf = Own { pem, key, params };
    leaf.handshake_with(&ca, NAME).await.unwrap();
    let error = leaf
        .handshake_with(&ca, "server.dc2.consul")
        .await
        .unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
}
