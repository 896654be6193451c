//! Opens streams to servers over the session's connections, and records why one ended.
//!
//! While a new server is being tried, the old stream stays open without being read. It is closed
//! once the new one is accepted, and resumed if that fails. The core decides which messages are
//! sent.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_client::{Connection, ErrorClass, Session, SessionState, classify, is_no_proxy};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status, Streaming};

use super::core::{Event, ServerStreamId};
use super::metrics::RelayMetrics;
use super::pace::Pace;
use super::status::UpstreamStatus;

/// Capacity of the request queue. A server that accepts none of so many counts as lost: one request
/// on a new stream can replace all of them.
const REQUESTS: usize = 256;

/// How long to wait for a new server to accept the stream while an old one is open. A server need
/// not respond if it has nothing to send, so silence counts as acceptance.
const ACCEPT_WITHIN: Duration = Duration::from_secs(5);

/// Shortest time between opening a stream and replacing it on behalf of an Envoy.
const RENEW_APART: Duration = Duration::from_secs(5);

/// A stream to a server.
struct Stream {
    id: ServerStreamId,
    connection: Connection,
    opened: Instant,
    accepted: bool,
    /// Whether it replaces a working stream on request.
    renewal: bool,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    call: Call,
}

/// The source of a stream's responses.
enum Call {
    /// The server has not responded to the call yet.
    Opening(BoxFuture<'static, Result<Response<Streaming<DeltaDiscoveryResponse>>, Status>>),
    Open(Box<Streaming<DeltaDiscoveryResponse>>),
}

impl Call {
    fn start(
        connection: &Connection,
        requests: mpsc::Receiver<DeltaDiscoveryRequest>,
        metadata: MetadataMap,
    ) -> Call {
        let mut client = connection.discovery();
        let mut request = Request::new(ReceiverStream::new(requests));
        *request.metadata_mut() = metadata;
        Call::Opening(Box::pin(async move {
            client.delta_aggregated_resources(request).await
        }))
    }

    /// The next response; `None` when the server has accepted the stream. Cancel safe.
    async fn next(&mut self) -> Result<Option<Box<DeltaDiscoveryResponse>>, Status> {
        match self {
            Call::Opening(answer) => {
                let responses = answer.await?.into_inner();
                *self = Call::Open(Box::new(responses));
                Ok(None)
            }
            Call::Open(responses) => {
                let ended = || Status::unavailable("the stream ended without a reason");
                let response = responses.message().await?.ok_or_else(ended)?;
                Ok(Some(Box::new(response)))
            }
        }
    }
}

/// Why a stream was lost.
#[derive(Debug, Clone, thiserror::Error)]
#[error("server {server} ended the xDS stream: {reason}")]
pub(super) struct StreamError {
    server: SocketAddr,
    pub(super) code: Code,
    /// The status, with advice.
    reason: String,
    /// Whether an operator has to act before retries can succeed.
    pub(super) refused: bool,
    /// Whether `-proxy-id` names a service that is not a proxy.
    pub(super) no_proxy: bool,
}

impl StreamError {
    fn new(server: SocketAddr, status: &Status) -> StreamError {
        let (code, no_proxy) = (status.code(), is_no_proxy(status));
        let mut reason = format!("{code:?}: {}", status.message());
        let advice = match no_proxy {
            true => {
                "-proxy-id names a service that is not a proxy: name the ID of its sidecar proxy, or \
                 of a gateway"
            }
            false => advice(code),
        };
        if !advice.is_empty() {
            reason = format!("{reason}; {advice}");
        }
        StreamError {
            server,
            code,
            reason,
            refused: is_refusal(status),
            no_proxy,
        }
    }
}

/// Settings and permissions to check for a status code.
fn advice(code: Code) -> &'static str {
    match code {
        Code::PermissionDenied => {
            "the token (-static-token or -login-auth-method) needs service:write on the service of \
             -proxy-id"
        }
        Code::NotFound => {
            "check -proxy-id and -proxy-node-name, and that this proxy is registered on that node"
        }
        Code::InvalidArgument => {
            "check -proxy-id, and whether the server supports this Envoy's version"
        }
        Code::Unauthenticated => "check -credential-type and the credentials that belong to it",
        Code::Unimplemented => "check that -addresses and -grpc-port point to a Consul server",
        _ => "",
    }
}

