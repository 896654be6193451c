//! The HTTP client for a server: builds requests, sends them and checks responses.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use legate_model::Secret;
use legate_runtime::http_client::{self, Body, Reply};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::address::{Address, Endpoint};

/// The default timeout of a request, including connecting.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The timeout of a connection, including its TLS handshake. Blocking queries wait longer for their response.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// The maximum size of a response in memory, in bytes.
const SIZE_LIMIT: usize = 64 << 20;

/// The header in which a server lists the fields of a write that have no effect.
const NOT_SERVED: &str = "x-legate-not-served";

/// A server, with the credentials for requests.
pub(crate) struct Api {
    pub(super) address: Address,
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    pub(super) token: Option<Secret>,
    /// `user:password` for a proxy in front of the server.
    pub(super) basic: Option<Secret>,
    /// Parameters of every request: datacenter and tenant.
    pub(super) parameters: Vec<(&'static str, String)>,
}

/// An error status. Scripts match its text.
#[derive(Debug, thiserror::Error)]
#[error("Unexpected response code: {} ({text})", status.as_u16())]
pub(crate) struct Unexpected {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

/// The status of a refused request, if the error is one.
pub(crate) fn refused(error: &anyhow::Error) -> Option<StatusCode> {
    error.downcast_ref::<Unexpected>().map(|it| it.status)
}

impl Api {
    /// Starts a `GET` request.
    pub(crate) fn get(&self, path: impl Into<String>) -> Ask<'_> {
        self.ask(Method::GET, path)
    }

    /// Starts a `PUT` request.
    pub(crate) fn put(&self, path: impl Into<String>) -> Ask<'_> {
        self.ask(Method::PUT, path)
    }

    /// Starts a `POST` request.
    pub(crate) fn post(&self, path: impl Into<String>) -> Ask<'_> {
        self.ask(Method::POST, path)
    }

    /// Starts a `DELETE` request.
    pub(crate) fn delete(&self, path: impl Into<String>) -> Ask<'_> {
        self.ask(Method::DELETE, path)
    }

    /// Starts a request with another method.
    pub(crate) fn ask(&self, method: Method, path: impl Into<String>) -> Ask<'_> {
        Ask {
            api: self,
            method,
            path: path.into(),
            query: Vec::new(),
            headers: Vec::new(),
            body: Bytes::new(),
            limit: TIME_LIMIT,
        }
    }

    /// The token of requests, if any.
    pub(crate) fn token(&self) -> Option<&Secret> {
        self.token.as_ref()
    }

    /// The value of `dc`, `ns` or `partition` in every request.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A request that is being built.
#[must_use]
pub(crate) struct Ask<'a> {
    api: &'a Api,
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    limit: Duration,
}

