//! The task that owns the relay's core: passes messages of Envoys and servers to the core and
//! performs its actions. Makes no decisions about resources.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::poll_fn;
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use h2::RecvStream;
use h2::server::SendResponse;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_runtime::{CancellationToken, ReadyHandle};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{consume_budget, yield_now};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::connections::OpenStream;
use super::core::{Action, Core, EnvoyStreamId, Event, Rejected, Role};
use super::limits::MAX_STREAMS;
use super::metrics::RelayMetrics;
use super::pace::PATIENCE;
use super::request::Requests;
use super::server_streams::ServerStreams;
use super::status::{RelayStatus, SHOWN_NAMES, label};
use super::wire::{Message, Responses, refuse};

/// Once Envoy's configuration has been complete for this long, its subscriptions are considered
/// complete.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// How long Envoy may take to answer a response. It answers once it has processed the configuration,
/// which takes a while for a large one. An Envoy that never answers gets no updates and blocks
/// others.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// Longest pause after rejected responses.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Why the relay ended: no server provides a configuration for this proxy, and retries will not help.
/// Contains the server's message and advice.
#[derive(Debug, thiserror::Error)]
#[error("Envoy gets no configuration: {0}")]
pub struct RelayError(String);

/// Requests to the task.
pub(super) enum Input {
    /// An Envoy opens a stream.
    Opened(Box<Call>),
    /// A proxy of this process opens a stream.
    Joined(LocalStream),
    Status(oneshot::Sender<RelayStatus>),
}

/// A call of an Envoy that has not been answered.
pub(super) struct Call {
    pub(super) requests: RecvStream,
    pub(super) respond: SendResponse<Message>,
    pub(super) metadata: MetadataMap,
    pub(super) connection: OpenStream,
}

/// What a proxy in this process sends on its stream.
#[derive(Debug)]
pub enum FromProxy {
    /// As an Envoy does.
    Request(Box<DeltaDiscoveryRequest>),
    /// Its role from now on. Without one it is like any other Envoy.
    Role(Role),
}

/// The relay's end of the stream of a proxy in this process.
pub(super) struct LocalStream {
    pub(super) requests: mpsc::Receiver<FromProxy>,
    pub(super) responses: mpsc::Sender<DeltaDiscoveryResponse>,
}

/// The requests of a stream.
enum Incoming {
    Wire(Requests),
    Local(mpsc::Receiver<FromProxy>),
}

impl Incoming {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<FromProxy, Status>>> {
        match self {
            Incoming::Wire(requests) => requests.poll_next(cx).map(|next| {
                next.map(|request| request.map(|request| FromProxy::Request(Box::new(request))))
            }),
            Incoming::Local(requests) => requests.poll_recv(cx).map(|next| next.map(Ok)),
        }
    }
}

/// The responses of a stream.
enum Outgoing {
    Wire(Responses),
    Local(mpsc::Sender<DeltaDiscoveryResponse>),
}

impl Outgoing {
    fn send(&mut self, response: DeltaDiscoveryResponse) -> Result<(), Status> {
        match self {
            Outgoing::Wire(responses) => responses.send(response),
            Outgoing::Local(responses) => {
                let sent = responses.try_send(response);
                sent.map_err(|_| Status::cancelled("the built-in proxy has left"))
            }
        }
    }
}

/// The stream of an Envoy, or of the proxy in this process.
struct Envoy {
    requests: Incoming,
    responses: Outgoing,
    metadata: MetadataMap,
    /// Marks the connection as used.
    _connection: Option<OpenStream>,
    /// Nonces of unanswered responses, and when each was sent.
    unanswered: Vec<(String, Instant)>,
}

impl Envoy {
    /// When the first unanswered response becomes overdue.
    fn overdue_at(&self) -> Option<Instant> {
        let first = self.unanswered.iter().map(|(_, sent)| *sent).min();
        first.map(|sent| sent + ANSWER_WITHIN)
    }
}