/// Whether an operator has to change something before a server serves this proxy.
fn is_refusal(status: &Status) -> bool {
    match classify(status) {
        ErrorClass::Permanent => true,
        ErrorClass::Transient => status.code() == Code::NotFound,
        ErrorClass::Credentials | ErrorClass::ThisServer => false,
    }
}

/// The streams to servers.
pub(super) struct ServerStreams {
    session: Session,
    changes: WatchStream<SessionState>,
    state: SessionState,
    /// Newest last; at most two.
    streams: Vec<Stream>,
    pace: Pace,
    retry_at: Option<Instant>,
    /// Generation of the connection whose stream failed last.
    failed: Option<u64>,
    /// Whether to replace the current stream although it works.
    renew: bool,
    /// Whether Envoy has a configuration, so that it serves regardless of these streams.
    configured: bool,
    /// Metadata sent with each new stream.
    metadata: MetadataMap,
    opened: u64,
    last_response: Option<Instant>,
    error: Option<StreamError>,
    metrics: RelayMetrics,
}

impl ServerStreams {
    pub(super) fn new(session: Session, metrics: RelayMetrics) -> ServerStreams {
        ServerStreams {
            changes: WatchStream::from_changes(session.subscribe()),
            state: session.subscribe().borrow().clone(),
            session,
            streams: Vec::new(),
            pace: Pace::new(),
            retry_at: None,
            failed: None,
            renew: false,
            configured: false,
            metadata: MetadataMap::new(),
            opened: 0,
            last_response: None,
            error: None,
            metrics,
        }
    }

    /// Sets the metadata for streams that are opened from now on.
    pub(super) fn set_metadata(&mut self, metadata: MetadataMap) {
        self.metadata = metadata;
    }

    /// Opens a stream if one is due. `configured`: whether Envoy has a configuration.
    pub(super) fn connect(&mut self, configured: bool) -> Vec<Event> {
        self.configured = configured;
        let SessionState::Connected(connection) = &self.state else {
            return Vec::new();
        };
        let generation = connection.generation;
        let newest = self.streams.last();
        let current = newest.is_some_and(|stream| stream.connection.generation >= generation);
        if current && !self.renew {
            return Vec::new();
        }
        let other_server = self.failed.is_some_and(|failed| failed < generation);
        let waits = self.retry_at.is_some_and(|at| Instant::now() < at);
        if waits && !(other_server && self.pace.is_first()) {
            return Vec::new();
        }
        let connection = connection.clone();
        self.open(connection)
    }

    fn open(&mut self, connection: Connection) -> Vec<Event> {
        let unaccepted = self.streams.pop_if(|stream| !stream.accepted);
        let renewal = self.renew || unaccepted.as_ref().is_some_and(|stream| stream.renewal);
        let gone = unaccepted.map(|stream| Event::ServerGone(stream.id));
        self.opened += 1;
        let id = ServerStreamId(self.opened);
        tracing::debug!(server = %connection.server, "opening xDS stream");
        let (requests, receiver) = mpsc::channel(REQUESTS);
        self.streams.push(Stream {
            id,
            call: Call::start(&connection, receiver, self.metadata.clone()),
            connection,
            opened: Instant::now(),
            accepted: false,
            renewal,
            requests,
        });
        self.retry_at = None;
        self.renew = false;
        self.metrics.upstream_streams.inc();
        gone.into_iter()
            .chain([Event::ServerConnected(id)])
            .collect()
    }

    /// The next event. `None` when the session's state has changed, so that a stream may be due.
    /// Responses are read only if `may_read`. Cancel safe.
    pub(super) async fn next(&mut self, may_read: bool) -> Option<Event> {
        tokio::select! {
            (id, incoming) = read(&mut self.streams, may_read) => self.on_incoming(id, incoming),
            Some(state) = self.changes.next() => {
                self.state = state;
                None
            }
        }
    }

