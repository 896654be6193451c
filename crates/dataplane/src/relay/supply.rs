//! The streams towards servers: opened on the session's connections, paced, and explained.
//!
//! A new server is tried beside the old one: the old stream is kept, unread, until the new one is
//! accepted, and goes on when it is not. Which messages travel is the core's business.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_client::{Connection, ErrorClass, Session, SessionState, classify, is_no_proxy};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};

use super::core::{Event, ServerStreamId};
use super::metrics::RelayMetrics;
use super::pace::Pace;
use super::status::UpstreamStatus;

/// Requests that wait for the network. A server that takes none of so many is as good as gone:
/// a new stream says in one request what all of them say.
const REQUESTS: usize = 256;

/// How long a new server may take to accept beside an old one. Servers need not answer a stream to
/// which they have nothing to say, so silence counts as a yes.
const ACCEPT_WITHIN: Duration = Duration::from_secs(5);

/// How long apart streams are that were opened for an Envoy's sake only.
const RENEW_APART: Duration = Duration::from_secs(5);

/// Something a stream brings.
enum Incoming {
    /// The server has taken the stream.
    Accepted,
    Response(Box<DeltaDiscoveryResponse>),
}

/// One stream.
struct Upstream {
    epoch: ServerStreamId,
    connection: Connection,
    opened: Instant,
    accepted: bool,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    incoming: BoxStream<'static, Result<Incoming, Status>>,
}

/// Why a stream was lost.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    pub(super) server: SocketAddr,
    pub(super) code: Code,
    pub(super) message: String,
    /// It will not go away by itself.
    pub(super) refused: bool,
    /// `-proxy-id` names a service that is no proxy.
    pub(super) no_proxy: bool,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Trouble {
            server,
            code,
            message,
            ..
        } = self;
        write!(
            f,
            "server {server} ended the xDS stream: {code:?}: {message}"
        )?;
        if self.no_proxy {
            return f.write_str(
                "; -proxy-id names a service that is no proxy: name the ID of its sidecar proxy, or \
                 of a gateway",
            );
        }
        match advice(*code) {
            "" => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

/// What to look at.
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
        Code::Unimplemented => "check that -addresses and -grpc-port lead to a Consul server",
        _ => "",
    }
}

/// Whether someone has to change something before the server serves this proxy.
fn is_refusal(status: &Status) -> bool {
    match classify(status) {
        ErrorClass::Permanent => true,
        ErrorClass::Transient => status.code() == Code::NotFound,
        ErrorClass::Credentials | ErrorClass::ThisServer => false,
    }
}

/// What the supply brings.
pub(super) enum Supplied {
    /// A server's response.
    Response(ServerStreamId, Box<DeltaDiscoveryResponse>),
    /// A stream that ended.
    Ended(ServerStreamId, Status),
    /// Streams that a newer one has replaced.
    Replaced(Vec<ServerStreamId>),
    /// Time or the session moved on: see whether a stream is due.
    Check,
}

/// The streams towards servers.
pub(super) struct Supply {
    session: Session,
    state: watch::Receiver<SessionState>,
    session_over: bool,
    /// The newest last; two at most.
    streams: Vec<Upstream>,
    pace: Pace,
    retry_at: Option<Instant>,
    /// Generation of the connection that failed last.
    failed: Option<u64>,
    /// A new stream is wanted although nothing is wrong with the present one.
    renew: bool,
    /// What goes along with a new stream.
    metadata: MetadataMap,
    next_epoch: u64,
    last_response: Option<Instant>,
    trouble: Option<Trouble>,
    metrics: RelayMetrics,
}

impl Supply {
    pub(super) fn new(session: Session, metrics: RelayMetrics) -> Supply {
        Supply {
            state: session.subscribe(),
            session,
            session_over: false,
            streams: Vec::new(),
            pace: Pace::new(),
            retry_at: None,
            failed: None,
            renew: false,
            metadata: MetadataMap::new(),
            next_epoch: 0,
            last_response: None,
            trouble: None,
            metrics,
        }
    }

    /// Takes the metadata of an Envoy for streams that are opened from now on.
    pub(super) fn introduce(&mut self, metadata: MetadataMap) {
        self.metadata = metadata;
    }

