//! Sends requests to an admission webhook repeatedly, and prints the response times.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

/// The deadline for a response.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct Options {
    /// Host name of the webhook, for example operator.default.svc
    host: String,
    /// PEM of the CA of its certificate
    #[arg(long)]
    authority: String,
    /// The AdmissionReview
    #[arg(long)]
    review: String,
    #[arg(long, default_value_t = 100)]
    count: u32,
    /// Number of concurrent requests
    #[arg(long, default_value_t = 1)]
    at_a_time: usize,
}

/// `{"seconds": 1.2, "milliseconds": [3.4, …]}`
pub(crate) async fn run(options: &Options) -> anyhow::Result<Value> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(options.authority.as_bytes()) {
        roots.add(certificate?)?;
    }
    let tls = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tls = TlsConnector::from(Arc::new(tls));
    let one = || async {
        let began = Instant::now();
        let asked = timeout(LIMIT, ask(options, &tls)).await;
        asked.context("no answer within 10 s")??;
        Ok::<_, anyhow::Error>(began.elapsed().as_secs_f64() * 1000.0)
    };
    one().await?;
    let began = Instant::now();
    let requests = stream::iter(0..options.count).map(|_| one());
    let times: Vec<f64> = requests
        .buffer_unordered(options.at_a_time)
        .try_collect()
        .await?;
    Ok(json!({"seconds": began.elapsed().as_secs_f64(), "milliseconds": times}))
}

/// Sends one request on a new connection; the response must have a patch.
async fn ask(options: &Options, tls: &TlsConnector) -> anyhow::Result<()> {
    let stream = TcpStream::connect((options.host.as_str(), 443)).await?;
    let name = ServerName::try_from(options.host.clone())?;
    let stream = tls.connect(name, stream).await?;
    let (mut requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::post("/mutate")
        .header("Host", &options.host)
        .header("Content-Type", "application/json")
        .body(Full::new(Bytes::from(options.review.clone())))?;
    let exchange = async {
        let answer = requests.send_request(request).await?;
        ensure!(answer.status().is_success(), "{}", answer.status());
        Ok(answer.into_body().collect().await?.to_bytes())
    };
    // Once the response is complete, errors of the connection are ignored.
    let (answer, _) = tokio::join!(exchange, connection);
    let answer: Value = serde_json::from_slice(&answer?)?;
    ensure!(answer["response"]["patch"].is_string(), "{answer}");
    Ok(())
}