/// State of the task.
pub(super) struct Driver {
    core: Core,
    inputs: mpsc::Receiver<Input>,
    servers: ServerStreams,
    readiness: ReadyHandle,
    metrics: RelayMetrics,
    envoys: BTreeMap<EnvoyStreamId, Envoy>,
    /// Number of streams that Envoys have opened so far.
    opened: u64,
    /// The stream that was read last.
    read: EnvoyStreamId,
    /// By type URL: arrival of the response that Envoy is processing.
    arrived: HashMap<String, Instant>,
    /// Servers are not read before this time.
    pause_until: Option<Instant>,
    forget_at: Option<Instant>,
}

impl Driver {
    pub(super) fn new(
        inputs: mpsc::Receiver<Input>,
        servers: ServerStreams,
        readiness: ReadyHandle,
        metrics: RelayMetrics,
    ) -> Driver {
        Driver {
            core: Core::new(),
            inputs,
            servers,
            readiness,
            metrics,
            envoys: BTreeMap::new(),
            opened: 0,
            read: EnvoyStreamId(0),
            arrived: HashMap::new(),
            pause_until: None,
            forget_at: None,
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), RelayError> {
        // Pinned once; a new future per message would register and deregister each time.
        let mut stopped = pin!(stop.cancelled());
        let mut alarm = Alarm::default();
        loop {
            if self.core.needs_upstream() {
                for event in self.servers.connect(self.core.was_configured()) {
                    self.handle(event);
                }
            }
            self.report();
            let may_read = self.pause_until.is_none() && self.core.wants_upstream();
            let overdue = self.envoys.values().filter_map(Envoy::overdue_at);
            let times = [self.pause_until, self.forget_at, self.servers.due_at()];
            alarm.set(overdue.chain(times.into_iter().flatten()).min());
            tokio::select! {
                () = &mut stopped => return Ok(()),
                input = self.inputs.recv() => match input {
                    Some(input) => self.on_input(input),
                    None => return Ok(()),
                },
                (id, request) = read(&mut self.envoys, self.read) => {
                    self.on_request(id, request);
                    // A client that sends many requests at once must not starve other tasks, in
                    // particular the one that forwards the resulting requests to the server: its
                    // queue is short.
                    yield_now().await;
                }
                event = self.servers.next(may_read) => {
                    if let Some(event) = event {
                        self.on_server(event)?;
                    }
                    // Nor may a server that sends without pause starve other tasks.
                    consume_budget().await;
                }
                () = alarm.rings() => self.on_timer(),
            }
        }
    }

    fn on_input(&mut self, input: Input) {
        match input {
            Input::Opened(call) => self.on_opened(*call),
            Input::Joined(stream) => self.add(Envoy {
                requests: Incoming::Local(stream.requests),
                responses: Outgoing::Local(stream.responses),
                metadata: MetadataMap::new(),
                _connection: None,
                unanswered: Vec::new(),
            }),
            Input::Status(reply) => {
                // The requester may have stopped waiting.
                let _ = reply.send(self.core.status(self.servers.status()));
            }
        }
    }

    fn on_request(&mut self, id: EnvoyStreamId, request: Option<Result<FromProxy, Status>>) {
        self.read = id;
        match request {
            Some(Ok(FromProxy::Role(role))) => self.handle(Event::Role(id, role)),
            Some(Ok(FromProxy::Request(request))) => {
                if let Some(envoy) = self.envoys.get_mut(&id) {
                    let nonce = &request.response_nonce;
                    envoy.unanswered.retain(|(sent, _)| sent != nonce);
                }
                self.handle(Event::EnvoyRequest(id, request));
            }
            Some(Err(status)) => {
                tracing::debug!(code = ?status.code(), error = status.message(), "Envoy's xDS stream broke");
                self.close(id, Some(status));
            }
            None => self.close(id, None),
        }
    }

    fn on_opened(&mut self, call: Call) {
        if self.envoys.len() >= MAX_STREAMS {
            // The oldest stream without a subscription is closed to admit the new one.
            let Some(silent) = self.core.silent() else {
                let message = format!("the limit of {MAX_STREAMS} open xDS streams is reached");
                return refuse(call.respond, Status::resource_exhausted(message));
            };
            let message = "closed in favour of a new xDS stream: nothing was subscribed to";
            self.close(silent, Some(Status::resource_exhausted(message)));
        }
        // Fails if the call has been cancelled.
        let Ok(responses) = Responses::start(call.respond) else {
            return;
        };
        self.add(Envoy {
            requests: Incoming::Wire(Requests::new(call.requests)),
            responses: Outgoing::Wire(responses),
            metadata: call.metadata,
            _connection: Some(call.connection),
            unanswered: Vec::new(),
        });
    }

    fn add(&mut self, envoy: Envoy) {
        self.opened += 1;
        let id = EnvoyStreamId(self.opened);
        self.envoys.insert(id, envoy);
        self.envoys_changed();
        self.handle(Event::EnvoyConnected(id));
    }

    fn close(&mut self, id: EnvoyStreamId, status: Option<Status>) {
        if let Some(event) = self.remove(id, status) {
            self.handle(event);
        }
    }

    /// Ends a stream, with OK or with the given status.
    fn remove(&mut self, id: EnvoyStreamId, status: Option<Status>) -> Option<Event> {
        let mut envoy = self.envoys.remove(&id)?;
        if let (Some(status), Outgoing::Wire(responses)) = (status, &mut envoy.responses) {
            responses.status = status;
        }
        drop(envoy);
        self.envoys_changed();
        Some(Event::EnvoyGone(id))
    }

    fn envoys_changed(&mut self) {
        // As in the core, the first of the connected Envoys counts.
        if let Some((_, first)) = self.envoys.first_key_value() {
            self.servers.set_metadata(first.metadata.clone());
        }
        let connected = !self.envoys.is_empty();
        self.metrics.envoy_connected.set(connected.into());
        self.forget_at = Some(Instant::now() + FORGET_AFTER);
    }

    fn on_server(&mut self, event: Event) -> Result<(), RelayError> {
        if let Event::ServerResponse(_, response) = &event {
            let type_url = response.type_url.clone();
            self.arrived.insert(type_url, Instant::now());
        }
        self.handle(event);
        self.check_refusal()
    }

    /// An Envoy that never had a configuration and cannot get one has nothing to wait for. An Envoy
    /// that serves, even with a configuration from another dataplane, is left alone.
    fn check_refusal(&self) -> Result<(), RelayError> {
        let Some(error) = self.servers.error() else {
            return Ok(());
        };
        let lasting = matches!(error.code, Code::PermissionDenied | Code::NotFound)
            && self.servers.refusals() >= PATIENCE;
        if error.refused && (lasting || error.no_proxy) && !self.core.was_configured() {
            return Err(RelayError(error.to_string()));
        }
        Ok(())
    }

    /// Closes streams with overdue answers. A new stream gets Envoy going again, or shows that it is
    /// gone.
    fn close_overdue(&mut self, now: Instant) {
        let silent = self.envoys.iter().filter_map(|(id, envoy)| {
            let overdue = envoy.overdue_at().is_some_and(|at| at <= now);
            overdue.then_some(*id)
        });
        for id in silent.collect::<Vec<_>>() {
            tracing::warn!(
                "Envoy has not answered an xDS response for {ANSWER_WITHIN:?}, closing its stream"
            );
            self.close(id, None);
        }
    }

    /// Performs everything that is due. That may be nothing, because the alarm also fires for
    /// deadlines that have moved.
    fn on_timer(&mut self) {
        let now = Instant::now();
        self.pause_until = self.pause_until.filter(|at| *at > now);
        self.close_overdue(now);
        if let Some(event) = self.servers.on_timer(now) {
            self.handle(event);
        }
        if self.forget_at.is_some_and(|at| at <= now) {
            self.forget_at = None;
            if self.core.newest_is_configured() {
                self.handle(Event::Forget);
            } else if !self.envoys.is_empty() {
                self.forget_at = Some(now + FORGET_AFTER);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.core.handle(event) {
                events.extend(self.perform(action));
            }
        }
    }

    fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::ToEnvoy(id, response) => return self.send(id, response),
            Action::CloseEnvoy(id, refusal) => {
                let reason = refusal.message();
                tracing::warn!("refused an xDS stream on Envoy's port: {reason}");
                return self.remove(id, Some(refusal));
            }
            Action::ToServer(id, request) => return self.servers.send(id, request),
            Action::RenewServer => self.servers.renew(),
            Action::Accepted {
                type_url,
                resources,
                removed,
                held,
            } => {
                let took = self.arrived.remove(&type_url).map(|at| at.elapsed());
                self.metrics.accepted(&type_url, held, took);
                let kind = label(&type_url);
                tracing::debug!(kind, resources, removed, "Envoy accepted");
            }
            Action::Rejected(rejected) => self.on_rejected(&rejected),
            Action::Unexpected(url) => {
                tracing::warn!(
                    type_url = url,
                    "the server sent resources that were not requested; they are ignored"
                );
            }
        }
        None
    }

