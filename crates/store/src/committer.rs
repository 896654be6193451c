//! The committer: the only task that writes to a backend. It also follows the commits of other
//! servers, and drives the protocol between them ([`crate::replicas`]).
//!
//! It makes no decisions. Transactions contain the logic, the backend stores rows, and the machine
//! decides what is stored when.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use legate_runtime::CancellationToken;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use crate::backend::etcd::Lead;
use crate::backend::{Backend, Batch, Loaded, NotCommitted};
use crate::codec::{FORMAT, Header};
use crate::commit::{Takes, Waiting, Work};
use crate::open_error::OpenError;
use crate::outcome::Unavailable;
use crate::replicas::Shared;
use crate::replicas::links::LinkEvent;
use crate::replicas::machine::{Action, Event, LinkId, Machine, Trouble, Unreadable};
use crate::replicas::message::Message;
use crate::upgrade::upgraded;

/// The maximum number of attempts to rewrite an older store after conflicts.
const ATTEMPTS: usize = 100;
/// The interval at which time limits are checked.
const TICK: Duration = Duration::from_millis(100);
/// How long a stopping server waits for the outcome of its transactions at the leader.
const UNDECIDED: Duration = Duration::from_secs(1);

/// The state of the task.
pub(crate) struct Committer<B> {
    pub(crate) backend: B,
    pub(crate) machine: Machine,
}

/// Where events come from.
struct Inputs {
    waiting: Waiting,
    shared: Option<Shared>,
    outboxes: HashMap<LinkId, mpsc::Sender<Message>>,
    tick: Interval,
    /// The connection to the leader at this address.
    leader: Option<(String, LinkId)>,
    /// Why a leader cannot be reached.
    unreachable: Option<(String, String)>,
    /// What the machine was last notified of.
    role: Option<Role>,
    trouble: Option<Trouble>,
    events: VecDeque<Event>,
    /// All handles of the store were dropped.
    ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Leads,
    Follows(Option<LinkId>),
}

/// Work for the backend.
enum Storing {
    Batch(Arc<Batch>),
    Everything(u64, Arc<Loaded>),
}

impl<B: Backend> Committer<B> {
    /// Rewrites a store of an older format, so that older servers refuse it from now on.
    pub(crate) async fn upgrade(&mut self) -> Result<(), OpenError> {
        let failed = |reason: String| OpenError::NotUpgraded { reason };
        let mut attempts = 0;
        while self.machine.origin.check(&self.machine.header)? < FORMAT {
            let state = self.machine.tables.state();
            let (next, changes) = upgraded(&state);
            let codec = &self.machine.codec;
            let header = Header::new(&codec.key).map_err(|error| failed(error.to_string()))?;
            let contents = Loaded {
                header: serde_json::to_vec(&header).map_err(|error| failed(error.to_string()))?,
                index: next.index(),
                rows: codec.encode_all(&next).map_err(not_upgraded)?,
            };
            let contents = Arc::new(contents);
            let replaced = self.backend.replace(state.index(), Arc::clone(&contents));
            match replaced.await {
                Ok(()) => {
                    self.machine.header.clone_from(&contents.header);
                    self.machine.tables.publish(next, &changes);
                }
                // Another server has written in the meantime, or has rewritten the store itself.
                Err(NotCommitted::Lost) if attempts < ATTEMPTS => {
                    attempts += 1;
                    let change = self.backend.changed().await;
                    let changed = Event::Changed(change, self.backend.last_commit());
                    self.machine
                        .handle(Instant::now(), changed)
                        .map_err(|error| failed(error.to_string()))?;
                }
                Err(error) => return Err(not_upgraded(why(error))),
            }
        }
        Ok(())
    }

