//! One request to a port of a pod, through the API server (port-forward): what listens on the pod's
//! loopback is reached too, with the rights of the user and no others.
//!
//! Every request has a connection of its own, which is closed when the request is done.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use legate_identity::tls::{self, ClientTls};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::http_client;

/// How long connecting may take, and how long the answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Largest answer, in bytes: the configuration of a proxy with thousands of upstreams.
const SIZE_LIMIT: usize = 256 << 20;

/// A port of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port<'a> {
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) port: u16,
}

/// What a TLS server showed, and what it answered.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// The server's certificates, its own first; empty without TLS. They are not verified: that is a
    /// question of its own.
    pub(super) chain: Vec<CertificateDer<'static>>,
}

/// `GET path` without TLS.
///
/// # Errors
///
/// When the pod cannot be reached or does not answer in time.
pub(super) async fn get(client: &Client, port: Port<'_>, path: &str) -> anyhow::Result<Answer> {
    ask(client, port, path, None).await
}

/// `GET path` with TLS, whatever certificate the server shows: no secret is sent.
///
/// # Errors
///
/// When the pod cannot be reached or does not answer in time.
pub(super) async fn get_tls(client: &Client, port: Port<'_>, path: &str) -> anyhow::Result<Answer> {
    let config = tls::client_config(&ClientTls {
        insecure_skip_verify: true,
        ..ClientTls::default()
    })?;
    ask(
        client,
        port,
        path,
        Some(TlsConnector::from(Arc::clone(&config))),
    )
    .await
}

/// The body of an answer that has to be a success.
///
/// # Errors
///
/// As [`get`], and for every other status.
pub(super) async fn body(client: &Client, port: Port<'_>, path: &str) -> anyhow::Result<Bytes> {
    let answer = get(client, port, path).await?;
    ensure!(
        answer.status.is_success(),
        "port {} answered {path} with {}",
        port.port,
        answer.status
    );
    Ok(answer.body)
}

async fn ask(
    client: &Client,
    at: Port<'_>,
    path: &str,
    tls: Option<TlsConnector>,
) -> anyhow::Result<Answer> {
    let Port {
        namespace,
        pod,
        port,
    } = at;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let ports = [port];
    let forwarder = tokio::time::timeout(LIMIT, pods.portforward(pod, &ports));
    let forwarder = forwarder.await.context("port-forward: no answer in time")?;
    let mut forwarder =
        forwarder.map_err(|error| anyhow!("port-forward: {}", super::words(&error)))?;
    let stream = forwarder.take_stream(port);
    let stream = stream.context("port-forward: no stream for the port")?;
    let failure = forwarder.take_error(port);
    let answer = async {
        match tls {
            None => exchange(stream, path, Vec::new()).await,
            Some(connector) => {
                let stream = connector
                    .connect(tls::server_name("localhost")?, stream)
                    .await
                    .context("TLS")?;
                let shown = stream.get_ref().1.peer_certificates();
                let chain = shown.unwrap_or_default();
                let chain = chain.iter().cloned().map(CertificateDer::into_owned);
                let chain = chain.collect();
                exchange(stream, path, chain).await
            }
        }
    };
    let failed = async {
        match failure {
            Some(failure) => failure.await,
            None => None,
        }
    };
    let answer = tokio::time::timeout(LIMIT, async {
        tokio::select! {
            answer = answer => answer,
            // Why the kubelet cannot connect is on an error channel of its own; the stream just ends.
            Some(words) = failed => Err(anyhow!("{}", words.trim())),
        }
    });
    let answer = answer.await;
    // The task that moves the bytes has nothing left to do.
    forwarder.abort();
    let _ = forwarder.join().await;
    answer
        .context("no answer in time")
        .flatten()
        .with_context(|| format!("port {port}"))
}

async fn exchange<S>(
    stream: S,
    path: &str,
    chain: Vec<CertificateDer<'static>>,
) -> anyhow::Result<Answer>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let request = Request::get(path)
        .header(header::HOST, "localhost")
        .body(Full::new(Bytes::new()))?;
    let (status, body) = http_client::exchange(stream, request, SIZE_LIMIT).await?;
    Ok(Answer {
        status,
        body,
        chain,
    })
}
