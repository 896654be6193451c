//! Sends one request to a port of a pod through the API server (port-forward). It also reaches listeners
//! on the pod's loopback, with the user's own permissions.
//!
//! Every request uses a new connection.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use legate_identity::tls::{self, ClientTls};
use legate_runtime::http_client::{Body, send_over};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// The prefix of errors of the connection to the pod, for example for lack of permission, which are
/// independent of the pod's state.
const NO_WAY: &str = "port-forward: ";
/// The connect timeout.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The limits of a response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The maximum size in bytes.
    size: usize,
    time: Duration,
}

/// For pages about one process. Many pods are queried concurrently, and any of them may be malicious.
pub(super) const SMALL: Limits = Limits {
    size: 4 << 20,
    time: Duration::from_secs(10),
};
/// For the configuration of a proxy with thousands of upstreams.
pub(super) const LARGE: Limits = Limits {
    size: 256 << 20,
    time: Duration::from_secs(120),
};

/// Whether the error is about the connection to the pod, not the pod itself.
pub(super) fn is_no_way(error: &str) -> bool {
    error.starts_with(NO_WAY)
}

/// A port of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port<'a> {
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) port: u16,
}

/// A page of a pod's HTTP server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page<'a> {
    pub(super) path: &'a str,
    /// The ACL token, for requests to a server.
    pub(super) token: Option<&'a str>,
    pub(super) limits: Limits,
}

impl<'a> From<&'a str> for Page<'a> {
    fn from(path: &'a str) -> Self {
        Self {
            path,
            token: None,
            limits: SMALL,
        }
    }
}

/// The response, with the certificates of a TLS server.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// The server's certificate chain; empty without TLS. It is not verified here but by the caller.
    pub(super) chain: Vec<CertificateDer<'static>>,
}

/// Sends a `GET` without TLS.
///
/// # Errors
///
/// If the pod is unreachable or does not respond in time.
pub(super) async fn get(
    client: &Client,
    port: Port<'_>,
    page: impl Into<Page<'_>>,
) -> anyhow::Result<Answer> {
    ask(client, port, page.into(), None).await
}

/// Sends a `GET` with TLS and accepts any certificate: the API server is authenticated, and it connects
/// to the pod from within the pod's own network.
///
/// # Errors
///
/// If the pod is unreachable or does not respond in time.
pub(super) async fn get_tls(
    client: &Client,
    port: Port<'_>,
    page: impl Into<Page<'_>>,
) -> anyhow::Result<Answer> {
    let config = tls::client_config(&ClientTls {
        insecure_skip_verify: true,
        ..ClientTls::default()
    })?;
    let connector = TlsConnector::from(Arc::clone(&config));
    ask(client, port, page.into(), Some(connector)).await
}

/// The body of a successful response.
///
/// # Errors
///
/// As [`get`], or for an error status.
pub(super) async fn body(
    client: &Client,
    port: Port<'_>,
    path: &str,
    limits: Limits,
) -> anyhow::Result<Bytes> {
    let page = Page {
        limits,
        ..Page::from(path)
    };
    let answer = ask(client, port, page, None).await?;
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
    page: Page<'_>,
    tls: Option<TlsConnector>,
) -> anyhow::Result<Answer> {
    let Port {
        namespace,
        pod,
        port,
    } = at;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let ports = [port];
    let forwarder = tokio::time::timeout(CONNECT_LIMIT, pods.portforward(pod, &ports));
    let no_way = |why: String| anyhow!("{NO_WAY}{why}");
    let forwarder = forwarder
        .await
        .map_err(|_| no_way("no answer in time".to_owned()))?;
    let mut forwarder = forwarder.map_err(|error| no_way(super::words(&error)))?;
    let stream = forwarder.take_stream(port);
    let stream = stream.ok_or_else(|| no_way("no stream for the port".to_owned()))?;
    let failure = forwarder.take_error(port);
    let answer = async {
        match tls {
            None => exchange(stream, page, Vec::new()).await,
            Some(connector) => {
                let stream = connector
                    .connect(tls::server_name("localhost")?, stream)
                    .await
                    .context("TLS")?;
                let shown = stream.get_ref().1.peer_certificates();
                let chain = shown.unwrap_or_default();
                let chain = chain.iter().cloned().map(CertificateDer::into_owned);
                let chain = chain.collect();
                exchange(stream, page, chain).await
            }
        }
    };
    let failed = async {
        match failure {
            Some(failure) => failure.await,
            None => None,
        }
    };
    let answer = tokio::time::timeout(page.limits.time, async {
        tokio::select! {
            biased;
            // The kubelet reports connection errors on a separate channel; the stream just ends.
            Some(words) = failed => Err(anyhow!("{}", words.trim())),
            answer = answer => answer,
        }
    });
    let answer = answer.await;
    // The task that forwards the bytes is no longer needed.
    forwarder.abort();
    let _ = forwarder.join().await;
    answer
        .context("no answer in time")
        .flatten()
        .with_context(|| format!("port {port}"))
}

async fn exchange<S>(
    stream: S,
    page: Page<'_>,
    chain: Vec<CertificateDer<'static>>,
) -> anyhow::Result<Answer>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut request = Request::get(page.path).header(header::HOST, "localhost");
    if let Some(token) = page.token {
        request = request.header("x-consul-token", token);
    }
    let deadline = Instant::now() + page.limits.time;
    let reply = send_over(stream, request.body(Body::default())?, deadline).await?;
    let status = reply.status;
    let body = reply.body(page.limits.size, deadline).await?;
    Ok(Answer {
        status,
        body,
        chain,
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_token_is_sent_if_the_request_has_one() {
        for token in [None, Some("secret")] {
            let (client, mut server) = tokio::io::duplex(4096);
            let page = Page {
                token,
                ..Page::from("/v1/x")
            };
            let answers = async {
                let mut request = vec![0; 4096];
                let read = server.read(&mut request).await.unwrap();
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                server.write_all(answer).await.unwrap();
                String::from_utf8_lossy(&request[..read]).into_owned()
            };
            let (answer, request) = tokio::join!(exchange(client, page, Vec::new()), answers);
            assert_eq!(answer.unwrap().body, "{}");
            assert!(request.starts_with("GET /v1/x "), "{request}");
            assert_eq!(request.contains("x-consul-token: secret"), token.is_some());
        }
    }
}
