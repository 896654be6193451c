//! Asks foreign servers over HTTP or HTTPS, with limits on size and number. It follows no redirects,
//! goes through no proxy, keeps no connections and retries nothing; the caller limits the time.

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

/// The largest answer that is read, in bytes.
const SIZE_LIMIT: usize = 1024 * 1024;
/// How much of the head of an answer is kept, in bytes.
const HEAD_LIMIT: usize = 64 * 1024;
/// Requests of one auth method at one time. Others wait.
const CONCURRENT: usize = 16;
/// How much of an answer's text an error repeats, in characters.
const QUOTED: usize = 200;

/// Asks the servers of one auth method.
pub(super) struct Client {
    tls: Arc<ClientConfig>,
    places: Semaphore,
    /// A look-up that nobody waits for any more goes on in its thread: there is one at a time.
    look_up: Arc<Mutex<()>>,
}

/// What a server has answered.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    body: Bytes,
}

impl Reply {
    /// Reads it as JSON.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(&self.body)
            .map_err(|error| format!("the answer is not right: {error}"))
    }

    /// Status and the beginning of the text, for errors.
    pub(super) fn summary(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        // Kubernetes says what is wrong in a field of a document.
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
    /// A client that believes the authorities of `ca` (PEM), or those of the system when it is empty.
    /// It reads files: call it where that may block.
    ///
    /// # Errors
    /// What is wrong with the authorities; `field` is the setting that they are in.
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

    /// # Errors
    /// What is wrong, for people, without the URL.
    pub(super) async fn get(&self, url: &str, bearer: Option<&Secret>) -> Result<Reply, String> {
        self.send(Method::GET, url, bearer, Bytes::new()).await
    }

    /// # Errors
    /// What is wrong, for people, without the URL.
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
        let url: Uri = url.parse().map_err(|error| format!("no URL: {error}"))?;
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
            let mut value = value.map_err(|_| "the token cannot stand in a header")?;
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
        // The connection may end in the same moment as the answer: what was received still counts.
        _ = connection => answer.await,
    }
}

async fn read(response: Response<Incoming>) -> Result<Reply, String> {
    let status = response.status();
    let to = response.headers().get(LOCATION).cloned();
    let body = Limited::new(response.into_body(), SIZE_LIMIT);
    let body = body.collect().await.map_err(|error| {
        match error.is::<http_body_util::LengthLimitError>() {
            true => format!("the answer has more than {SIZE_LIMIT} bytes"),
            false => format!("the answer broke off: {error}"),
        }
    })?;
    let body = match (status.is_redirection(), to) {
        (true, Some(to)) => Bytes::from(format!("to {}", String::from_utf8_lossy(to.as_bytes()))),
        _ => body.to_bytes(),
    };
    Ok(Reply { status, body })
}
