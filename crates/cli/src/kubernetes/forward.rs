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

/// How errors begin that say nothing of the pod: there is no way to it from here, for lack of a right for
/// example.
const NO_WAY: &str = "port-forward: ";
/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// What an answer may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Its largest size, in bytes.
    size: usize,
    time: Duration,
}

/// A page about one process. Many pods are asked at a time, and anybody may have made one of them.
pub(super) const SMALL: Limits = Limits {
    size: 4 << 20,
    time: Duration::from_secs(10),
};
/// The configuration of a proxy with thousands of upstreams.
pub(super) const LARGE: Limits = Limits {
    size: 256 << 20,
    time: Duration::from_secs(120),
};

/// Whether an error means that there is no way to the pod from here.
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

/// A page of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page<'a> {
    pub(super) path: &'a str,
    /// The ACL token, for a server.
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

/// What a TLS server showed, and what it answered.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// The server's certificates, its own first; empty without TLS. They are not verified: that is a
    /// question of its own.
    pub(super) chain: Vec<CertificateDer<'static>>,
}

/// `GET` without TLS.
///
/// # Errors
///
/// When the pod cannot be reached or does not answer in time.
pub(super) async fn get(
    client: &Client,
    port: Port<'_>,
    page: impl Into<Page<'_>>,
) -> anyhow::Result<Answer> {
    ask(client, port, page.into(), None).await
}

/// `GET` with TLS, whatever certificate the server shows: the API server has authenticated itself, and it
/// connects to the pod from within the pod's own network.
///
/// # Errors
///
/// When the pod cannot be reached or does not answer in time.
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

/// The body of an answer that has to be a success.
///
/// # Errors
///
/// As [`get`], and for every other status.
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
            // Why the kubelet cannot connect is on an error channel of its own; the stream just ends.
            Some(words) = failed => Err(anyhow!("{}", words.trim())),
            answer = answer => answer,
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
    page: Page<'_>,
    chain: Vec<CertificateDer<'static>>,
) -> anyhow::Result<Answer>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = Request::get(page.path).header(header::HOST, "localhost");
    if let Some(token) = page.token {
        request = request.header("x-consul-token", token);
    }
    let request = request.body(Full::new(Bytes::new()))?;
    let (status, body) = http_client::exchange(stream, request, page.limits.size).await?;
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
    async fn a_token_goes_with_the_request_that_has_one() {
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
