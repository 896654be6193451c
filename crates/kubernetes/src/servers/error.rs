//! Errors of requests from `legate-k8s` to the servers.

use std::path::PathBuf;
use std::time::Duration;

use http::{Method, StatusCode};
use legate_identity::tls::TlsError;

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum ServersError {
    /// Not a DNS name or IP address.
    #[error(
        "{host:?} is not a server address (--server-addresses): use a DNS name or an IP address"
    )]
    Host {
        /// The given value.
        host: String,
    },
    /// TLS could not be configured, for example because the CA file cannot be read.
    #[error("TLS to the servers: {0}")]
    Tls(#[from] TlsError),
    /// The CA's PEM is not available yet.
    #[error("the CA of the servers is not known yet")]
    NoCa,
    /// No server address accepted the request.
    #[error("cannot reach the servers for {method} {url}: {reason}")]
    Unreachable {
        /// The request's method.
        method: Method,
        /// The request's URL.
        url: String,
        /// The error of the system or the TLS library.
        reason: String,
    },
    /// No response in time. The request may have been executed.
    #[error("no answer to {method} {url} within {} s", after.as_secs())]
    Timeout {
        /// The request's method.
        method: Method,
        /// The request's URL.
        url: String,
        /// The timeout.
        after: Duration,
    },
    /// A server responded with an error status.
    #[error("{method} {url} was answered with {status}: {text}")]
    Refused {
        /// The request's method.
        method: Method,
        /// The request's URL.
        url: String,
        /// The server's status.
        status: StatusCode,
        /// The server's message.
        text: String,
    },
    /// A success with an unexpected body.
    #[error("{method} {url} got an unexpected response: {reason}")]
    BadAnswer {
        /// The request's method.
        method: Method,
        /// The request's URL.
        url: String,
        /// The decoder's error.
        reason: String,
    },
    /// The body could not be serialized.
    #[error("cannot serialize the body for {path}: {reason}")]
    Body {
        /// The path.
        path: String,
        /// The encoder's error.
        reason: String,
    },
    /// A token file is unusable.
    #[error("cannot use {} ({setting}): {reason}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The setting that names it.
        setting: &'static str,
        /// The reason.
        reason: String,
    },
    /// The servers refused the login.
    #[error("the servers refuse the login by auth method {method:?} with {status}: {text}")]
    Login {
        /// Name of the auth method.
        method: String,
        /// The server's status.
        status: StatusCode,
        /// The server's message.
        text: String,
    },
}

impl ServersError {
    /// The server's message, if a server refused this specific request: other requests may succeed,
    /// and this one fails until something changes.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        match self {
            ServersError::Refused { status, text, .. } if !is_unavailable(*status, text) => {
                Some(text)
            }
            _ => None,
        }
    }

    /// The status, if a server responded.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            ServersError::Refused { status, .. } | ServersError::Login { status, .. } => {
                Some(*status)
            }
            _ => None,
        }
    }
}

/// Whether a response means that the server is temporarily unable to serve. Consul answers 500
/// without a leader and 429 for too many requests.
pub(super) fn is_unavailable(status: StatusCode, text: &str) -> bool {
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => true,
        StatusCode::INTERNAL_SERVER_ERROR => {
            let text = text.to_ascii_lowercase();
            ["leader", "rpc error making call: eof", "raft"]
                .iter()
                .any(|word| text.contains(word))
        }
        // The token has expired, or has not reached this server yet.
        StatusCode::FORBIDDEN => text.contains("ACL not found"),
        _ => false,
    }
}
