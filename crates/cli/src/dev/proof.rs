//! Prints the running components and verifies them: requests, refused unauthenticated clients,
//! intentions taking effect.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use http::{Method, StatusCode};
use legate_identity::tls::{ClientTls, client_config};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

use super::control_plane::ControlPlane;
use super::service::Service;
use super::sidecar::Sidecar;
use crate::http_client::{self, expect_success};

/// How long a change may take to reach running Envoys.
const EFFECT_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
const REQUESTS: usize = 20;

/// Prints addresses, identities, certificate expiry and intentions.
pub(crate) async fn describe(
    control_plane: &ControlPlane,
    parts: &[(&Service, &Sidecar)],
) -> anyhow::Result<()> {
    println!("control plane");
    println!("  HTTP       http://{}", control_plane.http());
    println!("  gRPC, xDS  https://{}", control_plane.grpc_tls());
    if let Some(dns) = control_plane.dns() {
        println!("  DNS        {dns} (udp, tcp)");
    }
    for (service, sidecar) in parts {
        let certificate = certificate(sidecar).await?;
        println!("{}", service.name);
        println!("  service    {}", service.url());
        println!(
            "  sidecar    process {}, ready after {:.0?}",
            sidecar.pid().unwrap_or_default(),
            sidecar.ready_after
        );
        println!("  inbound    {} (mutual TLS)", sidecar.proxy.public);
        println!("  Envoy      http://{}", sidecar.admin);
        println!("  health     http://{}/readyz", sidecar.lifecycle);
        println!("  log        {}", sidecar.log().display());
        println!("  identity   {}", certificate.uri);
        println!("  expires    {}", certificate.expires);
    }
    println!("intentions (default: deny)");
    for intention in control_plane.intentions().await? {
        println!("  {intention}");
    }
    println!();
    Ok(())
}

/// Verifies that requests pass, that clients without an identity are refused, and that intentions
/// deny and allow.
pub(crate) async fn run(
    control_plane: &ControlPlane,
    web: &Service,
    web_sidecar: &Sidecar,
    api_sidecar: &Sidecar,
) -> anyhow::Result<()> {
    let identity = certificate(web_sidecar).await?.uri;
    settle(web, StatusCode::OK)
        .await
        .context("web does not reach api")?;
    for _ in 0..REQUESTS {
        let (status, answer) = ask(web).await?;
        ensure!(status == StatusCode::OK, "web answered {status}: {answer}");
        let caller = answer["upstream"]["caller"].as_str();
        ensure!(
            caller == Some(&identity),
            "api was called by {caller:?} and not by {identity}"
        );
    }
    println!("✓ {REQUESTS} requests to web reached api, which saw the identity {identity}");
    let handshakes = handshakes(api_sidecar).await?;
    ensure!(handshakes > 0, "the Envoy of api counts no TLS handshake");
    println!(
        "✓ the Envoy of api completed {handshakes} TLS handshake(s) with a client certificate"
    );

    let public = api_sidecar.proxy.public;
    ensure!(!answers_plain(public).await, "{public} answers plain HTTP");
    println!("✓ plain HTTP to {public} is refused");
    ensure!(
        !answers_anonymous_tls(public).await?,
        "{public} answers TLS without a client certificate"
    );
    println!("✓ TLS to {public} without a client certificate is refused");

    control_plane.intend("web", "api", "deny").await?;
    let took = settle(web, StatusCode::FORBIDDEN)
        .await
        .context("web still reaches api although an intention denies it")?;
    println!("✓ denied by an intention after {took:.0?}: web answers 403");
    control_plane.intend("web", "api", "allow").await?;
    let took = settle(web, StatusCode::OK)
        .await
        .context("web does not reach api although an intention allows it")?;
    println!("✓ allowed again after {took:.0?}: web answers 200");
    Ok(())
}

async fn ask(web: &Service) -> anyhow::Result<(StatusCode, Value)> {
    let (status, body) = http_client::request(Method::GET, web.address, "/", None).await?;
    let answer =
        serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into());
    Ok((status, answer))
}

/// Sends requests until the response has this status.
async fn settle(web: &Service, expected: StatusCode) -> anyhow::Result<Duration> {
    let start = Instant::now();
    loop {
        let (status, answer) = ask(web).await?;
        if status == expected {
            return Ok(start.elapsed());
        }
        if start.elapsed() > EFFECT_LIMIT {
            bail!("after {EFFECT_LIMIT:?} web still answers {status}: {answer}");
        }
        sleep(POLL).await;
    }
}

/// The certificate that an Envoy presents.
struct Certificate {
    uri: String,
    expires: String,
}

async fn certificate(sidecar: &Sidecar) -> anyhow::Result<Certificate> {
    let answer = expect_success(Method::GET, sidecar.admin, "/certs", None).await?;
    let certs: Value = serde_json::from_slice(&answer).context("Envoy's /certs is not JSON")?;
    let chains = certs["certificates"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let leaf = chains.iter().find_map(|entry| entry["cert_chain"].get(0));
    let leaf =
        leaf.with_context(|| format!("the Envoy of {} has no certificate", sidecar.proxy.service))?;
    let uri = leaf["subject_alt_names"][0]["uri"]
        .as_str()
        .context("the certificate has no URI")?;
    Ok(Certificate {
        uri: uri.to_owned(),
        expires: leaf["expiration_time"].as_str().unwrap_or("?").to_owned(),
    })
}

/// The number of completed TLS handshakes of all listeners.
async fn handshakes(sidecar: &Sidecar) -> anyhow::Result<u64> {
    let path = "/stats?filter=ssl.handshake$";
    let answer = expect_success(Method::GET, sidecar.admin, path, None).await?;
    let text = String::from_utf8_lossy(&answer);
    let counts = text.lines().filter(|line| line.starts_with("listener."));
    Ok(counts
        .filter_map(|line| line.rsplit(": ").next()?.parse::<u64>().ok())
        .sum())
}

async fn answers_plain(public: SocketAddr) -> bool {
    http_client::request(Method::GET, public, "/", None)
        .await
        .is_ok()
}

/// With TLS 1.3 the server verifies the client after the client considers the connection open, so
/// only a response counts.
async fn answers_anonymous_tls(public: SocketAddr) -> anyhow::Result<bool> {
    let stranger = ClientTls {
        insecure_skip_verify: true,
        ..ClientTls::default()
    };
    let connector = TlsConnector::from(client_config(&stranger)?);
    let exchange = async {
        let stream = TcpStream::connect(public).await?;
        let mut stream = connector
            .connect(ServerName::from(public.ip()), stream)
            .await?;
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: api\r\nconnection: close\r\n\r\n")
            .await?;
        let mut first = [0; 1];
        stream.read(&mut first).await
    };
    let received = timeout(EFFECT_LIMIT, exchange)
        .await
        .context("a connection without a client certificate hangs")?;
    Ok(received.is_ok_and(|bytes| bytes > 0))
}
