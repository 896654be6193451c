//! Errors between a session and its servers, and what follows from errors of calls.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tonic::{Code, Status};

/// The text of servers about a token that they do not know. A server that has not replicated a new
/// token yet uses it, too.
const NOT_FOUND: &str = "ACL not found";

/// The texts of Consul (with code INTERNAL) and `legate-server` when the service of a dataplane is
/// not a proxy.
const NO_PROXY: [&str; 2] = [
    "service must be a sidecar proxy or gateway",
    "is not a proxy: its Kind is",
];

/// Why there is no connection. Says what failed, where, and which setting to look at.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// A host has no addresses.
    #[error("cannot find servers: {host:?} (-addresses) does not resolve: {reason}")]
    Resolve {
        /// The host.
        host: String,
        /// What the resolver says.
        reason: String,
    },
    /// The command did not print addresses.
    #[error("cannot find servers with the command {program:?} (-addresses): {reason}")]
    Command {
        /// The program. Its arguments are left out: those of cloud look-ups hold credentials.
        program: String,
        /// What is wrong with it or its output.
        reason: String,
    },
    /// No connection could be made.
    #[error("cannot connect to server {server}: {reason}")]
    Dial {
        /// The server.
        server: SocketAddr,
        /// What the network or TLS says.
        reason: String,
    },
    /// The server has a certificate that does not verify.
    #[error(
        "the certificate of server {server} is not trusted: {reason}; check -ca-certs and -tls-server-name"
    )]
    Untrusted {
        /// The server.
        server: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// The server does not answer.
    #[error("server {server} did not answer {call} within {after:?}")]
    Timeout {
        /// The server.
        server: SocketAddr,
        /// What it was asked.
        call: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// The server answered with an error, or the connection broke.
    #[error("server {server} failed {call}: {code:?}: {message}")]
    Call {
        /// The server.
        server: SocketAddr,
        /// What it was asked.
        call: &'static str,
        /// Its answer's code.
        code: Code,
        /// Its answer's text.
        message: String,
    },
    /// The connection is gone.
    #[error("the connection to server {server} was lost")]
    Lost {
        /// The server.
        server: SocketAddr,
    },
    /// The server is too old.
    #[error(
        "server {server} cannot configure proxies: it lacks the feature ENVOY_BOOTSTRAP_CONFIGURATION \
         (Consul has it since 1.14)"
    )]
    MissingFeature {
        /// The server.
        server: SocketAddr,
    },
    /// The server needs a token and none is configured.
    #[error(
        "server {server} wants an ACL token ({message}) and none is configured: set -credential-type to \
         static and -static-token, or -credential-type to login"
    )]
    TokenWanted {
        /// The server.
        server: SocketAddr,
        /// The server's text.
        message: String,
    },
    /// The static token is not accepted.
    #[error(
        "server {server} rejects the ACL token ({message}): check -static-token, or whether \
         -credential-type should be login"
    )]
    TokenRejected {
        /// The server.
        server: SocketAddr,
        /// The server's text.
        message: String,
    },
    /// The token of a login is not accepted, or no longer.
    #[error(
        "server {server} rejects the ACL token of the login with auth method {auth_method:?} (-login-auth-method): {message}"
    )]
    LoginTokenRejected {
        /// The server.
        server: SocketAddr,
        /// Auth method of the login (`-login-auth-method`).
        auth_method: String,
        /// The server's text.
        message: String,
    },
    /// The login is refused.
    #[error(
        "server {server} refuses the login with auth method {auth_method:?} (-login-auth-method) and {bearer}: \
         {code:?}: {message}"
    )]
    LoginRefused {
        /// The server.
        server: SocketAddr,
        /// Auth method of the login.
        auth_method: String,
        /// Where the bearer token came from, with the name of the setting.
        bearer: String,
        /// The answer's code.
        code: Code,
        /// The server's text.
        message: String,
    },
    /// The file with the bearer token cannot be used.
    #[error("cannot read the bearer token from {} (-login-bearer-token-path): {reason}", path.display())]
    BearerFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The server answered a login without a token.
    #[error("server {server} answered the login with auth method {auth_method:?} without a token")]
    NoSecret {
        /// The server.
        server: SocketAddr,
        /// Auth method of the login.
        auth_method: String,
    },
    /// The session is closed.
    #[error("the session with the servers has been closed")]
    Closed,
}

impl SessionError {
    /// The status code that metrics count the error by; `None` when no server was involved.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Dial { .. } | Self::Untrusted { .. } | Self::Lost { .. } => {
                Some(Code::Unavailable)
            }
            Self::Timeout { .. } => Some(Code::DeadlineExceeded),
            Self::Call { code, .. } | Self::LoginRefused { code, .. } => Some(*code),
            Self::TokenWanted { .. }
            | Self::TokenRejected { .. }
            | Self::LoginTokenRejected { .. } => Some(Code::Unauthenticated),
            Self::Resolve { .. }
            | Self::Command { .. }
            | Self::MissingFeature { .. }
            | Self::BearerFile { .. }
            | Self::NoSecret { .. }
            | Self::Closed => None,
        }
    }

    /// Adds a hint to errors about the connection.
    pub(crate) fn with(mut self, hint: Option<&str>) -> Self {
        if let (Some(hint), Self::Dial { reason: text, .. } | Self::Call { message: text, .. }) =
            (hint, &mut self)
        {
            text.push_str("; ");
            text.push_str(hint);
        }
        self
    }

    pub(crate) fn call(server: SocketAddr, call: &'static str, status: &Status) -> Self {
        Self::Call {
            server,
            call,
            code: status.code(),
            message: describe(status),
        }
    }
}

