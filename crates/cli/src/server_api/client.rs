//! A server that is asked, the questions to it, and its answers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use legate_model::Secret;
use legate_runtime::http_client::{self, Body, Reply};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::address::{Address, Place};

/// How long an answer may take, connecting included, unless the question says otherwise.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Largest answer that is read into memory, in bytes.
const SIZE_LIMIT: usize = 64 << 20;

/// The header in which a server names the fields of a write that have no effect.
const NOT_SERVED: &str = "x-legate-not-served";

/// A server, and as whom it is asked.
pub(crate) struct Api {
    pub(super) address: Address,
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    pub(super) token: Option<Secret>,
    /// `user:password` of a proxy in front of the server.
    pub(super) basic: Option<Secret>,
    /// What every question carries: datacenter and tenant.
    pub(super) parameters: Vec<(&'static str, String)>,
}

/// A status that is no success. Its text is the one that scripts look for.
#[derive(Debug, thiserror::Error)]
#[error("Unexpected response code: {} ({text})", status.as_u16())]
pub(crate) struct Unexpected {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

/// The status of a refusal, where an error is one.
pub(crate) fn refused(error: &anyhow::Error) -> Option<StatusCode> {
    error.downcast_ref::<Unexpected>().map(|it| it.status)
}

impl Api {
    /// `GET` of a path.
    pub(crate) fn get(&self, path: impl Into<String>) -> Ask<'_> {
        self.ask(Method::GET, path)
    }

    /// `PUT` to a path.
    pub(crate) fn put(&self, path: impl Into<String>) -> Ask<'_> {
        self.ask(Method::PUT, path)
    }

    /// `POST` to a path.
    pub(crate) fn post(&self, path: impl Into<String>) -> Ask<'_> {
        self.ask(Method::POST, path)
    }

    /// `DELETE` of a path.
    pub(crate) fn delete(&self, path: impl Into<String>) -> Ask<'_> {
        self.ask(Method::DELETE, path)
    }

    fn ask(&self, method: Method, path: impl Into<String>) -> Ask<'_> {
        Ask {
            api: self,
            method,
            path: path.into(),
            query: Vec::new(),
            body: Bytes::new(),
            limit: TIME_LIMIT,
        }
    }

    /// The token that is used, if any.
    pub(crate) fn token(&self) -> Option<&Secret> {
        self.token.as_ref()
    }

    /// One of `dc`, `ns` and `partition`, as every question carries it.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A question that is being put together.
#[must_use]
pub(crate) struct Ask<'a> {
    api: &'a Api,
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    body: Bytes,
    limit: Duration,
}

impl Ask<'_> {
    /// A parameter.
    pub(crate) fn query(mut self, name: &str, value: impl Into<String>) -> Self {
        self.query.push((name.to_owned(), value.into()));
        self
    }

    /// A parameter that is left out where it is empty.
    pub(crate) fn maybe(self, name: &str, value: &str) -> Self {
        match value.is_empty() {
            true => self,
            false => self.query(name, value),
        }
    }

    /// A parameter without value, where `set`.
    pub(crate) fn flag(self, name: &str, set: bool) -> Self {
        match set {
            true => self.query(name, ""),
            false => self,
        }
    }

    /// A JSON body.
    pub(crate) fn json(self, body: &Value) -> Self {
        self.bytes(body.to_string())
    }

    /// A body as it is.
    pub(crate) fn bytes(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// How long the answer may take.
    pub(crate) fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sends it and reads the whole answer, whatever its status.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked or does not answer in time.
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

    /// Like [`Ask::send`], for answers that have to be a success.
    ///
    /// # Errors
    ///
    /// As there, and [`Unexpected`] for another status.
    pub(crate) async fn ok(self) -> anyhow::Result<Answer> {
        let answer = self.send().await?;
        answer.success()?;
        if let Some(fields) = answer.headers.get(NOT_SERVED) {
            for field in String::from_utf8_lossy(fields.as_bytes()).split(", ") {
                crate::output::warn(&format!("warning: {field} is not served and has no effect"));
            }
        }
        Ok(answer)
    }

    /// The JSON of a success.
    ///
    /// # Errors
    ///
    /// As [`Ask::ok`], and when it is no JSON.
    pub(crate) async fn value(self) -> anyhow::Result<Value> {
        self.ok().await?.value()
    }

    /// The JSON of a success; `None` for what does not exist.
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

    /// Sends it, and returns a successful answer of which the body is read piece by piece.
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

    /// As Go's client names a request in errors: `Get "http://127.0.0.1:8500/v1/kv/x"`.
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

    /// Path and parameters. What a question says itself wins over what all carry.
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
            match &api.address.place {
                Place::Unix(path) => {
                    let shown = path.display();
                    let stream = UnixStream::connect(path).await;
                    let stream = stream.map_err(|error| dial("unix", &shown.to_string(), error))?;
                    Ok(http_client::send_over(stream, request, deadline).await?)
                }
                Place::Tcp { authority, .. } => {
                    let connecting = TcpStream::connect(authority.as_str());
                    let stream = tokio::time::timeout_at(deadline, connecting).await;
                    let stream =
                        stream.map_err(|_| anyhow!("dial tcp {authority}: i/o timeout"))?;
                    let stream = stream.map_err(|error| dial("tcp", authority, error))?;
                    let Some((config, name)) = &api.tls else {
                        return Ok(http_client::send_over(stream, request, deadline).await?);
                    };
                    let connector = TlsConnector::from(Arc::clone(config));
                    let stream = connector.connect(name.clone(), stream).await?;
                    Ok(http_client::send_over(stream, request, deadline).await?)
                }
            }
        };
        let reply: anyhow::Result<Reply> = reply.await;
        reply.context(what)
    }
}

/// An error of connecting, in the words of Go.
fn dial(network: &str, address: &str, error: std::io::Error) -> anyhow::Error {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => {
            anyhow!("dial {network} {address}: connect: connection refused")
        }
        ErrorKind::NotFound => {
            anyhow!("dial {network} {address}: connect: no such file or directory")
        }
        _ => anyhow!("dial {network} {address}: {error}"),
    }
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// # Errors
    ///
    /// [`Unexpected`] for a status that is no success.
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
    /// When it is none.
    pub(crate) fn value(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.body).context("the answer is not JSON")
    }

    /// The index of the state that it shows.
    pub(crate) fn index(&self) -> u64 {
        index(&self.headers)
    }
}

/// The index of the state that an answer shows, 0 where it does not say.
pub(crate) fn index(headers: &HeaderMap) -> u64 {
    let value = headers.get("x-consul-index");
    let value = value.and_then(|value| value.to_str().ok());
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// A part of a URL.
pub(crate) fn encoded(text: &str) -> String {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    let of = |byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(of).collect()
}

/// A path of which the slashes separate parts, as keys have them.
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

    #[test]
    fn a_question_carries_what_all_carry() {
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
