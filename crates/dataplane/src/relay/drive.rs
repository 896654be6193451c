//! The task that owns the relay's core: it takes what Envoys and servers send, asks the core, and
//! does what it says. It decides nothing about resources.

use std::collections::{HashMap, VecDeque};
use std::pin::{Pin, pin};
use std::time::Duration;

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_runtime::{CancellationToken, ReadyHandle};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::DropGuard;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::connections::OpenStream;
use super::core::{Action, Core, EnvoyStreamId, Event, Rejected};
use super::limits::MAX_STREAMS;
use super::metrics::RelayMetrics;
use super::pace::PATIENCE;
use super::status::{Configuration, RelayStatus, SHOWN_NAMES, label};
use super::supply::{Supplied, Supply};

/// When Envoy has been complete for this long, it has asked for all that it wants.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// How long Envoy may take to answer a response. It answers when it has read the configuration, and
/// a large one takes its time; one that never answers gets nothing new and holds up others.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// Longest pause after rejected responses.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Where responses to one Envoy go.
pub(super) type ToEnvoy = mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>;

/// Why the relay ended.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// No server gives this proxy a configuration, and none will.
    #[error("Envoy gets no configuration: {reason}")]
    Refused {
        /// The server's words and what to look at.
        reason: String,
    },
}

/// What the task is told by others.
#[derive(Debug)]
pub(super) enum Input {
    Opened(Box<Opening>),
    Request(EnvoyStreamId, Box<DeltaDiscoveryRequest>),
    /// A stream ended, or has to be refused with a status.
    Closed(EnvoyStreamId, Option<Status>),
    Status(oneshot::Sender<RelayStatus>),
}

/// A stream that an Envoy opens.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) id: EnvoyStreamId,
    pub(super) responses: ToEnvoy,
    pub(super) metadata: MetadataMap,
    /// The connection is needed for as long as this is there.
    pub(super) connection: OpenStream,
    /// Its requests are read for as long as this is there.
    pub(super) reading: DropGuard,
    /// Says whether there is room for it.
    pub(super) admitted: oneshot::Sender<Result<(), Status>>,
}

/// One stream of an Envoy.
struct Envoy {
    sender: ToEnvoy,
    metadata: MetadataMap,
    _connection: OpenStream,
    _reading: DropGuard,
    /// Nonces of responses that it has not answered, and since when.
    unanswered: HashMap<String, Instant>,
}

enum Wake {
    Stop,
    Input(Option<Input>),
    Supplied(Supplied),
    Timer,
}

/// The task's state.
pub(super) struct Driver {
    pub(super) core: Core,
    pub(super) inputs: mpsc::Receiver<Input>,
    pub(super) supply: Supply,
    pub(super) readiness: ReadyHandle,
    pub(super) metrics: RelayMetrics,
    pub(super) stop: CancellationToken,
    envoys: HashMap<EnvoyStreamId, Envoy>,
    /// When the response that Envoy has of a type arrived.
    arrived: HashMap<String, Instant>,
    /// Nothing is read from servers before.
    pause_until: Option<Instant>,
    forget_at: Option<Instant>,
}

impl Driver {
    pub(super) fn new(
        inputs: mpsc::Receiver<Input>,
        supply: Supply,
        readiness: ReadyHandle,
        metrics: RelayMetrics,
        stop: CancellationToken,
    ) -> Driver {
        Driver {
            core: Core::new(),
            inputs,
            supply,
            readiness,
            metrics,
            stop,
            envoys: HashMap::new(),
            arrived: HashMap::new(),
            pause_until: None,
            forget_at: None,
        }
    }

    pub(super) async fn run(mut self) -> Result<(), RelayError> {
        // Made once: with every message they would be entered into a list and taken out again.
        let stop = self.stop.clone();
        let mut stopped = pin!(stop.cancelled());
        let mut alarm = Alarm::default();
        loop {
            if self.core.needs_upstream() {
                for event in self.supply.connect() {
                    self.handle(event);
                }
            }
            self.report();
            let paused = self.pause_until.is_some();
            let may_read = !paused && self.core.wants_upstream();
            let timer = self
                .pause_until
                .into_iter()
                .chain(self.forget_at)
                .chain(self.overdue_at());
            alarm.set(timer.min());
            let wake = tokio::select! {
                () = &mut stopped => Wake::Stop,
                input = self.inputs.recv() => Wake::Input(input),
                supplied = self.supply.next(may_read) => Wake::Supplied(supplied),
                () = alarm.rings() => Wake::Timer,
            };
            match wake {
                Wake::Stop | Wake::Input(None) => return Ok(()),
                Wake::Input(Some(input)) => self.on_input(input),
                Wake::Supplied(supplied) => self.on_supplied(supplied)?,
                Wake::Timer => self.on_timer(),
            }
        }
    }

