//! Certificates: signing on request over gRPC, and root rotation.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Method;
use legate_api::connectca::SignRequest;
use legate_api::connectca::connect_ca_service_client::ConnectCaServiceClient;
use legate_identity::{Authority, RootRequest};
use legate_runtime::BoxError;
use rcgen::string::Ia5String;
use rcgen::{CertificateParams, KeyPair, SanType};
use serde_json::{Value, json};
use tonic::transport::Endpoint;

use crate::catalog;
use crate::servers::Server;

/// The deadline for a signature.
const LIMIT: Duration = Duration::from_secs(30);

const CONFIGURATION: &str = "/v1/connect/ca/configuration";

/// The validity of the new root.
const VALID: Duration = Duration::from_secs(365 * 24 * 3_600);

/// CPU milliseconds of a server per signed certificate.
///
/// # Errors
/// The server's error.
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

/// A prepared root rotation.
pub(crate) struct Rotation {
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
        Ok(Self {
            body: configuration_with(&root).to_string().into(),
        })
    }

    pub(crate) async fn make(self, server: &Server) -> Result<(), BoxError> {
        let made = server.call(Method::PUT, CONFIGURATION, self.body);
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
