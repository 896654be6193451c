//! Handshakes over a pipe, and errors for unusable files.

mod own;

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::ProtocolVersion;
use rustls::pki_types::pem::PemObject;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::{Authority, IssuedCertificate, LeafRequest, RootRequest};

const HOUR: Duration = Duration::from_secs(3600);

fn root() -> Authority {
    Authority::generate_root(RootRequest {
        common_name: "test root".to_owned(),
        uri: "spiffe://test.consul".to_owned(),
        serial: 1,
        now: SystemTime::now() - HOUR,
        ttl: 24 * HOUR,
    })
    .unwrap()
}

fn leaf(root: &Authority) -> IssuedCertificate {
    leaf_from(root, SystemTime::now())
}

/// A leaf that is valid for an hour from `now`.
fn leaf_from(root: &Authority, now: SystemTime) -> IssuedCertificate {
    root.issue(LeafRequest {
        uris: vec!["spiffe://test.consul/agent/server/dc/dc1".to_owned()],
        dns_names: vec!["server.dc1.consul".to_owned()],
        ips: vec!["127.0.0.1".parse().unwrap()],
        serial: 2,
        now,
        ttl: HOUR,
    })
    .unwrap()
}

/// A directory with `ca.pem`, `client.pem` and `client-key.pem` of this root.
fn files(root: &Authority) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let client = leaf(root);
    for (name, text) in [
        ("ca.pem", root.cert_pem()),
        ("client.pem", &client.cert_pem),
        ("client-key.pem", &client.key.to_pem()),
    ] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn trusting(directory: &TempDir) -> ClientTls {
    ClientTls {
        ca: Some(directory.path().join("ca.pem")),
        alpn_h2: true,
        ..ClientTls::default()
    }
}

fn server(leaf: &IssuedCertificate) -> Arc<ServerConfig> {
    server_config(&leaf.cert_pem, &leaf.key.to_pem(), None).unwrap()
}

/// The client's connection state after one byte in each direction, or the handshake's error.
async fn handshake(
    client: &ClientTls,
    server: Arc<ServerConfig>,
    name: &str,
) -> Result<(Option<Vec<u8>>, Option<ProtocolVersion>), String> {
    let connector = TlsConnector::from(client_config(client).unwrap());
    let (near, far) = tokio::io::duplex(16 * 1024);
    let serve = async {
        let mut stream = TlsAcceptor::from(server).accept(far).await?;
        let byte = stream.read_u8().await?;
        stream.write_u8(byte + 1).await?;
        stream.flush().await
    };
    let connect = async {
        let name = server_name(name).unwrap();
        let mut stream = connector.connect(name, near).await?;
        stream.write_u8(41).await?;
        stream.flush().await?;
        let answer = stream.read_u8().await?;
        assert_eq!(answer, 42);
        let (_, connection) = stream.get_ref();
        let alpn = connection.alpn_protocol().map(<[u8]>::to_vec);
        Ok::<_, std::io::Error>((alpn, connection.protocol_version()))
    };
    let (served, connected) = tokio::join!(serve, connect);
    let known = connected.map_err(|error| error.to_string())?;
    served.map_err(|error| error.to_string())?;
    Ok(known)
}

#[tokio::test]
async fn a_server_of_the_named_ca_is_trusted_by_name_and_by_address() {
    let root = root();
    let directory = files(&root);
    let server = server(&leaf(&root));
    for name in ["server.dc1.consul", "127.0.0.1"] {
        let (alpn, version) = handshake(&trusting(&directory), Arc::clone(&server), name)
            .await
            .unwrap();
        assert_eq!(alpn.as_deref(), Some(H2));
        assert_eq!(version, Some(ProtocolVersion::TLSv1_3));
    }
}

#[tokio::test]
async fn a_wrong_ca_name_or_time_fails_the_handshake() {
    let root = root();
    let directory = files(&root);
    let client = trusting(&directory);
    let good = server(&leaf(&root));
    for name in ["server.dc2.consul", "127.0.0.2"] {
        let error = handshake(&client, Arc::clone(&good), name)
            .await
            .unwrap_err();
        assert!(error.contains("not valid for name"), "{error}");
    }
    let other = self::root();
    let error = handshake(&client, server(&leaf(&other)), "127.0.0.1")
        .await
        .unwrap_err();
    // Both roots have the same subject, so the signature must be the reason.
    assert!(error.contains("invalid peer certificate"), "{error}");
    let old = leaf_from(&root, SystemTime::now() - 2 * HOUR);
    let error = handshake(&client, server(&old), "127.0.0.1")
        .await
        .unwrap_err();
    assert!(error.contains("expired"), "{error}");
}

#[test]
fn presented_certificates_are_verified_without_a_connection() {
    let (root, other) = (root(), root());
    let now = SystemTime::now();
    let shown = leaf(&root).cert_pem;
    let chain = [CertificateDer::from_pem_slice(shown.as_bytes()).unwrap()];
    let verified = |roots: &Authority, name: &str, now| {
        let verified = verify_server(&chain, roots.cert_pem(), "the bundle", name, now);
        verified.map_err(|error| error.to_string())
    };
    assert_eq!(verified(&root, "server.dc1.consul", now), Ok(()));
    let refused = |roots: &Authority, name: &str, now| verified(roots, name, now).unwrap_err();
    let error = refused(&other, "server.dc1.consul", now);
    assert!(error.contains("invalid peer certificate"), "{error}");
    let error = refused(&root, "other.dc1.consul", now);
    assert!(error.contains("other.dc1.consul"), "{error}");
    let error = refused(&root, "server.dc1.consul", now + 2 * HOUR);
    assert!(error.contains("expired"), "{error}");
    let error = verify_server(&[], root.cert_pem(), "the bundle", "a", now).unwrap_err();
    assert!(matches!(error, TlsError::Refused(_)), "{error}");
    let error = verify_server(&chain, "none", "the bundle", "a", now).unwrap_err();
    assert!(error.to_string().contains("the bundle"), "{error}");
}

