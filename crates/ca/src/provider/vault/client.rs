//! HTTP client for Vault: one connection per request, with a timeout and a size limit for responses.
//! Never retries or follows redirects.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST};
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode, Uri};
use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_model::Secret;
use legate_runtime::http_client::{Body, send_over};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use crate::CaError;
use crate::settings::VaultSettings;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 1024 * 1024;
/// The maximum part of an unexpected response that errors quote, in bytes.
const MAX_QUOTED: usize = 200;

/// Refusals by Vault, and failures of requests. Never contains a token or key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VaultError {
    /// There was no response.
    #[error("Vault does not answer to {request}: {reason}; check its address and that it is up")]
    Unreachable { request: String, reason: String },
    /// Vault refused the request.
    #[error("Vault answers {status} to {request}: {reason}")]
    Refused {
        request: String,
        status: StatusCode,
        reason: String,
    },
    /// The response is invalid.
    #[error("Vault's answer about {about} cannot be used: {reason}")]
    Answer { about: String, reason: String },
    /// The credentials for a login cannot be read.
    #[error("cannot log in to Vault: {reason}")]
    Login { reason: String },
}

impl VaultError {
    pub(super) fn answer(about: &str, reason: impl Into<String>) -> Self {
        Self::Answer {
            about: about.to_owned(),
            reason: reason.into(),
        }
    }

    pub(super) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the refusal contains this text.
    pub(super) fn contains(&self, words: &str) -> bool {
        matches!(self, Self::Refused { reason, .. } if reason.contains(words))
    }
}

impl From<VaultError> for CaError {
    fn from(error: VaultError) -> CaError {
        let is_away = match &error {
            // Sealed, uninitialised and standby nodes answer with such statuses, and so do load balancers.
            VaultError::Refused { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            error => matches!(error, VaultError::Unreachable { .. }),
        };
        CaError::Vault {
            reason: error.to_string(),
            is_away,
        }
    }
}

/// The address of a Vault.
pub(crate) struct Client {
    host: String,
    port: u16,
    authority: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Client {
    /// Reads the files of the TLS settings.
    ///
    /// # Errors
    ///
    /// Names the setting that cannot be used.
    pub(super) fn new(settings: &VaultSettings) -> Result<Self, String> {
        let address = &settings.address;
        let wrong =
            |reason: &str| format!("Address {address:?} is not a valid Vault URL: {reason}");
        let uri: Uri = address
            .parse()
            .map_err(|error| wrong(&format!("{error}")))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("it must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') || !matches!(uri.path(), "" | "/") {
            return Err(wrong("it must have neither a user nor a path"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let tls = match tls {
            false => None,
            true => {
                let config = client_config(&ClientTls {
                    ca: settings.ca.clone(),
                    client_cert: settings.client_cert.clone(),
                    insecure_skip_verify: settings.skip_verify,
                    alpn_h2: false,
                });
                let config = config.map_err(|error| error.to_string())?;
                let name = match settings.server_name.is_empty() {
                    true => &host,
                    false => &settings.server_name,
                };
                let name = server_name(name).map_err(|error| error.to_string())?;
                Some((config, name))
            }
        };
        Ok(Self {
            port: uri
                .port_u16()
                .unwrap_or(if tls.is_some() { 443 } else { 80 }),
            authority: authority.to_string(),
            host,
            tls,
        })
    }

    /// Sends a request to `/v1/<path>`. The response is JSON, or a text where Vault returns one.
    ///
    /// # Errors
    ///
    /// When there is no response, or it is not successful.
    pub(super) async fn call(
        &self,
        method: Method,
        namespace: &str,
        path: &str,
        token: Option<&Secret>,
        body: Option<Value>,
    ) -> Result<Value, VaultError> {
        let name = format!("{method} {path}");
        let unreachable = |reason: String| VaultError::Unreachable {
            request: name.clone(),
            reason,
        };
        let path: PathAndQuery = format!("/v1/{path}")
            .parse()
            .map_err(|_| VaultError::answer(path, "the path is not valid in a request"))?;
        let mut request = Request::builder()
            .method(method)
            .uri(Uri::from(path))
            .header(HOST, &self.authority)
            .header("X-Vault-Request", "true");
        if !namespace.is_empty() {
            request = request.header("X-Vault-Namespace", namespace);
        }
        if let Some(token) = token {
            request = request.header("X-Vault-Token", token.expose());
        }
        let body = match body {
            None => Body::default(),
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Body::from(body.to_string())
            }
        };
        let request = request.body(body).map_err(|_| VaultError::Login {
            reason: "the token or the namespace is not valid in a header".to_owned(),
        })?;
        let (status, body) = self.exchange(request).await.map_err(unreachable)?;
        read(name, status, &body)
    }

    async fn exchange(&self, request: Request<Body>) -> Result<(StatusCode, Vec<u8>), String> {
        let deadline = Instant::now() + TIMEOUT;
        let late = |_| "timed out".to_owned();
        let text = |error: std::io::Error| error.to_string();
        let stream = async {
            match self.host.parse::<IpAddr>() {
                Ok(ip) => TcpStream::connect((ip, self.port)).await,
                Err(_) => TcpStream::connect((self.host.as_str(), self.port)).await,
            }
        };
        let stream = timeout_at(deadline, stream).await.map_err(late)?;
        let stream = stream.map_err(text)?;
        let reply = match &self.tls {
            None => send_over(stream, request, deadline).await,
            Some((config, name)) => {
                let connector = TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name.clone(), stream);
                let stream = timeout_at(deadline, stream).await.map_err(late)?;
                send_over(stream.map_err(text)?, request, deadline).await
            }
        };
        let reply = reply.map_err(|error| error.to_string())?;
        let status = reply.status;
        let body = reply.body(MAX_RESPONSE, deadline).await;
        Ok((status, body.map_err(|error| error.to_string())?.to_vec()))
    }
}

fn read(request: String, status: StatusCode, body: &[u8]) -> Result<Value, VaultError> {
    let text = String::from_utf8_lossy(body);
    let json: Option<Value> = serde_json::from_slice(body).ok();
    if status.is_success() {
        // The certificates of a mount are returned as plain text.
        return Ok(json.unwrap_or_else(|| text.into_owned().into()));
    }
    let errors = json.as_ref().and_then(|json| json["errors"].as_array());
    let errors: Vec<&str> = errors
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let reason = match errors.is_empty() {
        // Vault formats lists with line breaks.
        false => words(&errors.join(", ")),
        true if status.is_redirection() => "redirects are not followed".to_owned(),
        true => text.chars().take(MAX_QUOTED).collect(),
    };
    Err(VaultError::Refused {
        request,
        status,
        reason,
    })
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
