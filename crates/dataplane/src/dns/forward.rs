//! Takes a query to a server: which connection, how long, and when a second time.
//!
//! It looks neither into queries nor into answers, and never asks more than two connections.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use legate_api::dns::{Protocol, QueryRequest};
use legate_api::metadata;
use legate_client::{Connection, ErrorClass, Session, SessionError, SessionState, classify};
use legate_runtime::CancellationToken;
use tokio::time::{Instant, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status};

use super::message::{Reason, Transport};
use super::{DnsError, DnsOptions};

/// Why there is no answer from a server.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    /// Nobody to ask.
    #[error("there is no connection to a server: {0}")]
    NoServer(String),
    /// Nobody who wants to be asked: servers refuse the session, or it is over.
    #[error("there is no connection to a server that may be asked: {0}")]
    Barred(String),
    /// The query's time is over.
    #[error("server {server} did not answer within {after:?}")]
    Timeout {
        /// Who was asked last.
        server: SocketAddr,
        /// The time that the query had.
        after: Duration,
    },
    /// The server answered with an error, or the connection broke.
    #[error("server {server} failed the query: {code:?}: {message}")]
    Server {
        /// Who was asked last.
        server: SocketAddr,
        /// What that means for the query.
        class: ErrorClass,
        /// Its answer's code.
        code: Code,
        /// Its answer's text.
        message: String,
    },
}

impl ForwardError {
    /// What the client is told.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::NoServer(_) | Self::Barred(_) => Reason::NoServer,
            Self::Timeout { .. } => Reason::Timeout,
            Self::Server { .. } => Reason::ServerError,
        }
    }

    /// Whether servers are away: none has said anything about the query, nor that it wants
    /// nothing to do with it.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            Self::NoServer(_) | Self::Timeout { .. } => true,
            Self::Server { class, .. } => *class == ErrorClass::ThisServer,
            Self::Barred(_) => false,
        }
    }
}

/// Sends queries to the server of the moment.
#[derive(Debug)]
pub(super) struct Forwarder {
    session: Session,
    namespace: MetadataValue<Ascii>,
    partition: MetadataValue<Ascii>,
    /// See [`super::Limits::query`].
    query: Duration,
    /// See [`super::Limits::connection`].
    patience: Duration,
    outage: Outage,
}

