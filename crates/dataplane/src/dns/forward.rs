//! Forwards a query to a server: selects the connection, sets the deadline, and retries once.
//!
//! It inspects neither queries nor answers, and uses at most two connections.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use legate_api::dns::{Protocol, QueryRequest};
use legate_api::metadata;
use legate_client::{Connection, ErrorClass, Session, SessionError, SessionState, classify};
use tokio::time::{Instant, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status};

use super::message::{Query, Reason, Transport};
use super::options::{DnsError, DnsOptions, Limits};

/// Why there is no answer from a server.
#[derive(Debug)]
pub(super) struct ForwardError {
    /// Reason shown to the client.
    pub(super) reason: Reason,
    /// Whether this is an outage: no server has answered the query or refused the session.
    pub(super) is_outage: bool,
    pub(super) text: String,
}

/// Sends queries to the current server.
#[derive(Debug)]
pub(super) struct Forwarder {
    session: Session,
    namespace: MetadataValue<Ascii>,
    partition: MetadataValue<Ascii>,
    limits: Limits,
    lost_at: Mutex<Option<Instant>>,
}

impl Forwarder {
    /// Fails if the namespace or the partition cannot be sent as metadata.
    pub(super) fn new(session: Session, options: &DnsOptions) -> Result<Self, DnsError> {
        let value = |setting: &str, value: &str| {
            let sendable = value.parse().ok().filter(|_| value.is_ascii());
            sendable.ok_or_else(|| {
                DnsError(format!(
                    "the {setting} {value:?} cannot be sent: use visible ASCII characters"
                ))
            })
        };
        Ok(Self {
            session,
            namespace: value("namespace", &options.namespace)?,
            partition: value("partition", &options.partition)?,
            limits: options.limits.clone(),
            lost_at: Mutex::default(),
        })
    }

    /// Queries the current server, and the next one if this one is gone. Takes at most
    /// [`Limits::query`].
    pub(super) async fn forward(&self, query: &Query) -> Result<Bytes, ForwardError> {
        let deadline = Instant::now() + self.limits.query;
        // If the connection was lost a moment ago, wait for the next one.
        let lost_at = self.lost_at().unwrap_or_else(Instant::now);
        let until = deadline.min(lost_at + self.limits.connection);
        let first = self.connection(None, until).await;
        let first = first.map_err(|state| unconnected(&state))?;
        let status = match self.ask(&first, query, deadline).await {
            Ok(answer) => return Ok(answer),
            Err(status) => status,
        };
        if let Some(wait) = wait_for_another(&status, self.limits.connection) {
            let until = deadline.min(Instant::now() + wait);
            if let Ok(second) = self.connection(Some(&first), until).await {
                let answer = self.ask(&second, query, deadline).await;
                return answer.map_err(|status| self.error(&second, &status, deadline));
            }
        }
        Err(self.error(&first, &status, deadline))
    }

    /// Tracks since when the session has no connection. Ends with the session.
    pub(super) async fn follow(&self) {
        let mut states = self.session.subscribe();
        loop {
            let connected = matches!(*states.borrow_and_update(), SessionState::Connected(_));
            {
                let mut lost_at = self.lost_at();
                *lost_at = since(*lost_at, connected, Instant::now());
            }
            if states.changed().await.is_err() {
                return;
            }
        }
    }

    fn lost_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.lost_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection other than the failed one, or the session's state at `until`.
    async fn connection(
        &self,
        failed: Option<&Connection>,
        until: Instant,
    ) -> Result<Connection, SessionState> {
        let failed = failed.map(|connection| connection.generation);
        let mut states = self.session.subscribe();
        let settled = states.wait_for(|state| match state {
            SessionState::Connected(connection) => Some(connection.generation) != failed,
            SessionState::Connecting { .. } => false,
            SessionState::Failed(_) | SessionState::Closed => true,
        });
        _ = timeout_at(until, settled).await;
        match self.session.state() {
            SessionState::Connected(connection) if Some(connection.generation) != failed => {
                Ok(connection)
            }
            state => Err(state),
        }
    }

    /// One call. Failures are reported to the session.
    async fn ask(
        &self,
        connection: &Connection,
        query: &Query,
        deadline: Instant,
    ) -> Result<Bytes, Status> {
        // Servers truncate answers to the limit of the protocol and the query.
        let protocol = match query.transport {
            Transport::Udp => Protocol::Udp,
            Transport::Tcp => Protocol::Tcp,
        };
        let message = QueryRequest {
            msg: query.message.clone(),
            protocol: protocol.into(),
        };
        let mut request = Request::new(message);
        let headers = request.metadata_mut();
        headers.insert(metadata::NAMESPACE, self.namespace.clone());
        headers.insert(metadata::PARTITION, self.partition.clone());
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        let mut client = connection.dns();
        let answer = match timeout_at(deadline, client.query(request)).await {
            Ok(answer) => answer.map(|answer| answer.into_inner().msg),
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        };
        answer.inspect_err(|status| self.session.report(connection, status))
    }