    fn send(&mut self, id: EnvoyStreamId, response: DeltaDiscoveryResponse) -> Option<Event> {
        let envoy = self.envoys.get_mut(&id)?;
        let sent = (response.nonce.clone(), Instant::now());
        envoy.unanswered.push(sent);
        match envoy.responses.send(response) {
            Ok(()) => None,
            Err(status) => self.remove(id, Some(status)),
        }
    }

    /// Some servers resend rejected resources whenever anything else changes. Without a pause, server
    /// and Envoy would loop as fast as the network allows.
    fn on_rejected(&mut self, rejected: &Rejected) {
        self.metrics.rejected(&rejected.type_url);
        self.arrived.remove(&rejected.type_url);
        let pause = match rejected.in_a_row {
            0 | 1 => None,
            count => Some(Duration::from_millis(500 << count.min(6)).min(LONGEST_PAUSE)),
        };
        self.pause_until = pause
            .map(|pause| Instant::now() + pause)
            .max(self.pause_until);
        let names = &rejected.names;
        let shown = &names[..names.len().min(SHOWN_NAMES)];
        tracing::warn!(
            kind = label(&rejected.type_url),
            names = shown.join(", "),
            count = names.len(),
            from_server = rejected.from_server,
            in_a_row = rejected.in_a_row,
            error = rejected.message,
            "Envoy rejected its configuration and keeps what it had"
        );
    }