impl Forwarder {
    /// Fails when the namespace or the partition cannot be sent.
    pub(super) fn new(session: Session, options: &DnsOptions) -> Result<Self, DnsError> {
        let value = |setting: &'static str, value: &str| {
            let sendable = value.parse().ok().filter(|_| value.is_ascii());
            sendable.ok_or_else(|| DnsError::Tenancy {
                setting,
                value: value.to_owned(),
            })
        };
        Ok(Self {
            session,
            namespace: value("namespace", &options.namespace)?,
            partition: value("partition", &options.partition)?,
            query: options.limits.query,
            patience: options.limits.connection,
            outage: Outage::default(),
        })
    }

    /// Asks the server of the moment, and the next one when this one turns out to be gone.
    /// Takes no longer than [`super::Limits::query`].
    pub(super) async fn forward(
        &self,
        query: &Bytes,
        transport: Transport,
    ) -> Result<Bytes, ForwardError> {
        let deadline = Instant::now() + self.query;
        let first = self.connection(deadline).await?;
        let status = match self.ask(&first, query, transport, deadline).await {
            Ok(answer) => return Ok(answer),
            Err(status) => status,
        };
        let Some(second) = self.another(&first, retry(&status), deadline).await else {
            return Err(self.error(&first, &status, deadline));
        };
        let answer = self.ask(&second, query, transport, deadline).await;
        answer.map_err(|status| self.error(&second, &status, deadline))
    }

    /// Follows the session, to know since when there is no connection. Ends with the session.
    pub(super) async fn follow(&self, stop: CancellationToken) {
        let mut states = self.session.subscribe();
        loop {
            let connected = matches!(*states.borrow_and_update(), SessionState::Connected(_));
            self.outage.observe(connected, Instant::now());
            match stop.run_until_cancelled(states.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) | None => return,
            }
        }
    }

    /// The connection of the moment. Waits for one only when the last one was lost a moment ago.
    async fn connection(&self, deadline: Instant) -> Result<Connection, ForwardError> {
        let until = deadline.min(self.outage.began(Instant::now()) + self.patience);
        match timeout_at(until, self.session.connected()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(ForwardError::Barred(error.to_string())),
            Err(_) => Err(match self.session.state() {
                SessionState::Connecting {
                    last_error: Some(error),
                } => unconnected(&error),
                _ => ForwardError::NoServer("none has been reached yet".to_owned()),
            }),
        }
    }

    /// A connection to try after a failure.
    async fn another(
        &self,
        failed: &Connection,
        retry: Retry,
        deadline: Instant,
    ) -> Option<Connection> {
        let mut states = self.session.subscribe();
        let until = deadline.min(Instant::now() + self.patience);
        match retry {
            Retry::Never => None,
            Retry::IfMoved => successor(&states.borrow(), failed),
            Retry::WhenMoved => {
                let moved = states.wait_for(|state| match state {
                    SessionState::Connected(connection) => {
                        connection.generation != failed.generation
                    }
                    SessionState::Connecting { .. } => false,
                    SessionState::Failed(_) | SessionState::Closed => true,
                });
                let state = timeout_at(until, moved).await.ok()?.ok()?;
                successor(&state, failed)
            }
        }
    }

    /// One call. The session is told when it fails.
    async fn ask(
        &self,
        connection: &Connection,
        query: &Bytes,
        transport: Transport,
        deadline: Instant,
    ) -> Result<Bytes, Status> {
        let message = QueryRequest {
            msg: query.clone(),
            protocol: protocol(transport).into(),
        };
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert(metadata::NAMESPACE, self.namespace.clone());
        request
            .metadata_mut()
            .insert(metadata::PARTITION, self.partition.clone());
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
        // Whoever notices the end of the deadline first, here, in the channel or at the server.
        if status.code() == Code::DeadlineExceeded || Instant::now() >= deadline {
            return ForwardError::Timeout {
                server,
                after: self.query,
            };
        }
        ForwardError::Server {
            server,
            class: classify(status),
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}

/// What it means for queries that the session has no connection for this reason.
fn unconnected(error: &SessionError) -> ForwardError {
    match error {
        SessionError::TokenWanted { .. }
        | SessionError::TokenRejected { .. }
        | SessionError::LoginTokenRejected { .. }
        | SessionError::LoginRefused { .. } => ForwardError::Barred(error.to_string()),
        _ => ForwardError::NoServer(error.to_string()),
    }
}

/// How servers call it. They make answers as long as it and the query allow.
fn protocol(transport: Transport) -> Protocol {
    match transport {
        Transport::Udp => Protocol::Udp,
        Transport::Tcp => Protocol::Tcp,
    }
}

/// Whether a failed query is worth a second attempt, which needs another connection in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    /// The server would say the same again, and so would others.
    Never,
    /// The session stays where it is, unless it has moved already.
    IfMoved,
    /// The session moves, or logs in again.
    WhenMoved,
}

fn retry(status: &Status) -> Retry {
    match classify(status) {
        ErrorClass::Permanent => Retry::Never,
        ErrorClass::Transient => Retry::IfMoved,
        ErrorClass::ThisServer | ErrorClass::Credentials => Retry::WhenMoved,
    }
}

fn successor(state: &SessionState, failed: &Connection) -> Option<Connection> {
    match state {
        SessionState::Connected(connection) if connection.generation != failed.generation => {
            Some(connection.clone())
        }
        _ => None,
    }
}