    /// Commits until the token is cancelled or all handles of the store are dropped.
    pub(crate) async fn run(
        mut self,
        waiting: Waiting,
        shared: Option<Shared>,
        token: CancellationToken,
    ) -> Result<(), Unreadable> {
        self.machine.starts_at(self.backend.last_commit());
        let mut inputs = Inputs::new(waiting, shared);
        let mut ended = self.serve(&mut inputs, &token).await;
        if ended.is_ok() {
            let settled = timeout(UNDECIDED, self.settle()).await;
            ended = settled.unwrap_or(Ok(()));
        }
        self.machine.refuse_all();
        inputs.waiting.refuse_all().await;
        self.backend.close().await;
        ended
    }

    async fn serve(
        &mut self,
        inputs: &mut Inputs,
        token: &CancellationToken,
    ) -> Result<(), Unreadable> {
        inputs.observe();
        loop {
            while let Some(event) = inputs.events.pop_front() {
                self.machine.handle(Instant::now(), event)?;
            }
            if token.is_cancelled() || inputs.ended {
                return Ok(());
            }
            if let Some(storing) = inputs.perform(&mut self.machine) {
                self.store(storing, inputs).await?;
                continue;
            }
            tokio::select! {
                biased;
                () = token.cancelled() => return Ok(()),
                change = self.backend.changed() => {
                    let changed = Event::Changed(change, self.backend.last_commit());
                    self.machine.handle(Instant::now(), changed)?;
                }
                () = inputs.next(self.machine.takes()) => {}
            }
        }
    }

    /// Stores something. Events are handled meanwhile.
    async fn store(&mut self, storing: Storing, inputs: &mut Inputs) -> Result<(), Unreadable> {
        let Self { backend, machine } = self;
        let stored = {
            let mut stored = pin!(async {
                match storing {
                    Storing::Batch(batch) => backend.commit(batch).await,
                    Storing::Everything(base, contents) => backend.replace(base, contents).await,
                }
            });
            loop {
                tokio::select! {
                    biased;
                    stored = &mut stored => break stored,
                    () = inputs.next(machine.takes()), if !inputs.ended => {}
                }
                while let Some(event) = inputs.events.pop_front() {
                    machine.handle(Instant::now(), event)?;
                }
                // Nothing else is stored at the same time.
                let _ = inputs.perform(machine);
            }
        };
        let stored = Event::Stored(stored, backend.last_commit());
        machine.handle(Instant::now(), stored)
    }

    /// Waits until the outcome of all transactions is known.
    async fn settle(&mut self) -> Result<(), Unreadable> {
        while self.machine.is_undecided() {
            let change = self.backend.changed().await;
            let changed = Event::Changed(change, self.backend.last_commit());
            self.machine.handle(Instant::now(), changed)?;
        }
        Ok(())
    }
}