    fn on_input(&mut self, input: Input) {
        match input {
            Input::Opened(opening) => self.on_opened(*opening),
            Input::Request(id, request) => {
                if let Some(envoy) = self.envoys.get_mut(&id) {
                    envoy.unanswered.remove(&request.response_nonce);
                }
                self.handle(Event::EnvoyRequest(id, request));
            }
            Input::Closed(id, None) => self.close(id),
            Input::Closed(id, Some(status)) => {
                tracing::debug!(code = ?status.code(), error = status.message(), "Envoy's xDS stream broke");
                self.refuse(id, status);
                self.handle(Event::EnvoyGone(id));
            }
            Input::Status(reply) => {
                // Whoever asked may have stopped waiting.
                let _ = reply.send(self.core.status(self.supply.status()));
            }
        }
    }

    fn on_opened(&mut self, opening: Opening) {
        let id = opening.id;
        if self.envoys.len() >= MAX_STREAMS && !self.make_room() {
            let message =
                format!("{MAX_STREAMS} xDS streams are open here, which is as many as can be");
            // The call may have been given up.
            let _ = opening
                .admitted
                .send(Err(Status::resource_exhausted(message)));
            return;
        }
        if opening.admitted.send(Ok(())).is_err() {
            return;
        }
        let envoy = Envoy {
            sender: opening.responses,
            metadata: opening.metadata,
            _connection: opening.connection,
            _reading: opening.reading,
            unanswered: HashMap::new(),
        };
        self.envoys.insert(id, envoy);
        self.envoys_changed();
        self.handle(Event::EnvoyConnected(id));
    }

    /// Ends the oldest stream that has not asked for anything.
    fn make_room(&mut self) -> bool {
        let Some(silent) = self.core.silent() else {
            return false;
        };
        let message = "an xDS stream that asked for nothing made room for another one";
        self.refuse(silent, Status::resource_exhausted(message));
        self.handle(Event::EnvoyGone(silent));
        true
    }

    fn close(&mut self, id: EnvoyStreamId) {
        if self.envoys.remove(&id).is_some() {
            self.envoys_changed();
            self.handle(Event::EnvoyGone(id));
        }
    }

    fn envoys_changed(&mut self) {
        // As the core does with who asks: the first of those that are there counts.
        if let Some((_, first)) = self.envoys.iter().min_by_key(|(id, _)| **id) {
            self.supply.introduce(first.metadata.clone());
        }
        self.metrics.envoys(self.envoys.len());
        self.forget_at = Some(Instant::now() + FORGET_AFTER);
    }

    fn on_supplied(&mut self, supplied: Supplied) -> Result<(), RelayError> {
        match supplied {
            Supplied::Response(epoch, response) => {
                self.arrived
                    .insert(response.type_url.clone(), Instant::now());
                self.handle(Event::ServerResponse(epoch, response));
            }
            Supplied::Ended(epoch, status) => {
                self.supply.lost(epoch, &status, self.core.was_configured());
                self.handle(Event::ServerGone(epoch));
                return self.judge_refusal();
            }
            Supplied::Replaced(epochs) => {
                for epoch in epochs {
                    self.handle(Event::ServerGone(epoch));
                }
            }
            Supplied::Check => {}
        }
        Ok(())
    }

    /// An Envoy that never had a configuration and will not get one has nothing to wait for. One
    /// that serves, also with what another dataplane gave it, is left alone.
    fn judge_refusal(&self) -> Result<(), RelayError> {
        let Some(trouble) = self.supply.trouble() else {
            return Ok(());
        };
        let lasting = matches!(trouble.code, Code::PermissionDenied | Code::NotFound)
            && self.supply.refusals() >= PATIENCE;
        if trouble.refused && (lasting || trouble.no_proxy) && !self.core.was_configured() {
            return Err(RelayError::Refused {
                reason: trouble.to_string(),
            });
        }
        Ok(())
    }

    /// When the first response becomes overdue.
    fn overdue_at(&self) -> Option<Instant> {
        let sent = self
            .envoys
            .values()
            .flat_map(|envoy| envoy.unanswered.values());
        sent.min().map(|sent| *sent + ANSWER_WITHIN)
    }

