//! A minimal HTTP client for external servers, with limits on size and concurrency. No redirects, proxies,
//! keep-alive or retries. The caller sets the timeout.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use legate_identity::tls::{ClientTls, client_config, client_config_with_roots, server_name};
use legate_model::Secret;
use rustls::ClientConfig;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;

/// The maximum response body, in bytes.
const SIZE_LIMIT: usize = 1024 * 1024;
/// The maximum response head, in bytes.
const HEAD_LIMIT: usize = 64 * 1024;
/// Concurrent requests per auth method. Further ones wait.
const CONCURRENT: usize = 16;
/// Maximum characters of a response quoted in an error.
const QUOTED: usize = 200;

/// The client of one auth method.
pub(super) struct Client {
    tls: Arc<ClientConfig>,
    places: Semaphore,
    /// A DNS lookup continues in its thread after the request is cancelled, so lookups are serialised.
    look_up: Arc<Mutex<()>>,
}

/// A response.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    body: Bytes,
}

impl Reply {
    /// Decodes the body as JSON.
    ///
    /// # Errors
    /// A text for users.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(&self.body)
            .map_err(|error| format!("the response is invalid: {error}"))
    }

    /// Status and the beginning of the body, for errors.
    pub(super) fn summary(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        // Kubernetes reports errors in the field `message` of a Status object.
        let status: Option<serde_json::Value> = serde_json::from_slice(&self.body).ok();
        let message = status.and_then(|status| Some(status.get("message")?.as_str()?.to_owned()));
        let text = message.unwrap_or_else(|| text.into_owned());
        let text: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(QUOTED)
            .collect();
        match text.trim() {
            "" => format!("status {}", self.status),
            text => format!("status {}: {text}", self.status),
        }
    }
}

impl Client {
    /// A client that trusts the CA certificates in `ca` (PEM), or the system's if it is empty. Reads files, so
    /// call it where blocking is permitted.
    ///
    /// # Errors
    /// Why the CA certificates are invalid. `field` is the name of their setting.
    pub(super) fn new(ca: &str, field: &str) -> Result<Self, String> {
        let tls = match ca {
            "" => client_config(&ClientTls::default()),
            pem => client_config_with_roots(pem, field),
        };
        Ok(Self {
            tls: tls.map_err(|error| error.to_string())?,
            places: Semaphore::new(CONCURRENT),
            look_up: Arc::default(),
        })
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// A text for users, without the URL.
    pub(super) async fn get(&self, url: &str, bearer: Option<&Secret>) -> Result<Reply, String> {
        self.send(Method::GET, url, bearer, Bytes::new()).await
    }

    /// Sends a POST request.
    ///
    /// # Errors
    /// A text for users, without the URL.
    pub(super) async fn post(
        &self,
        url: &str,
        bearer: Option<&Secret>,
        body: &serde_json::Value,
    ) -> Result<Reply, String> {
        let body = Bytes::from(body.to_string());
        self.send(Method::POST, url, bearer, body).await
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        bearer: Option<&Secret>,
        body: Bytes,
    ) -> Result<Reply, String> {
        let _place = self.places.acquire().await;
        let url: Uri = url
            .parse()
            .map_err(|error| format!("invalid URL: {error}"))?;
        let authority = url.authority().ok_or("the URL has no host")?;
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, authority.as_str())
            .header(ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(bearer) = bearer {
            let value = HeaderValue::try_from(format!("Bearer {}", bearer.expose()));
            let mut value =
                value.map_err(|_| "the token contains characters that headers do not permit")?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(Full::new(body));
        let request = request.map_err(|error| error.to_string())?;
        let reply = self.exchange(&url, request).await?;
        if reply.status.is_redirection() {
            return Err(format!(
                "{}, and redirects are not followed",
                reply.summary()
            ));
        }
        Ok(reply)
    }

    async fn exchange(&self, url: &Uri, request: Request<Full<Bytes>>) -> Result<Reply, String> {
        let tls = url.scheme_str() == Some("https");
        let host = url.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = url.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let failed = |error: std::io::Error| error.to_string();
        let addresses = self.addresses(host, port).await.map_err(failed)?;
        let stream = TcpStream::connect(&*addresses).await.map_err(failed)?;
        if !tls {
            return ask(stream, request).await;
        }
        let name = server_name(host).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(self.tls.clone()).connect(name, stream);
        ask(stream.await.map_err(failed)?, request).await
    }

    async fn addresses(&self, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let turn = self.look_up.clone().lock_owned().await;
        let name = (host.to_owned(), port);
        let found = spawn_blocking(move || {
            let _turn = turn;
            name.to_socket_addrs().map(Vec::from_iter)
        });
        found.await.map_err(std::io::Error::other)?
    }
}

async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Reply, String> {
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_LIMIT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await;
        read(response.map_err(|error| error.to_string())?).await
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection may end at the same time as the response; data already received is valid.
        _ = connection => answer.await,
    }
}

async fn read(response: Response<Incoming>) -> Result<Reply, String> {
    let status = response.status();
    let to = response.headers().get(LOCATION).cloned();
    let body = Limited::new(response.into_body(), SIZE_LIMIT);
    let body = body.collect().await.map_err(|error| {
        match error.is::<http_body_util::LengthLimitError>() {
            true => format!("the response exceeds {SIZE_LIMIT} bytes"),
            false => format!("the response ended early: {error}"),
        }
    })?;
    let body = match (status.is_redirection(), to) {
        (true, Some(to)) => Bytes::from(format!("to {}", String::from_utf8_lossy(to.as_bytes()))),
        _ => body.to_bytes(),
    };
    Ok(Reply { status, body })
}
