//! The task that owns the relay's core: it takes what Envoys and servers send, asks the core, and
//! does what it says. It decides nothing about resources.

use std::collections::{HashMap, VecDeque};
use std::pin::{Pin, pin};
use std::time::Duration;

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_runtime::{CancellationToken, ReadyHandle};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::core::{Action, Core, Event, Rejected, SessionId};
use super::metrics::RelayMetrics;
use super::pace::PATIENCE;
use super::serve::RelayError;
use super::status::{Configuration, RelayStatus, SHOWN_NAMES, label};
use super::supply::{Supplied, Supply};

/// Streams that Envoys may have open. A hot restart needs two, and a stream that broke may take a
/// while to be noticed.
const MAX_ENVOYS: usize = 8;

/// When Envoy has been complete for this long, it has asked for all that it wants.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// How long Envoy may take to answer a response. It answers when it has read the configuration, and
/// a large one takes its time; one that never answers gets nothing new and holds up others.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// Longest pause after rejected responses.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Where responses to one Envoy go.
pub(super) type ToEnvoy = mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>;

/// What the task is told by others.
#[derive(Debug)]
pub(super) enum Input {
    Opened(SessionId, ToEnvoy, Box<MetadataMap>),
    Request(SessionId, Box<DeltaDiscoveryRequest>),
    Closed(SessionId),
    Status(oneshot::Sender<RelayStatus>),
}

/// One stream of an Envoy.
struct Envoy {
    sender: ToEnvoy,
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
    envoys: HashMap<SessionId, Envoy>,
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
            Input::Opened(id, sender, metadata) => self.on_opened(id, sender, *metadata),
            Input::Request(id, request) => {
                if let Some(envoy) = self.envoys.get_mut(&id) {
                    envoy.unanswered.remove(&request.response_nonce);
                }
                self.handle(Event::EnvoyRequest(id, request));
            }
            Input::Closed(id) => self.close(id),
            Input::Status(reply) => {
                // Whoever asked may have stopped waiting.
                let _ = reply.send(self.core.status(self.supply.status()));
            }
        }
    }

    fn on_opened(&mut self, id: SessionId, sender: ToEnvoy, metadata: MetadataMap) {
        if self.envoys.len() >= MAX_ENVOYS {
            let status = Status::resource_exhausted("too many xDS streams are open here");
            // The channel is new and empty.
            let _ = sender.try_send(Err(status));
            return;
        }
        self.supply.introduce(metadata);
        let unanswered = HashMap::new();
        self.envoys.insert(id, Envoy { sender, unanswered });
        self.envoys_changed();
        self.handle(Event::EnvoyConnected(id));
    }

    fn close(&mut self, id: SessionId) {
        if self.envoys.remove(&id).is_some() {
            self.envoys_changed();
            self.handle(Event::EnvoyGone(id));
        }
    }

    fn envoys_changed(&mut self) {
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
                self.supply.lost(epoch, &status);
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

    /// An Envoy that never had a configuration and will not get one has nothing to wait for.
    fn judge_refusal(&self) -> Result<(), RelayError> {
        let Some(trouble) = self.supply.trouble() else {
            return Ok(());
        };
        let fatal = matches!(trouble.code, Code::PermissionDenied | Code::NotFound);
        if fatal
            && trouble.refused
            && self.supply.refusals() >= PATIENCE
            && !self.core.was_configured()
        {
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
            Action::CloseEnvoy(id) => {
                tracing::warn!(
                    "a client asks for too many types of resources, closing its xDS stream"
                );
                return Some(self.drop_envoy(id));
            }
            Action::ToServer(epoch, request) => {
                if let Some(status) = self.supply.send(epoch, request) {
                    self.supply.lost(epoch, &status);
                    return Some(Event::ServerGone(epoch));
                }
            }
            Action::CloseServer(epoch) => self.supply.close(epoch),
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

    fn send(&mut self, id: SessionId, response: DeltaDiscoveryResponse) -> bool {
        let Some(envoy) = self.envoys.get_mut(&id) else {
            return false;
        };
        envoy
            .unanswered
            .insert(response.nonce.clone(), Instant::now());
        envoy.sender.try_send(Ok(response)).is_ok()
    }

    fn drop_envoy(&mut self, id: SessionId) -> Event {
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