impl Ask<'_> {
    /// Adds a parameter.
    pub(crate) fn query(mut self, name: &str, value: impl Into<String>) -> Self {
        self.query.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a parameter unless it is empty.
    pub(crate) fn maybe(self, name: &str, value: &str) -> Self {
        match value.is_empty() {
            true => self,
            false => self.query(name, value),
        }
    }

    /// Adds a parameter without a value if `set`.
    pub(crate) fn flag(self, name: &str, set: bool) -> Self {
        match set {
            true => self.query(name, ""),
            false => self,
        }
    }

    /// Sets a JSON body.
    pub(crate) fn json(self, body: &Value) -> Self {
        self.bytes(body.to_string())
    }

    /// Sets a body.
    pub(crate) fn bytes(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Sets the timeout.
    pub(crate) fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sends the request and reads the whole response, whatever its status.
    ///
    /// # Errors
    ///
    /// If the server is unreachable or does not respond in time.
    pub(crate) async fn send(self) -> anyhow::Result<Answer> {
        let (deadline, what) = (Instant::now() + self.limit, self.description());
        let reply = self.open(deadline).await?;
        let (status, headers) = (reply.status, reply.headers.clone());
        let body = reply.body(SIZE_LIMIT, deadline).await.context(what)?;
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    /// Like [`Ask::send`], but error statuses are errors.
    ///
    /// # Errors
    ///
    /// As [`Ask::send`], and [`Unexpected`] for an error status.
    pub(crate) async fn ok(self) -> anyhow::Result<Answer> {
        let answer = self.send().await?;
        answer.success()?;
        if let Some(fields) = answer.headers.get(NOT_SERVED) {
            for field in String::from_utf8_lossy(fields.as_bytes()).split(", ") {
                crate::output::warn(&format!(
                    "warning: {field} is not supported and has no effect"
                ));
            }
        }
        Ok(answer)
    }

    /// The JSON of a successful response.
    ///
    /// # Errors
    ///
    /// As [`Ask::ok`], or if the body is not JSON.
    pub(crate) async fn value(self) -> anyhow::Result<Value> {
        self.ok().await?.value()
    }

    /// The JSON of a successful response; `None` if the object does not exist.
    ///
    /// # Errors
    ///
    /// As [`Ask::value`].
    pub(crate) async fn found(self) -> anyhow::Result<Option<Value>> {
        let answer = self.send().await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        answer.success()?;
        answer.value().map(Some)
    }

    /// Sends the request and returns a successful response whose body is streamed.
    ///
    /// # Errors
    ///
    /// As [`Ask::ok`].
    pub(crate) async fn stream(self) -> anyhow::Result<Reply> {
        let deadline = Instant::now() + self.limit;
        let reply = self.open(deadline).await?;
        if reply.status.is_success() {
            return Ok(reply);
        }
        let (status, headers) = (reply.status, reply.headers.clone());
        let body = reply.body(SIZE_LIMIT, deadline).await?;
        let answer = Answer {
            status,
            headers,
            body,
        };
        Err(answer
            .success()
            .err()
            .unwrap_or_else(|| anyhow!("{status}")))
    }

    /// The request in the format of Go's client errors: `Get "http://127.0.0.1:8500/v1/kv/x"`.
    fn description(&self) -> String {
        let method = self.method.as_str();
        let (first, rest) = method.split_at(1);
        let address = &self.api.address;
        format!(
            "{first}{} \"{address}{}\"",
            rest.to_ascii_lowercase(),
            self.target()
        )
    }

    /// Path and parameters. Parameters of this request override those of every request.
    fn target(&self) -> String {
        let own = self
            .query
            .iter()
            .map(|(name, value)| (name.as_str(), value));
        let said = |name: &str| self.query.iter().any(|(own, _)| own == name);
        let all = self.api.parameters.iter();
        let all = all
            .map(|(name, value)| (*name, value))
            .filter(|(name, _)| !said(name));
        let mut text = format!("{}{}", self.api.address.prefix, self.path);
        for (name, value) in own.chain(all) {
            text.push(if text.contains('?') { '&' } else { '?' });
            text.push_str(name);
            if !value.is_empty() {
                text.push('=');
                text.push_str(&encoded(value));
            }
        }
        text
    }

    async fn open(self, deadline: Instant) -> anyhow::Result<Reply> {
        let what = self.description();
        let api = self.api;
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(self.target())
            .header(header::HOST, api.address.host_header());
        if !self.body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        if let Some(token) = &api.token {
            request = request.header("x-consul-token", token.expose());
        }
        if let Some(basic) = &api.basic {
            use base64::Engine as _;
            let text = base64::engine::general_purpose::STANDARD.encode(basic.expose());
            request = request.header(header::AUTHORIZATION, format!("Basic {text}"));
        }
        let request = request.body(Body::from(self.body))?;
        let reply = async {
            let stream = api.connect(deadline).await?;
            Ok(http_client::send_over(stream, request, deadline).await?)
        };
        let reply: anyhow::Result<Reply> = reply.await;
        reply.context(what)
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Api {
    /// Connects to the server, including the TLS handshake, until `deadline` and within [`CONNECT_LIMIT`].
    async fn connect(&self, deadline: Instant) -> anyhow::Result<Box<dyn Stream>> {
        let deadline = deadline.min(Instant::now() + CONNECT_LIMIT);
        let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
        match &self.address.place {
            Endpoint::Unix(path) => {
                let stream = timeout_at(deadline, UnixStream::connect(path)).await;
                let stream = stream.map_err(late).flatten();
                let stream = stream.map_err(|error| dial("unix", &path.to_string_lossy(), error));
                Ok(Box::new(stream?))
            }
            Endpoint::Tcp { authority, .. } => {
                let stream = timeout_at(deadline, TcpStream::connect(authority.as_str())).await;
                let stream = stream.map_err(late).flatten();
                let stream = stream.map_err(|error| dial("tcp", authority, error))?;
                let Some((config, name)) = &self.tls else {
                    return Ok(Box::new(stream));
                };
                let handshake =
                    TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream);
                let stream = timeout_at(deadline, handshake).await;
                // Go's words.
                let stream = stream.map_err(|_| anyhow!("net/http: TLS handshake timeout"))?;
                Ok(Box::new(stream?))
            }
        }
    }
}

/// A connection error in Go's words.
fn dial(network: &str, address: &str, error: std::io::Error) -> anyhow::Error {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::TimedOut => anyhow!("dial {network} {address}: i/o timeout"),
        ErrorKind::ConnectionRefused => {
            anyhow!("dial {network} {address}: connect: connection refused")
        }
        ErrorKind::NotFound => {
            anyhow!("dial {network} {address}: connect: no such file or directory")
        }
        _ => anyhow!("dial {network} {address}: {error}"),
    }
}

/// A complete response.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// # Errors
    ///
    /// [`Unexpected`] for an error status.
    pub(crate) fn success(&self) -> anyhow::Result<()> {
        match self.status.is_success() {
            true => Ok(()),
            false => Err(Unexpected {
                status: self.status,
                text: String::from_utf8_lossy(&self.body).trim().to_owned(),
            }
            .into()),
        }
    }

    /// The body as JSON.
    ///
    /// # Errors
    ///
    /// If the body is not JSON.
    pub(crate) fn value(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.body).context("the answer is not JSON")
    }

    /// The index of the state in the response.
    pub(crate) fn index(&self) -> u64 {
        index(&self.headers)
    }
}