    /// When [`ServerStreams::on_timer`] or [`ServerStreams::connect`] has something to do. A retry
    /// time in the past is not included: that retry waits for the session.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let retry = self.retry_at.filter(|at| *at > Instant::now());
        self.silent_until().into_iter().chain(retry).min()
    }

    /// When the silence of a new server counts as acceptance, so that the old stream can be closed.
    fn silent_until(&self) -> Option<Instant> {
        let newest = self.streams.last();
        let unaccepted = newest.filter(|stream| self.streams.len() > 1 && !stream.accepted);
        unaccepted.map(|stream| stream.opened + ACCEPT_WITHIN)
    }

    /// Performs what is due, if anything.
    pub(super) fn on_timer(&mut self, now: Instant) -> Option<Event> {
        self.silent_until().filter(|at| *at <= now)?;
        self.accept()
    }

    fn on_incoming(
        &mut self,
        id: ServerStreamId,
        incoming: Result<Option<Box<DeltaDiscoveryResponse>>, Status>,
    ) -> Option<Event> {
        match incoming {
            Ok(None) => self.accept(),
            Ok(Some(response)) => {
                self.last_response = Some(Instant::now());
                self.metrics.response_arrived();
                self.pace.answered();
                if let (Some(_), Some(stream)) = (self.error.take(), self.streams.last()) {
                    tracing::info!(server = %stream.connection.server, "xDS stream is served again");
                }
                Some(Event::ServerResponse(id, response))
            }
            Err(status) => self.lose(id, &status),
        }
    }

    /// Accepts the newest stream and closes the older one.
    fn accept(&mut self) -> Option<Event> {
        let mut newest = self.streams.pop()?;
        newest.accepted = true;
        self.metrics.upstream_connected.set(1);
        let older = self.streams.pop();
        self.streams.push(newest);
        older.map(|stream| Event::ServerGone(stream.id))
    }

    /// Sends a request. A stream whose queue is full is closed.
    pub(super) fn send(
        &mut self,
        id: ServerStreamId,
        request: DeltaDiscoveryRequest,
    ) -> Option<Event> {
        let stream = self.streams.iter().find(|stream| stream.id == id)?;
        match stream.requests.try_send(request) {
            Err(mpsc::error::TrySendError::Full(_)) => {
                let status = Status::unavailable("the server does not read its xDS requests");
                self.lose(id, &status)
            }
            // If the stream has ended, reading it returns the reason.
            _ => None,
        }
    }

    /// Requests a new stream in place of a working one.
    pub(super) fn renew(&mut self) {
        self.renew = true;
        if let Some(stream) = self.streams.last() {
            self.retry_at = Some(stream.opened + RENEW_APART);
        }
    }

    /// Removes a failed stream: reports it to the session and schedules the next attempt.
    fn lose(&mut self, id: ServerStreamId, status: &Status) -> Option<Event> {
        let place = self.streams.iter().position(|stream| stream.id == id)?;
        let stream = self.streams.remove(place);
        let error = StreamError::new(stream.connection.server, status);
        let lived = stream.opened.elapsed();
        // The older stream resumes, so it still has to be replaced.
        self.renew |= stream.renewal && !stream.accepted;
        let random = rand::random();
        let delay = self
            .pace
            .lost(error.refused, lived, self.configured, random);
        self.retry_at = Some(Instant::now() + delay);
        self.failed = Some(stream.connection.generation);
        self.session.report(&stream.connection, status);
        let known = self
            .error
            .as_ref()
            .is_some_and(|old| (&old.reason, old.refused) == (&error.reason, error.refused));
        match (known, error.refused) {
            (true, _) => tracing::debug!(retry = ?delay, "{error}"),
            (false, true) => tracing::error!(retry = ?delay, "{error}"),
            (false, false) => tracing::warn!(retry = ?delay, "{error}"),
        }
        self.error = Some(error);
        if self.streams.is_empty() {
            self.metrics.upstream_connected.set(0);
        }
        Some(Event::ServerGone(id))
    }

    /// Why the last stream was lost; `None` once a server has responded again.
    pub(super) fn error(&self) -> Option<&StreamError> {
        self.error.as_ref()
    }

    /// Number of consecutive refusals by servers.
    pub(super) fn refusals(&self) -> u32 {
        self.pace.refusals()
    }

    pub(super) fn status(&self) -> UpstreamStatus {
        let newest = self.streams.last();
        UpstreamStatus {
            server: newest.map(|stream| stream.connection.server.to_string()),
            streams_opened: self.opened,
            last_message_seconds_ago: self.last_response.map(|at| at.elapsed().as_secs()),
            last_error: self.error.as_ref().map(ToString::to_string),
            refused: self.error.as_ref().is_some_and(|error| error.refused),
        }
    }
}

/// Reads the newest stream. An older one is not read unless it becomes the newest again.
async fn read(
    streams: &mut [Stream],
    may_read: bool,
) -> (
    ServerStreamId,
    Result<Option<Box<DeltaDiscoveryResponse>>, Status>,
) {
    match streams.last_mut() {
        Some(stream) if may_read || !stream.accepted => (stream.id, stream.call.next().await),
        _ => std::future::pending().await,
    }
}
