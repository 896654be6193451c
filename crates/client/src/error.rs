//! Errors between a session and its servers, and their classification.

use std::error::Error;
use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use tonic::{Code, Status};

/// Servers' message for an unknown token. A server that has not replicated a new token yet returns
/// it, too.
const NOT_FOUND: &str = "ACL not found";

/// Messages of Consul (with code INTERNAL) and `legate-server` if the service of a dataplane is not
/// a proxy.
const NO_PROXY: [&str; 2] = [
    "service must be a sidecar proxy or gateway",
    "is not a proxy: its Kind is",
];

/// Why there is no connection. The text contains the failure, the address, and the setting to
/// check.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct SessionError {
    /// Subject of the error.
    pub kind: ErrorKind,
    /// The status code for metrics; `None` if no server was involved.
    pub code: Option<Code>,
    /// The message, without secrets.
    pub text: String,
}

/// Subject of a [`SessionError`], which determines the reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A server's certificate.
    Untrusted,
    /// The token, or the credentials of a login.
    Rejected,
    /// The request; every server would refuse it.
    Invalid,
    /// A call that the server does not support.
    Unsupported,
    /// A server that no TCP connection could be made to: nothing listens there, or its host is away.
    Unreachable,
    /// A server, the path to it, or the discovery of servers.
    Server,
    /// The session has been closed.
    Closed,
}

impl SessionError {
    pub(crate) fn new(
        kind: ErrorKind,
        code: impl Into<Option<Code>>,
        text: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            code: code.into(),
            text: text.into(),
        }
    }

    /// A connection attempt failed.
    pub(crate) fn dial(server: SocketAddr, reason: impl Display) -> Self {
        let text = format!("cannot connect to server {server}: {reason}");
        Self::new(ErrorKind::Server, Code::Unavailable, text)
    }

    /// No TCP connection could be made.
    pub(crate) fn unreachable(server: SocketAddr, reason: impl Display) -> Self {
        Self {
            kind: ErrorKind::Unreachable,
            ..Self::dial(server, reason)
        }
    }

    /// The connection was lost.
    pub(crate) fn lost(server: SocketAddr) -> Self {
        let text = format!("the connection to server {server} was lost");
        Self::new(ErrorKind::Server, Code::Unavailable, text)
    }

    /// The server did not respond in time.
    pub(crate) fn timeout(server: SocketAddr, call: &str, after: Duration) -> Self {
        let text = format!("server {server} did not answer {call} within {after:?}");
        Self::new(ErrorKind::Server, Code::DeadlineExceeded, text)
    }

    /// One of the session's own calls failed, or the connection broke.
    pub(crate) fn call(server: SocketAddr, call: &str, status: &Status) -> Self {
        let (code, message) = (status.code(), describe(status));
        let text = format!("server {server} failed {call}: {code:?}: {message}");
        Self::new(kind(status), code, text)
    }

    /// The session is closed.
    pub(crate) fn closed() -> Self {
        let text = "the session with the servers has been closed";
        Self::new(ErrorKind::Closed, None, text)
    }

    /// Appends the settings to check.
    pub(crate) fn with(mut self, hint: Option<&str>) -> Self {
        if let Some(hint) = hint {
            self.text.push_str("; ");
            self.text.push_str(hint);
        }
        self
    }
}

/// Subject of the status of one of the session's own calls.
pub(crate) fn kind(status: &Status) -> ErrorKind {
    match status.code() {
        _ if is_not_found(status) => ErrorKind::Rejected,
        // An error of the connection, not of the call.
        _ if status.source().is_some() => ErrorKind::Server,
        Code::Unauthenticated | Code::PermissionDenied => ErrorKind::Rejected,
        Code::InvalidArgument | Code::FailedPrecondition => ErrorKind::Invalid,
        Code::Unimplemented => ErrorKind::Unsupported,
        _ => ErrorKind::Server,
    }
}

/// Text of a status, including causes that the text lacks.
pub(crate) fn describe(status: &Status) -> String {
    with_causes(status.message().to_owned(), status.source())
}

/// Text of an error, including causes that the text lacks.
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

/// How callers react to an error of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Retrying cannot help: the request or the configuration is wrong.
    Permanent,
    /// The token is not, or no longer, accepted: the session logs in again. Wait for its next
    /// connection.
    Credentials,
    /// This server cannot serve, but another one may: the session switches. Wait for its next
    /// connection.
    ThisServer,
    /// Probably temporary: retry with a delay.
    Transient,
}

/// Classifies the error of any call to a server.
///
/// A status that was created locally because the connection broke is [`ErrorClass::ThisServer`],
/// whatever its code. An expired deadline of the caller is not.
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
        _ => ErrorClass::Transient,
    }
}

/// Whether the server reports that the service of the dataplane (`-proxy-id`) is not a proxy.
#[must_use]
pub fn is_no_proxy(status: &Status) -> bool {
    NO_PROXY.iter().any(|text| status.message().contains(text))
}

fn is_not_found(status: &Status) -> bool {
    status.message().contains(NOT_FOUND)
}

/// Whether the status was created locally, from an error of the connection: only those have a
/// source.
fn is_local_failure(status: &Status) -> bool {
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
    fn a_service_that_is_not_a_proxy_stays_one() {
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

    #[test]
    fn every_code_of_a_sessions_own_call_is_about_something() {
        for number in 1..=16 {
            let code = Code::from_i32(number);
            let wanted = match code {
                Code::Unauthenticated | Code::PermissionDenied => ErrorKind::Rejected,
                Code::InvalidArgument | Code::FailedPrecondition => ErrorKind::Invalid,
                Code::Unimplemented => ErrorKind::Unsupported,
                _ => ErrorKind::Server,
            };
            assert_eq!(kind(&Status::new(code, "text")), wanted, "{code:?}");
            let not_found = Status::new(code, "rpc error: ACL not found");
            assert_eq!(kind(&not_found), ErrorKind::Rejected, "{code:?}");
            let mut local = Status::new(code, "transport error");
            local.set_source(Arc::new(io::Error::from(io::ErrorKind::BrokenPipe)));
            assert_eq!(kind(&local), ErrorKind::Server, "{code:?}");
        }
    }
}