/// The index of the state in a response; 0 if the header is missing.
pub(crate) fn index(headers: &HeaderMap) -> u64 {
    let value = headers.get("x-consul-index");
    let value = value.and_then(|value| value.to_str().ok());
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Encodes a segment of a URL.
pub(crate) fn encoded(text: &str) -> String {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    let of = |byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(of).collect()
}

/// Encodes a path whose slashes separate segments, as in keys.
pub(crate) fn encoded_path(text: &str) -> String {
    let parts: Vec<String> = text.split('/').map(encoded).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_api::ApiFlags;

    #[test]
    fn parts_of_urls() {
        assert_eq!(encoded("a b/*"), "a%20b%2F%2A");
        assert_eq!(encoded_path("a b/c"), "a%20b/c");
    }

    /// Both the limit of a request and, for blocking queries, that of connections apply.
    #[tokio::test]
    async fn a_server_that_never_completes_its_handshake_is_given_up() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let flags = ApiFlags {
            http_addr: Some(format!("https://{}", listener.local_addr().unwrap())),
            ..ApiFlags::default()
        };
        let api = flags.connect_without_environment().unwrap();
        tokio::time::pause();
        for (limit, expected) in [(5, 5), (600, 30)] {
            let start = Instant::now();
            let ask = api.get("/v1/x").within(Duration::from_secs(limit));
            let error = ask.send().await.err().unwrap();
            let text = format!("{error:#}");
            assert!(text.ends_with("net/http: TLS handshake timeout"), "{text}");
            assert_eq!(start.elapsed().as_secs(), expected, "{text}");
        }
    }

    #[test]
    fn every_request_has_the_common_parameters() {
        let flags = ApiFlags {
            http_addr: Some("http://h:1/base/".to_owned()),
            datacenter: Some("dc2".to_owned()),
            partition: Some("p".to_owned()),
            ..ApiFlags::default()
        };
        let api = flags.connect_without_environment().unwrap();
        let ask = api
            .get("/v1/x")
            .query("partition", "q")
            .flag("recurse", true);
        assert_eq!(ask.target(), "/base/v1/x?partition=q&recurse&dc=dc2");
        assert_eq!(
            ask.description(),
            "Get \"http://h:1/base/v1/x?partition=q&recurse&dc=dc2\""
        );
    }
}