/// Since when there is no connection.
///
/// A server change takes a moment that queries can wait for. An outage takes minutes: each query
/// that waited then would make its client wait for nothing, and take a slot from others.
#[derive(Debug, Default)]
struct Outage {
    since: Mutex<Option<Instant>>,
}

impl Outage {
    fn observe(&self, connected: bool, now: Instant) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = if connected {
            None
        } else {
            Some(since.unwrap_or(now))
        };
    }

    /// When the outage began; without one, it would be beginning now.
    fn began(&self, now: Instant) -> Instant {
        self.since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .unwrap_or(now)
    }
}

/// When to log what happens to many queries alike.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    state: Mutex<(Option<Instant>, u64)>,
}

impl Throttle {
    /// How many were kept back since the last one that was let through; `None` keeps back this one.
    pub(super) fn pass(&self, now: Instant, interval: Duration) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, suppressed) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < interval) {
            *suppressed += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_what_another_connection_may_cure_is_asked_again() {
        let retry = |code, text: &str| super::retry(&Status::new(code, text));
        assert_eq!(retry(Code::Unavailable, ""), Retry::WhenMoved);
        assert_eq!(retry(Code::ResourceExhausted, ""), Retry::WhenMoved);
        assert_eq!(retry(Code::Unauthenticated, ""), Retry::WhenMoved);
        assert_eq!(retry(Code::Unknown, "ACL not found"), Retry::WhenMoved);
        assert_eq!(retry(Code::Internal, "bad message"), Retry::IfMoved);
        assert_eq!(retry(Code::DeadlineExceeded, ""), Retry::IfMoved);
        assert_eq!(retry(Code::PermissionDenied, ""), Retry::Never);
        assert_eq!(retry(Code::InvalidArgument, ""), Retry::Never);
    }

    #[test]
    fn an_outage_is_when_no_server_has_said_anything() {
        let server = ([127, 0, 0, 1], 8502).into();
        let said = |code| ForwardError::Server {
            server,
            class: classify(&Status::new(code, "")),
            code,
            message: String::new(),
        };
        let after = SECOND;
        assert!(ForwardError::NoServer(String::new()).is_outage());
        assert!(ForwardError::Timeout { server, after }.is_outage());
        assert!(said(Code::Unavailable).is_outage());
        assert!(said(Code::ResourceExhausted).is_outage());
        assert!(!said(Code::PermissionDenied).is_outage());
        assert!(!said(Code::Unauthenticated).is_outage());
        assert!(!said(Code::Internal).is_outage());
        assert!(!ForwardError::Barred(String::new()).is_outage());
        assert!(unconnected(&SessionError::Lost { server }).is_outage());
        let message = "ACL not found".to_owned();
        assert!(!unconnected(&SessionError::TokenRejected { server, message }).is_outage());
    }

    #[test]
    fn an_outage_lasts_from_the_first_to_the_last_unconnected_state() {
        let outage = Outage::default();
        let start = Instant::now();
        assert_eq!(outage.began(start), start);
        outage.observe(false, start);
        outage.observe(false, start + SECOND);
        assert_eq!(outage.began(start + 2 * SECOND), start);
        outage.observe(true, start + 3 * SECOND);
        assert_eq!(outage.began(start + 4 * SECOND), start + 4 * SECOND);
        outage.observe(false, start + 5 * SECOND);
        assert_eq!(outage.began(start + 6 * SECOND), start + 5 * SECOND);
    }

    #[test]
    fn one_line_stands_for_many() {
        let throttle = Throttle::default();
        let start = Instant::now();
        assert_eq!(throttle.pass(start, SECOND), Some(0));
        assert_eq!(throttle.pass(start, SECOND), None);
        assert_eq!(throttle.pass(start + SECOND / 2, SECOND), None);
        assert_eq!(throttle.pass(start + SECOND, SECOND), Some(2));
        assert_eq!(throttle.pass(start + 3 * SECOND, SECOND), Some(0));
    }
}