    fn report(&self) {
        match (self.servers.error(), self.core.missing()) {
            (Some(error), _) if error.refused => self.readiness.failed(error.to_string()),
            (_, None) => self.readiness.ready(),
            (None, Some(why)) => self.readiness.pending(why),
            (Some(error), Some(why)) => self.readiness.pending(format!("{why}; {error}")),
        }
    }
}

/// The next request of an Envoy, or the end of its stream. Streams after `last` are polled first, so
/// that no stream starves another.
async fn read(
    envoys: &mut BTreeMap<EnvoyStreamId, Envoy>,
    last: EnvoyStreamId,
) -> (EnvoyStreamId, Option<Result<FromProxy, Status>>) {
    poll_fn(|cx| {
        let after = (Bound::Excluded(last), Bound::Unbounded);
        for range in [after, (Bound::Unbounded, Bound::Included(last))] {
            for (id, envoy) in envoys.range_mut(range) {
                if let Poll::Ready(request) = envoy.requests.poll_next(cx) {
                    return Poll::Ready((*id, request));
                }
            }
        }
        Poll::Pending
    })
    .await
}

/// A timer that is never moved to a later time. Deadlines move with almost every message; one
/// spurious wake-up every two minutes costs less than a reset per message.
#[derive(Default)]
struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Makes it fire no later than `at`.
    fn set(&mut self, at: Option<Instant>) {
        let Some(at) = at else {
            return;
        };
        match &mut self.sleep {
            Some(sleep) if sleep.deadline() <= at => {}
            Some(sleep) => sleep.as_mut().reset(at),
            None => self.sleep = Some(Box::pin(sleep_until(at))),
        }
    }

    /// Waits until it fires. Cancel safe.
    async fn rings(&mut self) {
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().await,
            None => std::future::pending().await,
        }
        self.sleep = None;
    }
}