/// Text of a status, with its causes where the text does not have them.
pub(crate) fn describe(status: &Status) -> String {
    with_causes(status.message().to_owned(), status.source())
}

/// Text of an error, with its causes where the text does not have them.
pub(crate) fn text_of(error: &dyn Error) -> String {
    with_causes(error.to_string(), error.source())
}

fn with_causes(mut text: String, mut cause: Option<&dyn Error>) -> String {
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = if text.is_empty() {
                more
            } else {
                format!("{text}: {more}")
            };
        }
        cause = error.source();
    }
    text
}

/// What the caller does about an error of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Asking again cannot help: the request or the configuration is wrong.
    Permanent,
    /// The token is not, or no longer, accepted: the session logs in again. Wait for its next
    /// connection.
    Credentials,
    /// This server cannot serve, another one may: the session moves. Wait for its next connection.
    ThisServer,
    /// Probably temporary: ask again after a while.
    Transient,
}

/// Classifies the error of any call to a server.
///
/// A status that was made here because the connection broke is [`ErrorClass::ThisServer`], whatever
/// its code; a deadline of the caller is not.
#[must_use]
pub fn classify(status: &Status) -> ErrorClass {
    if is_not_found(status) {
        return ErrorClass::Credentials;
    }
    if is_no_proxy(status) {
        return ErrorClass::Permanent;
    }
    match status.code() {
        Code::Unauthenticated => ErrorClass::Credentials,
        Code::ResourceExhausted | Code::Unavailable => ErrorClass::ThisServer,
        _ if is_local_failure(status) => ErrorClass::ThisServer,
        Code::PermissionDenied
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => ErrorClass::Permanent,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::Aborted
        | Code::Internal
        | Code::DataLoss => ErrorClass::Transient,
    }
}

/// Whether the server says that the service of the dataplane (`-proxy-id`) is not a proxy.
#[must_use]
pub fn is_no_proxy(status: &Status) -> bool {
    NO_PROXY.iter().any(|text| status.message().contains(text))
}

pub(crate) fn is_not_found(status: &Status) -> bool {
    status.message().contains(NOT_FOUND)
}

/// Whether the status was made here, from an error of the connection: only those have a source.
pub(crate) fn is_local_failure(status: &Status) -> bool {
    let mut cause = status.source();
    let local = cause.is_some();
    while let Some(error) = cause {
        if error.is::<tonic::TimeoutExpired>() {
            return false;
        }
        cause = error.source();
    }
    local
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn classes_of_codes() {
        let class = |code| classify(&Status::new(code, "text"));
        for code in [Code::ResourceExhausted, Code::Unavailable] {
            assert_eq!(class(code), ErrorClass::ThisServer);
        }
        assert_eq!(class(Code::Unauthenticated), ErrorClass::Credentials);
        for code in [
            Code::PermissionDenied,
            Code::InvalidArgument,
            Code::FailedPrecondition,
            Code::OutOfRange,
            Code::Unimplemented,
        ] {
            assert_eq!(class(code), ErrorClass::Permanent);
        }
        for code in [
            Code::NotFound,
            Code::Aborted,
            Code::Internal,
            Code::DeadlineExceeded,
            Code::Cancelled,
        ] {
            assert_eq!(class(code), ErrorClass::Transient);
        }
        for code in [Code::PermissionDenied, Code::NotFound, Code::Unknown] {
            let status = Status::new(code, "rpc error: ACL not found");
            assert_eq!(classify(&status), ErrorClass::Credentials, "{code:?}");
        }
    }

    #[test]
    fn a_service_that_is_no_proxy_stays_one() {
        for status in [
            Status::internal("failed to watch proxy: service must be a sidecar proxy or gateway"),
            Status::invalid_argument(
                "service \"web\" on node \"n1\" is not a proxy: its Kind is \"\"",
            ),
        ] {
            assert!(is_no_proxy(&status));
            assert_eq!(classify(&status), ErrorClass::Permanent);
        }
        assert!(!is_no_proxy(&Status::internal("failed to watch proxy")));
    }

    #[test]
    fn a_broken_connection_is_the_servers_fault_whatever_its_code() {
        let mut status = Status::unknown("transport error");
        status.set_source(Arc::new(io::Error::from(io::ErrorKind::ConnectionReset)));
        assert_eq!(classify(&status), ErrorClass::ThisServer);
        assert_eq!(describe(&status), "transport error: connection reset");
        let mut status = Status::cancelled("Timeout expired");
        status.set_source(Arc::new(tonic::TimeoutExpired(())));
        assert_eq!(classify(&status), ErrorClass::Transient);
    }
}