    /// Opens a stream when one is due.
    pub(super) fn connect(&mut self) -> Vec<Event> {
        let state = self.state.borrow().clone();
        let SessionState::Connected(connection) = state else {
            return Vec::new();
        };
        let newest = self
            .streams
            .last()
            .map(|stream| stream.connection.generation);
        let generation = connection.generation;
        if newest.is_some_and(|newest| newest >= generation) && !self.renew {
            return Vec::new();
        }
        let other_server = self.failed.is_some_and(|failed| failed < generation);
        let waits = self.retry_at.is_some_and(|at| Instant::now() < at);
        if waits && !(other_server && self.pace.is_first()) {
            return Vec::new();
        }
        self.open(connection)
    }

    fn open(&mut self, connection: Connection) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(unaccepted) = self.streams.pop_if(|stream| !stream.accepted) {
            events.push(Event::ServerGone(unaccepted.epoch));
        }
        self.next_epoch += 1;
        let epoch = ServerStreamId(self.next_epoch);
        tracing::debug!(server = %connection.server, "opening xDS stream");
        let (requests, receiver) = mpsc::channel(REQUESTS);
        self.streams.push(Upstream {
            epoch,
            incoming: incoming(&connection, receiver, self.metadata.clone()),
            connection,
            opened: Instant::now(),
            accepted: false,
            requests,
        });
        self.retry_at = None;
        self.renew = false;
        self.metrics.stream_opened();
        events.push(Event::ServerConnected(epoch));
        events
    }

    /// The next thing to deal with. Cancel safe. Responses are read only when `may_read`.
    pub(super) async fn next(&mut self, may_read: bool) -> Supplied {
        let timer = self.timer();
        tokio::select! {
            supplied = read(&mut self.streams, may_read) => self.supplied(supplied),
            changed = self.state.changed(), if !self.session_over => {
                self.session_over = changed.is_err();
                Supplied::Check
            }
            () = wait_until(timer) => match self.silent() {
                true => Supplied::Replaced(self.end_older()),
                false => Supplied::Check,
            },
        }
    }

    /// When something is due that nobody else wakes for. Times that have passed without effect
    /// wait for the session.
    fn timer(&self) -> Option<Instant> {
        let silence = self
            .streams
            .last()
            .filter(|stream| self.streams.len() > 1 && !stream.accepted);
        let silence = silence.map(|stream| stream.opened + ACCEPT_WITHIN);
        silence
            .into_iter()
            .chain(self.retry_at.filter(|at| *at > Instant::now()))
            .min()
    }

    /// Whether the newest stream has had the time to say no.
    fn silent(&self) -> bool {
        let newest = self.streams.last();
        newest.is_some_and(|stream| !stream.accepted && stream.opened.elapsed() >= ACCEPT_WITHIN)
    }

    fn supplied(
        &mut self,
        (epoch, incoming): (ServerStreamId, Result<Incoming, Status>),
    ) -> Supplied {
        match incoming {
            Ok(Incoming::Accepted) => Supplied::Replaced(self.end_older()),
            Ok(Incoming::Response(response)) => {
                self.last_response = Some(Instant::now());
                self.metrics.response_arrived();
                self.answered();
                Supplied::Response(epoch, response)
            }
            Err(status) => Supplied::Ended(epoch, status),
        }
    }

    /// The newest stream is the one that counts from now on.
    fn end_older(&mut self) -> Vec<ServerStreamId> {
        if let Some(newest) = self.streams.last_mut() {
            newest.accepted = true;
            self.metrics.upstream(true);
        }
        let older = self.streams.len().saturating_sub(1);
        self.streams
            .drain(..older)
            .map(|stream| stream.epoch)
            .collect()
    }

    fn answered(&mut self) {
        self.pace.answered();
        if let (Some(_), Some(stream)) = (self.trouble.take(), self.streams.last()) {
            tracing::info!(server = %stream.connection.server, "xDS stream is served again");
        }
    }

    /// Sends a request. A stream whose queue is full is ended, and its end returned.
    pub(super) fn send(
        &mut self,
        epoch: ServerStreamId,
        request: DeltaDiscoveryRequest,
    ) -> Option<Status> {
        let stream = self.streams.iter().find(|stream| stream.epoch == epoch)?;
        match stream.requests.try_send(request) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(_)) => Some(Status::unavailable(
                "the server does not read its xDS requests",
            )),
            // The stream has ended; reading it says why.
            Err(mpsc::error::TrySendError::Closed(_)) => None,
        }
    }

    /// Asks for a new stream in place of a working one.
    pub(super) fn renew(&mut self) {
        self.renew = true;
        if let Some(stream) = self.streams.last() {
            self.retry_at = Some(stream.opened + RENEW_APART);
        }
    }

    /// Notes the end of a stream: tells the session, and says when the next attempt is.
    /// `configured`: whether Envoy serves meanwhile.
    pub(super) fn lost(&mut self, epoch: ServerStreamId, status: &Status, configured: bool) {
        let Some(place) = self.streams.iter().position(|stream| stream.epoch == epoch) else {
            return;
        };
        let stream = self.streams.remove(place);
        let refused = is_refusal(status);
        let lived = stream.opened.elapsed();
        let delay = self.pace.lost(refused, lived, configured, rand::random());
        self.retry_at = Some(Instant::now() + delay);
        self.failed = Some(stream.connection.generation);
        self.session.report(&stream.connection, status);
        let trouble = Trouble {
            server: stream.connection.server,
            code: status.code(),
            message: status.message().to_owned(),
            refused,
            no_proxy: is_no_proxy(status),
        };
        let news = self.trouble.as_ref().is_none_or(|old| {
            (old.code, &old.message, old.refused) != (trouble.code, &trouble.message, refused)
        });
        match (news, refused) {
            (true, true) => tracing::error!(retry = ?delay, "{trouble}"),
            (true, false) => tracing::warn!(retry = ?delay, "{trouble}"),
            (false, _) => tracing::debug!(retry = ?delay, "{trouble}"),
        }
        self.trouble = Some(trouble);
        if self.streams.is_empty() {
            self.metrics.upstream(false);
        }
    }

    /// Why there is no stream, when that is so.
    pub(super) fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// How often in a row servers have refused this proxy.
    pub(super) fn refusals(&self) -> u32 {
        self.pace.refusals()
    }

    pub(super) fn status(&self) -> UpstreamStatus {
        UpstreamStatus {
            server: self
                .streams
                .last()
                .map(|stream| stream.connection.server.to_string()),
            streams_opened: self.next_epoch,
            last_message_seconds_ago: self.last_response.map(|at| at.elapsed().as_secs()),
            last_error: self.trouble.as_ref().map(ToString::to_string),
            refused: self.trouble.as_ref().is_some_and(|trouble| trouble.refused),
        }
    }
}

