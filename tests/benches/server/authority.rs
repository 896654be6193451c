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
use legate_runtime::{BoxError, Scope};
use legate_store::{CaState, Command, Store, StoreConfig};
use rcgen::string::Ia5String;
use rcgen::{CertificateParams, KeyPair, SanType};
use serde_json::{Value, json};
use tonic::transport::Endpoint;

use crate::catalog;
use crate::servers::{Kind, Server};

/// How long a signature, or the end of a store, may take.
const LIMIT: Duration = Duration::from_secs(30);

const SNAPSHOT: &str = "/v1/snapshot";

/// How long the new root is valid.
const VALID: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Processor milliseconds of a server for one certificate that it signs on request.
///
/// # Errors
/// What the server says.
pub(crate) async fn signature(server: &Server, times: u32) -> Result<f64, BoxError> {
    let trust_domain = trust_domain(server).await?;
    let service = catalog::service(0);
    let uri = format!("spiffe://{trust_domain}/ns/default/dc/dc1/svc/{service}");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(uri)?)];
    let key = KeyPair::generate()?;
    let csr = params.serialize_request(&key)?.pem()?;
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc()))?.timeout(LIMIT);
    let mut client = ConnectCaServiceClient::new(endpoint.connect().await?);
    let before = server.running.processor_time();
    for _ in 0..times {
        let csr = csr.clone();
        client.sign(SignRequest { csr }).await?;
    }
    Ok((server.running.processor_time() - before) / f64::from(times))
}

async fn trust_domain(server: &Server) -> Result<String, BoxError> {
    let path = "/v1/connect/ca/roots";
    let roots = server.call(Method::GET, path, Bytes::new()).await?;
    let roots: Value = serde_json::from_slice(&roots)?;
    let domain = roots["TrustDomain"].as_str();
    Ok(domain.ok_or("no trust domain")?.to_owned())
}

/// A change of the root that is ready to be made.
pub(crate) struct Rotation {
    path: &'static str,
    body: Bytes,
}

impl Rotation {
    pub(crate) async fn prepare(server: &Server) -> Result<Self, BoxError> {
        let root = Authority::generate_root(RootRequest {
            common_name: "another root".to_owned(),
            uri: format!("spiffe://{}", trust_domain(server).await?),
            serial: 1_000,
            now: SystemTime::now(),
            ttl: VALID,
        })?;
        Ok(match server.kind {
            Kind::Legate => Self {
                path: SNAPSHOT,
                body: backup_with(server, &root).await?,
            },
            Kind::Consul => Self {
                path: "/v1/connect/ca/configuration",
                body: configuration_with(&root).to_string().into(),
            },
        })
    }

    pub(crate) async fn make(self, server: &Server) -> Result<(), BoxError> {
        let made = server.call(Method::PUT, self.path, self.body);
        made.await.map(drop)
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
async fn backup_with(server: &Server, root: &Authority) -> Result<Bytes, BoxError> {
    let saved = server.call(Method::GET, SNAPSHOT, Bytes::new()).await?;
    let folder = tempfile::tempdir()?;
    let scope = Scope::new("backup");
    let config = StoreConfig::Disk {
        directory: folder.path().join("store"),
        key_file: Some(server.data().join("store.key")),
    };
    let store = Store::open(config, &scope.spawner()).await?;
    let snapshot = store.read_snapshot(saved.reader())?;
    store.restore(snapshot).await?;
    let ca = store.state().read().ca().ok_or("a backup without a CA")?;
    let changed = Command::SetCa(Box::new(with_root(&ca, root)));
    store.apply(changed).await?;
    let mut backup = Vec::new();
    store.save(&mut backup)?;
    drop(store);
    scope.stop(LIMIT).await?;
    Ok(backup.into())
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