    fn error(&self, connection: &Connection, status: &Status, deadline: Instant) -> ForwardError {
        let server = connection.server;
        // The deadline may expire here, in the channel or at the server.
        if status.code() == Code::DeadlineExceeded || Instant::now() >= deadline {
            let after = self.limits.query;
            return ForwardError {
                reason: Reason::Timeout,
                is_outage: true,
                text: format!("server {server} did not answer within {after:?}"),
            };
        }
        failed(server, status)
    }
}

/// The server answered with an error, or the connection broke.
fn failed(server: SocketAddr, status: &Status) -> ForwardError {
    let (code, message) = (status.code(), status.message());
    ForwardError {
        reason: Reason::ServerError,
        is_outage: classify(status) == ErrorClass::ThisServer,
        text: format!("server {server} failed the query: {code:?}: {message}"),
    }
}

/// There is no connection, or servers refuse the session.
fn unconnected(state: &SessionState) -> ForwardError {
    let (error, is_outage) = match state {
        SessionState::Failed(error) => (error.to_string(), false),
        SessionState::Closed => (
            "the session with the servers has been closed".to_owned(),
            false,
        ),
        SessionState::Connecting {
            last_error: Some(error),
        } => (error.to_string(), !is_refusal(error)),
        _ => ("no server has been reached yet".to_owned(), true),
    };
    ForwardError {
        reason: Reason::NoServer,
        is_outage,
        text: format!("there is no connection to a server: {error}"),
    }
}

/// Whether servers are reachable but refuse the session.
fn is_refusal(error: &SessionError) -> bool {
    use legate_client::ErrorKind::{Invalid, Rejected};
    error.code.is_some() && matches!(error.kind, Rejected | Invalid)
}

/// How long to wait for another connection before the retry. With zero, the retry happens only if
/// there already is one. `None` if other servers would give the same answer.
fn wait_for_another(status: &Status, most: Duration) -> Option<Duration> {
    match classify(status) {
        ErrorClass::Permanent => None,
        ErrorClass::Transient => Some(Duration::ZERO),
        ErrorClass::ThisServer | ErrorClass::Credentials => Some(most),
    }
}

/// Since when there is no connection; `None` while there is one.
///
/// A server change takes a moment, which queries can wait for. An outage takes minutes: queries that
/// waited then would delay their clients for nothing and occupy slots.
fn since(lost_at: Option<Instant>, connected: bool, now: Instant) -> Option<Instant> {
    (!connected).then_some(lost_at.unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_errors_that_another_connection_may_fix_are_retried() {
        let wait = |code, text: &str| wait_for_another(&Status::new(code, text), SECOND);
        assert_eq!(wait(Code::Unavailable, ""), Some(SECOND));
        assert_eq!(wait(Code::ResourceExhausted, ""), Some(SECOND));
        assert_eq!(wait(Code::Unauthenticated, ""), Some(SECOND));
        assert_eq!(wait(Code::Unknown, "ACL not found"), Some(SECOND));
        assert_eq!(wait(Code::Internal, "bad message"), Some(Duration::ZERO));
        assert_eq!(wait(Code::DeadlineExceeded, ""), Some(Duration::ZERO));
        assert_eq!(wait(Code::PermissionDenied, ""), None);
        assert_eq!(wait(Code::InvalidArgument, ""), None);
    }

    #[test]
    fn an_outage_means_that_no_server_has_responded() {
        use legate_client::ErrorKind::{Rejected, Server};

        let server = ([127, 0, 0, 1], 8502).into();
        let is_outage = |code| failed(server, &Status::new(code, "")).is_outage;
        assert!(is_outage(Code::Unavailable));
        assert!(is_outage(Code::ResourceExhausted));
        assert!(!is_outage(Code::PermissionDenied));
        assert!(!is_outage(Code::Unauthenticated));
        assert!(!is_outage(Code::Internal));
        let is_refusal = |kind, code| {
            let text = String::new();
            is_refusal(&SessionError { kind, code, text })
        };
        assert!(!is_refusal(Server, Some(Code::Unavailable)));
        assert!(is_refusal(Rejected, Some(Code::Unauthenticated)));
        let unreadable_bearer_token = is_refusal(Rejected, None);
        assert!(!unreadable_bearer_token, "no server was queried");
    }

    #[test]
    fn an_outage_lasts_from_the_first_to_the_last_unconnected_state() {
        let start = Instant::now();
        let lost_at = since(None, false, start);
        assert_eq!(lost_at, Some(start));
        assert_eq!(since(lost_at, false, start + SECOND), lost_at);
        assert_eq!(since(lost_at, true, start + 3 * SECOND), None);
        let again = start + 5 * SECOND;
        assert_eq!(since(None, false, again), Some(again));
    }
}