    /// A new stream gets Envoy going again, or shows that nobody is there.
    fn close_overdue(&mut self, now: Instant) {
        let overdue = |envoy: &Envoy| {
            envoy
                .unanswered
                .values()
                .any(|sent| *sent + ANSWER_WITHIN <= now)
        };
        let silent = self
            .envoys
            .iter()
            .filter(|(_, envoy)| overdue(envoy))
            .map(|(id, _)| *id);
        for id in silent.collect::<Vec<_>>() {
            tracing::warn!(
                "Envoy has not answered an xDS response for {ANSWER_WITHIN:?}, closing its stream"
            );
            self.close(id);
        }
    }

    /// Does what is due, which may be nothing: the alarm also rings for what has come to nothing.
    fn on_timer(&mut self) {
        let now = Instant::now();
        self.pause_until = self.pause_until.filter(|at| *at > now);
        self.close_overdue(now);
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
            Action::ToEnvoy(id, response) => {
                // Envoy has at most one unanswered response a type, so its queue is never full.
                return (!self.send(id, response)).then(|| self.drop_envoy(id));
            }
            Action::CloseEnvoy(id, excess) => {
                tracing::warn!("refused an xDS stream on Envoy's port: {excess}");
                self.refuse(id, excess.into());
            }
            Action::ToServer(epoch, request) => {
                if let Some(status) = self.supply.send(epoch, request) {
                    self.supply.lost(epoch, &status, self.core.was_configured());
                    return Some(Event::ServerGone(epoch));
                }
            }
            Action::RenewServer => self.supply.renew(),
            Action::Accepted(accepted) => {
                let url = &accepted.type_url;
                let took = self.arrived.remove(url).map(|at| at.elapsed());
                self.metrics.accepted(url, self.core.held(url), took);
                tracing::debug!(
                    kind = label(url),
                    resources = accepted.resources,
                    removed = accepted.removed,
                    "Envoy accepted"
                );
            }
            Action::Rejected(rejected) => self.on_rejected(&rejected),
            Action::Unexpected(url) => {
                tracing::warn!(
                    type_url = url,
                    "the server sent resources nobody asked for, ignoring them"
                );
            }
        }
        None
    }

    fn send(&mut self, id: EnvoyStreamId, response: DeltaDiscoveryResponse) -> bool {
        let Some(envoy) = self.envoys.get_mut(&id) else {
            return false;
        };
        envoy
            .unanswered
            .insert(response.nonce.clone(), Instant::now());
        envoy.sender.try_send(Ok(response)).is_ok()
    }

    /// Ends a stream that the core has let go of.
    fn refuse(&mut self, id: EnvoyStreamId, status: Status) {
        if let Some(envoy) = self.envoys.remove(&id) {
            // Envoy has at most one unanswered response a type: there is room.
            let _ = envoy.sender.try_send(Err(status));
            self.envoys_changed();
        }
    }

    fn drop_envoy(&mut self, id: EnvoyStreamId) -> Event {
        self.envoys.remove(&id);
        self.envoys_changed();
        Event::EnvoyGone(id)
    }

    /// Some servers offer what was rejected again as soon as anything else moves: without a pause
    /// the two would go round as fast as the network allows.
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
        let shown = rejected
            .names
            .iter()
            .take(SHOWN_NAMES)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        tracing::warn!(
            kind = label(&rejected.type_url),
            names = shown,
            count = rejected.names.len(),
            from_server = rejected.from_server,
            in_a_row = rejected.in_a_row,
            error = rejected.message,
            "Envoy rejected its configuration and keeps what it had"
        );
    }

    fn report(&self) {
        match self.supply.trouble() {
            Some(trouble) if trouble.refused => self.readiness.failed(trouble.to_string()),
            trouble => match (self.core.configuration(), trouble) {
                (Configuration::Complete, _) => self.readiness.ready(),
                (Configuration::Missing(why), None) => self.readiness.pending(why),
                (Configuration::Missing(why), Some(trouble)) => {
                    self.readiness.pending(format!("{why}; {trouble}"));
                }
            },
        }
    }
}

/// A timer that never moves back: what is due moves further away with almost every message, and
/// one alarm in vain every two minutes costs less than one that is set for each of them.
#[derive(Default)]
struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Makes it ring at this time at the latest.
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

    /// Cancel safe.
    async fn rings(&mut self) {
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().await,
            None => std::future::pending().await,
        }
        self.sleep = None;
    }
}
