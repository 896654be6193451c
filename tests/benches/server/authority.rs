//! What concerns certificates: signing for those who ask by gRPC, and another root.
//!
//! Legate has no request that rotates its root, so that a backup with another root is restored
//! instead, which replaces every row of the store: its figures hold that work too.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use http::Method;
use legate_api::connectca::SignRequest;
use legate_api::connectca::connect_ca_service_client::ConnectCaServiceClient;
use legate_identity::{Authority, RootRequest};
use legate_model::{CaRoot, Secret};
use legate_runtime::Scope;
use legate_store::{CaState, Command, Store, StoreConfig};
use legate_tests::client;
use rcgen::string::Ia5String;
use rcgen::{CertificateParams, KeyPair, SanType};
use serde_json::{Value, json};
use tonic::transport::Endpoint;

use crate::catalog;
use crate::servers::{Kind, Server};

/// How long a backup or the change of a root may take.
const LIMIT: Duration = Duration::from_secs(120);

const SNAPSHOT: &str = "/v1/snapshot";

/// How long the new root is valid.
const VALID: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Processor milliseconds of a server for one certificate that it signs on request.
pub(crate) async fn signature(server: &Server, times: u32) -> Option<f64> {
    let roots = server.get("/v1/connect/ca/roots").await;
    let trust_domain = roots["TrustDomain"].as_str()?;
    let service = catalog::service(0);
    let uri = format!("spiffe://{trust_domain}/ns/default/dc/dc1/svc/{service}");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(uri).ok()?)];
    let key = KeyPair::generate().expect("a key");
    let csr = params.serialize_request(&key).expect("a request");
    let csr = csr.pem().expect("PEM");
    let address = format!("http://{}", server.grpc());
    let endpoint = Endpoint::from_shared(address).expect("an address");
    let channel = endpoint.connect().await.expect("a connection");
    let mut client = ConnectCaServiceClient::new(channel);
    let before = server.running.processor_time();
    for _ in 0..times {
        let csr = csr.clone();
        let signed = client.sign(SignRequest { csr }).await;
        signed.expect("a certificate");
    }
    Some((server.running.processor_time() - before) / f64::from(times))
}

/// A change of the root that is ready to be made.
pub(crate) struct Rotation {
    method: Method,
    path: &'static str,
    body: Bytes,
}

impl Rotation {
    pub(crate) async fn prepare(server: &Server) -> Self {
        let roots = server.get("/v1/connect/ca/roots").await;
        let trust_domain = roots["TrustDomain"].as_str().expect("a trust domain");
        let root = Authority::generate_root(RootRequest {
            common_name: "another root".to_owned(),
            uri: format!("spiffe://{trust_domain}"),
            serial: 1_000,
            now: SystemTime::now(),
            ttl: VALID,
        });
        let root = root.expect("a root");
        match server.kind {
            Kind::Legate => Self {
                method: Method::PUT,
                path: SNAPSHOT,
                body: backup_with(server, &root).await,
            },
            Kind::Consul => Self {
                method: Method::PUT,
                path: "/v1/connect/ca/configuration",
                body: configuration_with(&root).to_string().into(),
            },
        }
    }

    pub(crate) async fn make(self, server: &Server) {
        let made = client::transfer(LIMIT, self.method, server.http(), self.path, self.body);
        let (status, text) = made.await.expect("an answer");
        let text = String::from_utf8_lossy(&text);
        assert!(status.is_success(), "{}: {status}: {text}", self.path);
    }
}

fn configuration_with(root: &Authority) -> Value {
    json!({
        "Provider": "consul",
        "Config": {
            "PrivateKey": root.key_pem(),
            "RootCert": root.cert_pem(),
            "CSRMaxPerSecond": 0,
            "CSRMaxConcurrent": 0,
        },
    })
}

/// A backup of the server in which another root is active; the old one stays trusted.
async fn backup_with(server: &Server, root: &Authority) -> Bytes {
    let saved = client::transfer(LIMIT, Method::GET, server.http(), SNAPSHOT, Bytes::new()).await;
    let (status, saved) = saved.expect("an answer");
    assert!(status.is_success(), "{SNAPSHOT}: {status}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let scope = Scope::new("backup");
    let config = StoreConfig::Disk {
        directory: folder.path().join("store"),
        key_file: Some(server.data().join("store.key")),
    };
    let store = Store::open(config, &scope.spawner())
        .await
        .expect("a store");
    let snapshot = store.read_snapshot(saved.reader()).expect("a backup");
    store.restore(snapshot).await.expect("it is restored");
    let ca = store.state().read().ca().expect("a CA");
    let changed = Command::SetCa(Box::new(with_root(&ca, root)));
    store.apply(changed).await.expect("it is stored");
    let mut backup = Vec::new();
    store.save(&mut backup).expect("a backup");
    drop(store);
    let stopped = scope.stop(LIMIT).await;
    stopped.expect("the store stops");
    backup.into()
}

fn with_root(ca: &CaState, root: &Authority) -> CaState {
    let mut changed = ca.clone();
    let roots = Arc::make_mut(&mut changed.roots);
    let info = root.info();
    let mut new: CaRoot = roots.active().expect("an active root").clone();
    new.id = info.id.clone();
    new.name = "another root".to_owned();
    new.serial_number = 1_000;
    new.signing_key_id = info.subject_key_id.clone();
    new.not_before = info.not_before;
    new.not_after = info.not_after;
    new.root_cert = root.cert_pem().to_owned();
    for old in &mut roots.roots {
        old.active = false;
    }
    roots.active_root_id = new.id.clone();
    roots.roots.push(new);
    changed.signing_key = Secret::new(root.key_pem());
    changed
}