/// Reads the newest stream; an older one waits until it is the newest again.
async fn read(
    streams: &mut [Upstream],
    may_read: bool,
) -> (ServerStreamId, Result<Incoming, Status>) {
    match streams.last_mut() {
        Some(stream) if may_read || !stream.accepted => {
            let incoming = stream.incoming.next().await;
            let ended = || Err(Status::unavailable("the stream ended without a reason"));
            (stream.epoch, incoming.unwrap_or_else(ended))
        }
        _ => std::future::pending().await,
    }
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn incoming(
    connection: &Connection,
    requests: mpsc::Receiver<DeltaDiscoveryRequest>,
    metadata: MetadataMap,
) -> BoxStream<'static, Result<Incoming, Status>> {
    let mut client = connection.discovery();
    let mut request = Request::new(ReceiverStream::new(requests));
    *request.metadata_mut() = metadata;
    let call = async move { client.delta_aggregated_resources(request).await };
    stream::once(call)
        .flat_map(|answer| match answer {
            Ok(answer) => stream::once(std::future::ready(Ok(Incoming::Accepted)))
                .chain(answer.into_inner().map(|response| {
                    response.map(|response| Incoming::Response(Box::new(response)))
                }))
                .left_stream(),
            Err(status) => stream::once(std::future::ready(Err(status))).right_stream(),
        })
        .boxed()
}
