//! What can go wrong between `legate-k8s` and the servers.

use std::path::PathBuf;
use std::time::Duration;

use http::{Method, StatusCode};
use legate_identity::tls::TlsError;

/// A request that did not do what it was made for.
#[derive(Debug, thiserror::Error)]
pub enum ServersError {
    /// Neither a DNS name nor an IP address.
    #[error("{host:?} is no server address (--server-addresses): give a DNS name or an IP address")]
    Host {
        /// What was given.
        host: String,
    },
    /// TLS cannot be set up: for example the CA file cannot be read.
    #[error("TLS to the servers: {0}")]
    Tls(#[from] TlsError),
    /// The CA's PEM is not there yet.
    #[error("the CA of the servers is not known yet")]
    NoCa,
    /// No address of the servers took the request.
    #[error("cannot reach the servers for {method} {url}: {reason}")]
    Unreachable {
        /// The request.
        method: Method,
        /// The request.
        url: String,
        /// What the system or the TLS library says.
        reason: String,
    },
    /// Nothing was answered in time. What was asked for may have been done.
    #[error("no answer to {method} {url} within {} s", after.as_secs())]
    Timeout {
        /// The request.
        method: Method,
        /// The request.
        url: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// A server answered with a status that is no success.
    #[error("{method} {url} was answered with {status}: {text}")]
    Refused {
        /// The request.
        method: Method,
        /// The request.
        url: String,
        /// The server's status.
        status: StatusCode,
        /// The server's reason.
        text: String,
    },
    /// A success whose body is not what this call answers.
    #[error("{method} {url} was answered with something unexpected: {reason}")]
    BadAnswer {
        /// The request.
        method: Method,
        /// The request.
        url: String,
        /// What the decoder says.
        reason: String,
    },
    /// What is to be sent cannot be written as JSON.
    #[error("the body for {path} is no JSON: {reason}")]
    Body {
        /// The path.
        path: String,
        /// What the encoder says.
        reason: String,
    },
    /// A token file cannot be used.
    #[error("cannot use {} ({setting}): {reason}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The setting that names it.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The servers refuse the login.
    #[error("the servers refuse the login by auth method {method:?} with {status}: {text}")]
    Login {
        /// Name of the auth method.
        method: String,
        /// The server's status.
        status: StatusCode,
        /// The server's reason.
        text: String,
    },
}

impl ServersError {
    /// The server's reason, where one has read the request and said no to just this: another
    /// request may well succeed now, and this one will not before something is changed.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        match self {
            ServersError::Refused { status, text, .. } if !is_unavailable(*status, text) => {
                Some(text)
            }
            _ => None,
        }
    }

    /// The status, where a server answered.
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

/// Whether an answer says that the server cannot do anything at the moment. Consul answers 500 while
/// it has no leader, and 429 when there are too many requests.
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
        // The token is not known any more, or not yet on this server.
        StatusCode::FORBIDDEN => text.contains("ACL not found"),
        _ => false,
    }
}