impl Inputs {
    fn new(waiting: Waiting, shared: Option<Shared>) -> Self {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            waiting,
            shared,
            outboxes: HashMap::new(),
            tick,
            leader: None,
            unreachable: None,
            role: None,
            trouble: None,
            events: VecDeque::new(),
            ended: false,
        }
    }

    /// Waits until there are events. Cancel-safe.
    async fn next(&mut self, takes: Takes) {
        let Some(shared) = &mut self.shared else {
            let work = self.waiting.next(takes).await;
            self.work(work);
            return;
        };
        tokio::select! {
            work = self.waiting.next(takes) => self.work(work),
            Some(event) = shared.links.events.recv() => {
                // A leader whose lease is over confirms nothing.
                self.observe();
                self.link(event);
            }
            Ok(()) = shared.lead.changed() => {}
            Ok(()) = shared.health.changed() => {}
            _ = self.tick.tick() => self.events.push_back(Event::Tick),
        }
        self.observe();
    }

    fn work(&mut self, work: Option<Work>) {
        match work {
            Some(Work::Write(jobs)) => self.events.push_back(Event::Jobs(jobs)),
            Some(Work::Restore(restore)) => self.events.push_back(Event::Restore(restore)),
            Some(Work::Renew(renewals)) => self.events.push_back(Event::Renew(renewals)),
            None => self.ended = true,
        }
    }

    fn link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Joined(link, outbox) => {
                self.outboxes.insert(link, outbox);
                self.events.push_back(Event::Joined(link));
            }
            LinkEvent::Connected(address, link, outbox) => {
                self.outboxes.insert(link, outbox);
                self.leader = Some((address, link));
                self.unreachable = None;
            }
            LinkEvent::Unreachable(address, reason) => {
                self.unreachable = Some((address, reason));
            }
            LinkEvent::Received(link, message) => {
                self.events.push_back(Event::Received(link, message));
            }
            LinkEvent::Left(link) => self.left(link),
        }
    }

    fn left(&mut self, link: LinkId) {
        self.outboxes.remove(&link);
        self.leader.take_if(|(_, leader)| *leader == link);
        self.events.push_back(Event::Left(link));
    }

    /// Tells the machine who leads, and why transactions wait, if that has changed.
    fn observe(&mut self) {
        let Some(shared) = &self.shared else {
            return;
        };
        let now = Instant::now();
        let lead = shared.lead.borrow().clone();
        let role = match &lead {
            Lead::Me(until) if now < *until => Role::Leads,
            Lead::Other(address) => {
                let leader = self.leader.as_ref();
                let connected = leader.filter(|(connected, _)| connected == address);
                Role::Follows(connected.map(|(_, link)| *link))
            }
            Lead::Me(_) | Lead::Nobody => Role::Follows(None),
        };
        if self.role != Some(role) {
            self.role = Some(role);
            self.events.push_back(match role {
                Role::Leads => Event::Leads,
                Role::Follows(link) => Event::Follows(link),
            });
        }
        let away = shared.health.borrow().clone();
        let waits = |reason: String| Trouble {
            reason: reason.into(),
            blind: false,
            since: now,
        };
        let mut trouble = match (away, role, lead) {
            (Some(away), ..) => Some(Trouble {
                reason: format!(
                    "etcd cannot store it ({}); reads still work; check its members, {}",
                    away.reason, shared.members
                )
                .into(),
                blind: true,
                since: away.since,
            }),
            (None, Role::Follows(None), Lead::Other(address)) => Some(waits(format!(
                "the server that leads, at {address}, cannot be reached{}; servers must reach \
                 each other at their --server-port",
                self.why_not(&address)
            ))),
            (None, Role::Follows(None), _) => Some(waits(
                "no server leads; one is elected within seconds".to_owned(),
            )),
            (None, ..) => None,
        };
        if let (Some(new), Some(old)) = (&mut trouble, &self.trouble)
            && new.blind == old.blind
        {
            new.since = old.since;
        }
        if self.trouble != trouble {
            self.trouble.clone_from(&trouble);
            self.events.push_back(Event::Trouble(trouble));
        }
    }

    fn why_not(&self, address: &str) -> String {
        match &self.unreachable {
            Some((unreachable, reason)) if unreachable == address => format!(" ({reason})"),
            _ => String::new(),
        }
    }

    /// Sends messages. Returns what is to be stored.
    fn perform(&mut self, machine: &mut Machine) -> Option<Storing> {
        while let Some(action) = machine.next_action() {
            match action {
                Action::Send(link, message) => {
                    let outbox = self.outboxes.get(&link);
                    if outbox.is_some_and(|outbox| outbox.try_send(message).is_err()) {
                        self.left(link);
                    }
                }
                // Dropping the sender closes the connection.
                Action::Close(link) => {
                    self.outboxes.remove(&link);
                }
                Action::Commit(batch) => return Some(Storing::Batch(batch)),
                Action::Replace(base, contents) => {
                    return Some(Storing::Everything(base, contents));
                }
            }
        }
        None
    }
}

fn not_upgraded(unavailable: Unavailable) -> OpenError {
    OpenError::NotUpgraded {
        reason: unavailable.reason.to_string(),
    }
}

fn why(not_committed: NotCommitted) -> Unavailable {
    match not_committed {
        NotCommitted::Unavailable(unavailable) | NotCommitted::TooLarge(unavailable) => unavailable,
        NotCommitted::Lost => {
            Unavailable::new("other servers always committed first; try again later")
        }
    }
}