#[tokio::test]
async fn skipping_verification_accepts_any_certificate() {
    let directory = files(&root());
    let mut client = trusting(&directory);
    client.insecure_skip_verify = true;
    let other = server(&leaf(&root()));
    handshake(&client, other, "whatever.example").await.unwrap();
}

#[tokio::test]
async fn a_server_without_alpn_is_accepted() {
    let root = root();
    let directory = files(&root);
    let mut plain = ServerConfig::clone(&server(&leaf(&root)));
    plain.alpn_protocols.clear();
    let known = handshake(&trusting(&directory), Arc::new(plain), "127.0.0.1").await;
    assert_eq!(known.unwrap().0, None);
}

#[tokio::test]
async fn a_server_with_a_client_ca_requires_a_certificate() {
    let root = root();
    let directory = files(&root);
    let leaf = leaf(&root);
    let server = server_config(&leaf.cert_pem, &leaf.key.to_pem(), Some(root.cert_pem())).unwrap();
    let mut client = trusting(&directory);
    let refused = handshake(&client, Arc::clone(&server), "127.0.0.1").await;
    assert!(refused.is_err());
    let (certificate, key) = ("client.pem", "client-key.pem");
    client.client_cert = Some((
        directory.path().join(certificate),
        directory.path().join(key),
    ));
    handshake(&client, server, "127.0.0.1").await.unwrap();
}

#[tokio::test]
async fn a_secret_mounted_by_kubernetes_is_a_ca_directory() {
    let root = root();
    let mount = tempfile::tempdir().unwrap();
    let version = mount.path().join("..2026_08_21_00_00_00.1");
    fs::create_dir(&version).unwrap();
    fs::write(version.join("ca.crt"), root.cert_pem()).unwrap();
    fs::write(version.join("tls.key"), root.key_pem()).unwrap();
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, mount.path().join(name)).unwrap();
    };
    link("..2026_08_21_00_00_00.1", "..data");
    link("..data/ca.crt", "ca.crt");
    link("..data/tls.key", "tls.key");
    // A link to its own directory must not cause an infinite loop.
    link(".", "here");
    let client = ClientTls {
        ca: Some(mount.path().to_owned()),
        ..ClientTls::default()
    };
    let server = server(&leaf(&root));
    handshake(&client, server, "server.dc1.consul")
        .await
        .unwrap();
}

#[test]
fn ca_directories_are_read_recursively() {
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("more");
    fs::create_dir(&inside).unwrap();
    fs::write(directory.path().join("a.pem"), root().cert_pem()).unwrap();
    let two = format!("{}{}", root().cert_pem(), root().cert_pem());
    fs::write(inside.join("b.pem"), two).unwrap();
    assert_eq!(trust::from_path(directory.path()).unwrap().store.len(), 3);
}

/// The error for this CA path, which must contain the path.
fn refused(ca: &Path) -> String {
    let options = ClientTls {
        ca: Some(ca.to_owned()),
        ..ClientTls::default()
    };
    let error = client_config(&options).unwrap_err().to_string();
    assert!(error.contains(&*ca.to_string_lossy()), "{error}");
    error
}

#[test]
fn errors_name_the_file_and_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    let error = refused(&file);
    assert!(error.contains("check that it exists"), "{error}");
    assert!(refused(directory.path()).contains("holds no certificate"));
    fs::write(&file, "not PEM").unwrap();
    assert!(refused(&file).contains("holds no certificate"));
    assert!(refused(directory.path()).contains("holds no certificate"));
    fs::write(&file, "-----BEGIN CERTIFICATE-----\n!!!\n").unwrap();
    assert!(refused(&file).contains("is not PEM"));
    let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(&file, junk).unwrap();
    assert!(refused(&file).contains("cannot be trusted"));
}

#[test]
fn a_client_certificate_requires_its_own_key() {
    let (one, other) = (files(&root()), files(&root()));
    let certificate = one.path().join("client.pem");
    let check = |key: PathBuf, expected: &str| {
        let mut options = trusting(&one);
        options.client_cert = Some((certificate.clone(), key.clone()));
        let error = client_config(&options).unwrap_err().to_string();
        assert!(error.contains(&*key.to_string_lossy()), "{error}");
        assert!(error.contains(expected), "{error}");
    };
    check(
        other.path().join("client-key.pem"),
        "cannot be used together",
    );
    check(one.path().join("client.pem"), "no usable private key");
    check(one.path().join("missing.pem"), "check that it exists");
}

#[test]
fn errors_name_the_unusable_server_text() {
    let leaf = leaf(&root());
    let key = leaf.key.to_pem();
    let error = |cert: &str, key: &str, ca| server_config(cert, key, ca).unwrap_err().to_string();
    assert!(error("", &key, None).contains("the server certificate holds no certificate"));
    assert!(error(&leaf.cert_pem, "", None).contains("the server key holds no usable"));
    assert!(error(&leaf.cert_pem, &key, Some("")).contains("the client CA holds no certificate"));
}

#[test]
fn server_names_are_dns_names_or_addresses() {
    for name in ["server.dc1.consul", "10.0.0.1", "::1"] {
        server_name(name).unwrap();
    }
    let error = server_name("a b").unwrap_err().to_string();
    assert_eq!(
        error,
        "\"a b\" is not a TLS server name: give a DNS name or an IP address"
    );
}
