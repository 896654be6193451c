//! The protocol without IO: events in, actions out. See the [module](super).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::WRITE;
use super::message::{Message, Part};
use super::renewing::Renewing;
use crate::backend::{Batch, Change, Commit, Loaded, NotCommitted, Rows};
use crate::codec::Codec;
use crate::commit::{Attempt, Group, Queued, Ran, Restore, Room, Takes};
use crate::key::Key;
use crate::open_error::OpenError;
use crate::origin::Origin;
use crate::outcome::{Applied, Unavailable};
use crate::reader::Tables;
use crate::renewals::{Renewal, SessionKey};
use crate::state::{Changes, State};
use crate::stored_tables::BadRow;
use crate::write::replay;

/// How long a leader waits for a follower in its turn, before it closes the connection.
const TURN: Duration = Duration::from_millis(500);
/// How long a follower may take to replace everything.
const LENT: Duration = Duration::from_secs(60);
/// The pause after a fence that could not be stored.
const FENCE_PAUSE: Duration = Duration::from_secs(1);
/// The maximum number of attempts of a restore after conflicts.
const ATTEMPTS: usize = 100;
/// The maximum number of waiting transactions in the machine; more wait in the queue before it.
const WAITING: usize = 512;
/// The maximum length of the chain; a follower whose watch is this far behind takes no turn.
const CHAIN: usize = 1024;
/// How many committed parts the leader remembers for followers, and their bytes.
const LOG_PARTS: usize = 1024;
const LOG_BYTES: usize = 16 * 1024 * 1024;

/// A connection to another server.
pub(crate) type LinkId = u64;

/// What happens.
pub(crate) enum Event {
    /// Transactions of this server.
    Jobs(Vec<Box<dyn Attempt>>),
    Restore(Restore),
    /// Renewals of sessions at this server.
    Renew(Vec<Renewal>),
    /// This server leads from now on.
    Leads,
    /// Another server leads; `None`: there is no leader, or no connection to it.
    Follows(Option<LinkId>),
    /// A follower has connected.
    Joined(LinkId),
    /// A connection has ended.
    Left(LinkId),
    Received(LinkId, Message),
    /// The outcome of [`Action::Commit`] or [`Action::Replace`], and the id of the last commit.
    Stored(Result<(), NotCommitted>, Uuid),
    /// A commit that the machine does not have, and its id.
    Changed(Change, Uuid),
    /// Why transactions wait; `None`: they should not.
    Trouble(Option<Trouble>),
    /// Time has passed.
    Tick,
}

/// Why transactions wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) reason: Arc<str>,
    /// Commits of other servers are not seen.
    pub(crate) blind: bool,
    pub(crate) since: Instant,
}

/// What to do. At most one commit or replacement is in progress.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Send(LinkId, Message),
    Close(LinkId),
    Commit(Arc<Batch>),
    Replace(u64, Arc<Loaded>),
}

/// Another server wrote data that this one cannot read: it must not continue with a partial state.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// One row.
    #[error(
        "a row that another server stored cannot be read ({0}): is that server newer? Restart this \
         one with the same version and key file"
    )]
    Row(#[from] BadRow),
    /// Everything was replaced.
    #[error("another server replaced the store: {0}")]
    Header(#[from] OpenError),
}

/// The state of the protocol.
pub(crate) struct Machine {
    pub(crate) codec: Codec,
    /// The source of the rows, with their key.
    pub(crate) origin: Origin,
    /// The header that is stored with the rows.
    pub(crate) header: Vec<u8>,
    /// The result of all commits.
    pub(crate) tables: Arc<Tables>,
    /// The id of the last commit.
    committed: Uuid,
    /// Whether other servers may write.
    shared: bool,
    /// Whether this server leads.
    leads: bool,
    /// The connection to the leader.
    leader: Option<LinkId>,
    now: Instant,

    /// Transactions that have not run, or run again.
    jobs: VecDeque<Queued>,
    /// A restore of this server.
    restore: Option<Restoring>,
    /// Renewals that the leader has not confirmed.
    renewing: Renewing,
    /// Parts on top of the last commit, each based on the one before.
    chain: VecDeque<Segment>,
    /// What is being stored.
    flight: Option<Flight>,
    /// A commit of another server conflicted, and has not been seen yet.
    behind: bool,
    trouble: Option<Trouble>,
    /// Transactions have failed because of it; others fail at once.
    hopeless: bool,

    followers: BTreeMap<LinkId, Follower>,
    /// The follower that runs transactions now.
    turn: Option<Turn>,
    last_turn: LinkId,
    /// The follower that replaces everything now.
    lent: Option<(LinkId, Instant)>,
    /// Another commit is needed, if only an empty one, so that followers see which parts are not
    /// stored.
    fence: bool,
    fence_after: Instant,
    /// The chain is that of an earlier leader.
    inherited: bool,
    /// The maximum number of rows of a commit: that of the backend, or less after a large one.
    rows: usize,
    most_rows: usize,
    /// No more transactions fit into the next commit.
    full: bool,
    log: Log,

    asking: Asking,
    actions: VecDeque<Action>,
}

/// A part of the chain.
struct Segment {
    part: Arc<Part>,
    /// The state after it.
    state: State,
    changes: Changes,
    /// This server's transactions in it, and those that changed nothing and have seen it.
    ran: Vec<Ran>,
    /// The follower that ran it, for a leader.
    follower: Option<LinkId>,
}

enum Flight {
    /// So many parts of the chain.
    Parts(usize),
    Fence(Arc<Part>),
    Everything,
}

struct Restoring {
    restore: Restore,
    contents: Arc<Loaded>,
    attempts: usize,
    since: Instant,
}

/// A follower, as its leader knows it.
struct Follower {
    wants: bool,
    wants_all: bool,
    /// Sessions that its clients renew.
    renewing: Vec<SessionKey>,
    /// The index up to which it has all parts.
    at: u64,
}

struct Turn {
    id: Uuid,
    link: LinkId,
    since: Instant,
}

/// What a follower has asked its leader for.
#[derive(Default)]
struct Asking {
    turn: bool,
    all: bool,
    /// It may replace everything.
    has_all: bool,
    /// It must see another commit before it can use a turn.
    stale: bool,
    /// The connection is new, and its parts may not have reached the leader.
    unsure: bool,
}

/// Committed parts that followers may lack.
struct Log {
    /// The id of the part or commit before the first one.
    before: Uuid,
    parts: VecDeque<Arc<Part>>,
    bytes: usize,
}

impl Machine {
    /// `shared`: other servers may write, and one of them is elected; otherwise this one leads.
    pub(crate) fn new(
        (codec, origin): (Codec, Origin),
        header: Vec<u8>,
        tables: Arc<Tables>,
        (rows, shared): (usize, bool),
    ) -> Self {
        let now = Instant::now();
        Self {
            codec,
            origin,
            header,
            tables,
            committed: Uuid::nil(),
            shared,
            leads: !shared,
            leader: None,
            now,
            jobs: VecDeque::new(),
            restore: None,
            renewing: Renewing::default(),
            chain: VecDeque::new(),
            flight: None,
            behind: false,
            trouble: None,
            hopeless: false,
            followers: BTreeMap::new(),
            turn: None,
            last_turn: 0,
            lent: None,
            fence: false,
            fence_after: now,
            inherited: false,
            rows,
            most_rows: rows,
            full: false,
            log: Log::new(Uuid::nil()),
            asking: Asking::default(),
            actions: VecDeque::new(),
        }
    }

    /// Sets the id of the last commit, before the first event.
    pub(crate) fn starts_at(&mut self, committed: Uuid) {
        self.committed = committed;
        self.log = Log::new(committed);
    }

    /// What it takes from the queue now.
    pub(crate) fn takes(&self) -> Takes {
        Takes {
            jobs: self.jobs.len() < WAITING,
            restores: self.restore.is_none(),
            renewals: !self.renewing.is_full(),
        }
    }

    /// Whether the outcome of some transactions of this server is not known yet.
    pub(crate) fn is_undecided(&self) -> bool {
        self.flight.is_some() || self.chain.iter().any(|segment| !segment.ran.is_empty())
    }

    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn handle(&mut self, now: Instant, event: Event) -> Result<(), Unreadable> {
        self.now = now;
        match event {
            Event::Jobs(jobs) => {
                let queued = jobs.into_iter().map(|job| Queued { job, since: now });
                self.jobs.extend(queued);
                if self.hopeless && self.cannot_commit() {
                    self.expire();
                }
            }
            Event::Restore(restore) => self.restore = Some(self.restoring(restore)),
            Event::Renew(renewals) => {
                self.renewing.add(renewals, now);
                if self.hopeless && self.cannot_commit() {
                    self.expire();
                }
            }
            Event::Leads => self.lead(),
            Event::Follows(link) => self.follow_leader(link),
            Event::Joined(link) => {
                let at = self.tables.state().index();
                let follower = Follower {
                    wants: false,
                    wants_all: false,
                    renewing: Vec::new(),
                    at,
                };
                self.followers.insert(link, follower);
            }
            Event::Left(link) => self.left(link),
            Event::Received(link, message) => self.received(link, message)?,
            Event::Stored(stored, id) => self.stored(stored, id),
            Event::Changed(change, id) => self.changed(&change, id)?,
            Event::Trouble(trouble) => {
                self.hopeless &= trouble.is_some();
                self.trouble = trouble;
            }
            Event::Tick => self.tick(),
        }
        if self.leads {
            self.renew_all();
            self.go_on();
        } else {
            self.ask();
        }
        Ok(())
    }

    /// Answers everything that waits: the server stops.
    pub(crate) fn refuse_all(&mut self) {
        let ran = self.chain.drain(..).flat_map(|segment| segment.ran);
        for ran in ran {
            ran.done(Err(Unavailable::gone()));
        }
        for mut queued in self.jobs.drain(..) {
            queued.job.done(Err(Unavailable::gone()));
        }
        if let Some(restoring) = self.restore.take() {
            restoring.restore.finish(Err(Unavailable::gone()));
        }
        for renewal in self.renewing.take_all() {
            renewal.done(Err(Unavailable::gone()));
        }
    }
}

/// The chain.
impl Machine {
    fn tip(&self) -> State {
        match self.chain.back() {
            Some(last) => last.state.clone(),
            None => State::clone(&self.tables.state()),
        }
    }

    fn tip_id(&self) -> Uuid {
        let last = self.chain.back();
        last.map_or(self.committed, |last| last.part.id)
    }

    /// The number of rows that still fit into the next commit.
    fn room(&self) -> Room {
        let collected = self.chain.iter().skip(self.flying());
        let rows = collected.map(|segment| segment.part.rows.len()).sum();
        Room {
            rows: self.rows.saturating_sub(rows),
            exceed: rows == 0,
        }
    }

    /// The number of parts that are being stored.
    fn flying(&self) -> usize {
        match self.flight {
            Some(Flight::Parts(parts)) => parts,
            _ => 0,
        }
    }

    /// Runs waiting transactions on the tip. Returns the number that ran.
    fn run(&mut self, id: Uuid, room: Room) -> usize {
        let base = self.tip();
        let group = Group::run(&base, &mut self.jobs, room);
        let count = group.ran.len();
        if group.changes.is_empty() {
            match self.chain.back_mut() {
                Some(last) => last.ran.extend(group.ran),
                None => group.ran.into_iter().for_each(|ran| ran.done(Ok(()))),
            }
            return count;
        }
        let rows = match self.encode(&group) {
            Ok(rows) => rows,
            Err(error) => {
                self.refuse(group.ran, &error);
                return count;
            }
        };
        let part = Part {
            id,
            base: base.index(),
            index: group.state.index(),
            rows,
        };
        self.chain.push_back(Segment {
            part: Arc::new(part),
            state: group.state,
            changes: group.changes,
            ran: group.ran,
            follower: None,
        });
        count
    }

    /// The changed rows of a group in stored form.
    fn encode(&self, group: &Group) -> Result<Rows, Unavailable> {
        let rows = group.changes.rows.keys().map(|key| {
            let row = group.state.get(key);
            let value = row.map(|row| self.codec.encode(key, row)).transpose()?;
            Ok((key.to_bytes(), value))
        });
        rows.collect()
    }

    /// The state after rows of another server.
    fn replayed(&self, state: &State, index: u64, rows: &Rows) -> Result<(State, Changes), BadRow> {
        let rows = rows.iter().map(|(key, value)| match value {
            Some(value) => {
                let (key, row) = self.codec.decode(Arc::clone(key), value)?;
                Ok((key, Some(row)))
            }
            None => Ok((Key::from_bytes(Arc::clone(key)), None)),
        });
        let rows: Vec<_> = rows.collect::<Result<_, BadRow>>()?;
        Ok(replay(state, index, rows))
    }

    /// Appends a part of another server.
    fn append(&mut self, part: Arc<Part>, follower: Option<LinkId>) -> Result<(), BadRow> {
        let (state, changes) = self.replayed(&self.tip(), part.index, &part.rows)?;
        self.chain.push_back(Segment {
            part,
            state,
            changes,
            ran: Vec::new(),
            follower,
        });
        Ok(())
    }

    /// Publishes the first parts of the chain, which were committed, and answers their
    /// transactions.
    fn publish(&mut self, count: usize) {
        let mut changes = Changes::default();
        let mut answers = Vec::new();
        let mut last = None;
        let stored: Vec<_> = self.chain.drain(..count).collect();
        for segment in stored {
            changes.extend(segment.changes);
            answers.extend(segment.ran);
            self.committed = segment.part.id;
            self.remember(segment.part);
            last = Some(segment.state);
        }
        if let Some(state) = last
            && !changes.is_empty()
        {
            self.tables.publish(state, &changes);
        }
        if !answers.is_empty() {
            let writes = answers.len() as u64;
            self.tables.refusals.note(&Ok(()), writes);
        }
        answers.into_iter().for_each(|ran| ran.done(Ok(())));
        self.inherited &= !self.chain.is_empty();
    }

    /// Answers transactions that were not stored, or perhaps not.
    fn refuse(&self, all: Vec<Ran>, error: &Unavailable) {
        self.note_refused(all.len(), error);
        all.into_iter().for_each(|ran| ran.done(Err(error.clone())));
    }

    fn note_refused(&self, writes: usize, error: &Unavailable) {
        if writes > 0 {
            let refused = Err(error.clone());
            self.tables.refusals.note(&refused, writes as u64);
        }
    }

    /// Keeps a committed part for followers that lack it.
    fn remember(&mut self, part: Arc<Part>) {
        if self.shared && self.leads {
            self.log.push(part);
        }
    }

    /// Ends the turn of a follower without its part. It gets another one.
    fn cancel_turn(&mut self) -> Option<Turn> {
        let turn = self.turn.take()?;
        if let Some(follower) = self.followers.get_mut(&turn.link) {
            follower.wants = true;
        }
        Some(turn)
    }

    /// Removes the parts from `first` on, which will never be stored. Their transactions run again.
    fn discard(&mut self, first: usize) {
        let after = match first.checked_sub(1) {
            Some(last) => self.chain[last].part.id,
            None => self.committed,
        };
        let refuse = |turn| Message::Refused {
            turn,
            after,
            reason: None,
        };
        if let Some(turn) = self.cancel_turn() {
            let action = Action::Send(turn.link, refuse(turn.id));
            self.actions.push_back(action);
        }
        while self.chain.len() > first {
            let Some(segment) = self.chain.pop_back() else {
                break;
            };
            if let Some(link) = segment.follower {
                let action = Action::Send(link, refuse(segment.part.id));
                self.actions.push_back(action);
            }
            for ran in segment.ran.into_iter().rev() {
                self.jobs.push_front(ran.queued);
            }
        }
        let index = self.tip().index();
        for follower in self.followers.values_mut() {
            follower.at = follower.at.min(index);
        }
        self.full = false;
        self.inherited &= !self.chain.is_empty();
    }
}

/// Outcomes of commits.
impl Machine {
    fn stored(&mut self, stored: Result<(), NotCommitted>, id: Uuid) {
        let flight = self.flight.take();
        if stored.is_err() && self.leads && !matches!(flight, Some(Flight::Everything)) {
            self.fence = self.shared;
        }
        match flight {
            Some(Flight::Parts(parts)) => self.parts_stored(parts, stored),
            Some(Flight::Fence(part)) => self.fence_stored(part, stored),
            Some(Flight::Everything) => self.replaced(stored, id),
            None => {}
        }
    }

    fn parts_stored(&mut self, parts: usize, stored: Result<(), NotCommitted>) {
        match stored {
            Ok(()) => {
                self.publish(parts);
                self.rows = self.most_rows;
            }
            Err(NotCommitted::Lost) => self.behind = true,
            Err(NotCommitted::TooLarge(error)) => self.too_large(parts, error),
            Err(NotCommitted::Unavailable(error)) => {
                // They may have been stored after all.
                for n in 0..parts {
                    self.fail(n, &error);
                }
                if self.leads {
                    self.forget(parts);
                }
            }
        }
    }

    /// Removes the chain after a commit of its first `parts` whose outcome is not known. The
    /// transactions of the others run again. Parts of followers stay in their chains until they see
    /// another commit.
    fn forget(&mut self, parts: usize) {
        self.cancel_turn();
        for segment in &mut self.chain {
            segment.follower = None;
        }
        self.discard(parts);
        self.chain.clear();
        self.discard(0);
    }

    /// Answers the transactions of a part with an error. It stays in the chain.
    fn fail(&mut self, n: usize, error: &Unavailable) {
        let ran = std::mem::take(&mut self.chain[n].ran);
        self.refuse(ran, error);
        let segment = &self.chain[n];
        if let Some(link) = segment.follower {
            let refused = Message::Refused {
                turn: segment.part.id,
                after: self.committed,
                reason: Some(error.reason.to_string()),
            };
            self.actions.push_back(Action::Send(link, refused));
        }
    }

    /// The backend cannot store the first parts in one step. Nothing was stored.
    fn too_large(&mut self, parts: usize, error: Unavailable) {
        let flown = self.chain.iter().take(parts);
        let rows: usize = flown.map(|segment| segment.part.rows.len()).sum();
        let first = &self.chain[0].part;
        if parts == 1 && first.index == first.base + 1 {
            self.fail(0, &error);
        } else {
            self.rows = (rows / 2).max(1);
        }
        self.discard(0);
    }

    fn fence_stored(&mut self, part: Arc<Part>, stored: Result<(), NotCommitted>) {
        match stored {
            Ok(()) => {
                let first = self.chain.front();
                if first.is_some_and(|first| first.part.id == part.id) {
                    // Another server leads since then, and has continued the fence.
                    self.publish(1);
                } else {
                    self.committed = part.id;
                    self.remember(part);
                    self.discard(0);
                }
            }
            Err(NotCommitted::Lost) => self.behind = true,
            Err(NotCommitted::Unavailable(error) | NotCommitted::TooLarge(error)) => {
                self.fence_after = self.now + FENCE_PAUSE;
                if self.inherited {
                    self.note_refused(self.jobs.len(), &error);
                    for mut queued in self.jobs.drain(..) {
                        queued.job.done(Err(error.clone()));
                    }
                }
            }
        }
    }

    /// A commit that is not known yet.
    fn changed(&mut self, change: &Change, id: Uuid) -> Result<(), Unreadable> {
        self.behind = false;
        self.hopeless = false;
        self.asking.stale = false;
        match change {
            Change::Batch(batch) => self.batch(batch)?,
            Change::Everything(loaded) => self.everything(loaded, id)?,
        }
        Ok(())
    }

    fn batch(&mut self, batch: &Batch) -> Result<(), Unreadable> {
        let commit = &batch.commit;
        let within = |segment: &Segment| {
            let id = segment.part.id;
            id == commit.id || commit.turns.contains(&id)
        };
        let last = self.chain.iter().rposition(within);
        if let Some(last) = last
            && self.chain[last].part.index == batch.index
        {
            self.publish(last + 1);
            self.committed = commit.id;
            return Ok(());
        }
        // The commit contains no part that this server knows, or others after them.
        let known = last.map_or(0, |last| last + 1);
        let mut answers = Vec::new();
        for segment in self.chain.iter_mut().take(known) {
            answers.append(&mut segment.ran);
            segment.follower = None;
        }
        let part = Part {
            id: commit.id,
            base: batch.base,
            index: batch.index,
            rows: batch.rows.clone(),
        };
        let (state, changes) = self.replayed(&self.tables.state(), batch.index, &batch.rows)?;
        self.committed = commit.id;
        self.remember(Arc::new(part));
        if !changes.is_empty() {
            self.tables.publish(state, &changes);
        }
        answers.into_iter().for_each(|ran| ran.done(Ok(())));
        self.discard(0);
        Ok(())
    }

    /// Everything was replaced, or the commits in between are not known.
    fn everything(&mut self, loaded: &Loaded, id: Uuid) -> Result<(), Unreadable> {
        self.origin.check(&loaded.header)?;
        let rows = loaded.rows.iter();
        let rows = rows.map(|(key, value)| self.codec.decode(Arc::clone(key), value));
        let rows: Vec<_> = rows.collect::<Result<_, BadRow>>()?;
        let state = self.tables.state();
        let (next, changes) = state.replaced(loaded.index, rows);
        self.header.clone_from(&loaded.header);
        self.committed = id;
        self.log = Log::new(id);
        self.tables.publish(next, &changes);
        let last = self.chain.iter().rposition(|segment| segment.part.id == id);
        let known = last.map_or(0, |last| last + 1);
        let unknown = Unavailable::new(
            "the server has missed commits, and does not know whether the change is among them",
        );
        let chain: Vec<_> = self.chain.drain(..).collect();
        for (n, segment) in chain.into_iter().enumerate() {
            if n < known {
                segment.ran.into_iter().for_each(|ran| ran.done(Ok(())));
            } else {
                self.refuse(segment.ran, &unknown);
            }
        }
        self.discard(0);
        Ok(())
    }
}

/// Restores.
impl Machine {
    fn restoring(&self, mut restore: Restore) -> Restoring {
        let contents = Loaded {
            header: Vec::new(),
            index: 0,
            rows: std::mem::take(&mut restore.snapshot.stored),
        };
        Restoring {
            restore,
            contents: Arc::new(contents),
            attempts: 0,
            since: self.now,
        }
    }

    /// Replaces everything. The chain is empty.
    fn replace(&mut self) {
        let state = self.tables.state();
        let Some(restoring) = &mut self.restore else {
            return;
        };
        let filled = Arc::make_mut(&mut restoring.contents);
        filled.index = state.index().max(restoring.restore.snapshot.index) + 1;
        filled.header.clone_from(&self.header);
        restoring.attempts += 1;
        let contents = Arc::clone(&restoring.contents);
        self.flight = Some(Flight::Everything);
        self.actions
            .push_back(Action::Replace(state.index(), contents));
    }

    fn replaced(&mut self, stored: Result<(), NotCommitted>, id: Uuid) {
        let Some(restoring) = self.restore.take() else {
            return;
        };
        let result = match stored {
            Ok(()) => {
                let index = restoring.contents.index;
                let state = self.tables.state();
                let rows = restoring.restore.snapshot.rows;
                let (next, changes) = state.replaced(index, rows);
                self.committed = id;
                self.log = Log::new(id);
                self.tables.publish(next, &changes);
                let applied = Applied {
                    index,
                    changed: true,
                };
                drop(restoring.restore.answer.send(Ok(applied)));
                self.give_back();
                return;
            }
            Err(NotCommitted::Lost) => {
                self.behind = true;
                if restoring.attempts < ATTEMPTS {
                    self.restore = Some(restoring);
                    return;
                }
                Unavailable::new("other servers always committed first; try again later")
            }
            Err(NotCommitted::Unavailable(error) | NotCommitted::TooLarge(error)) => error,
        };
        restoring.restore.finish(Err(result));
        self.give_back();
    }

    fn give_back(&mut self) {
        if std::mem::take(&mut self.asking.has_all)
            && let Some(leader) = self.leader
        {
            self.actions.push_back(Action::Send(leader, Message::Done));
        }
        self.asking.all = false;
    }
}

/// The leader.
impl Machine {
    fn lead(&mut self) {
        if self.leads {
            return;
        }
        self.leads = true;
        self.leader = None;
        self.asking = Asking::default();
        self.inherited = !self.chain.is_empty();
        self.fence = self.shared;
        self.log = Log::new(self.committed);
    }

    fn go_on(&mut self) {
        let alone = matches!(self.flight, Some(Flight::Fence(_) | Flight::Everything));
        if self.behind || self.lent.is_some() || alone {
            return;
        }
        if self.inherited {
            self.seal();
            return;
        }
        if self.restore.is_some() || self.followers.values().any(|one| one.wants_all) {
            self.make_way();
            return;
        }
        loop {
            let mut ran = 0;
            if self.turn.is_none() && self.has_room() && !self.jobs.is_empty() {
                let room = self.room();
                ran = self.run(Uuid::new_v4(), room);
                self.full = !self.jobs.is_empty();
            }
            self.seal();
            if self.turn.is_none() && self.has_room() {
                self.grant();
            }
            if ran == 0 || self.jobs.is_empty() {
                return;
            }
        }
    }

    fn has_room(&self) -> bool {
        !self.full && self.room().rows > 0
    }

    /// Commits everything that was collected, or makes a fence, unless something is being stored.
    fn seal(&mut self) {
        if self.flight.is_some() || self.turn.is_some() {
            return;
        }
        if self.chain.is_empty() || self.inherited {
            let wanted = self.fence || self.inherited;
            if wanted && self.now >= self.fence_after {
                let index = self.tables.state().index();
                let part = Part {
                    id: Uuid::new_v4(),
                    base: index,
                    index,
                    rows: Rows::new(),
                };
                self.commit([&part], Vec::new());
                self.flight = Some(Flight::Fence(Arc::new(part)));
            }
            return;
        }
        let turns = self.chain.iter().filter(|one| one.follower.is_some());
        let turns = turns.map(|one| one.part.id).collect();
        let parts: Vec<_> = self.chain.iter().map(|one| Arc::clone(&one.part)).collect();
        self.commit(parts.iter().map(AsRef::as_ref), turns);
        self.flight = Some(Flight::Parts(parts.len()));
        self.full = false;
    }

    fn commit<'p>(&mut self, parts: impl IntoIterator<Item = &'p Part>, turns: Vec<Uuid>) {
        // A follower that asks for a commit from now on needs the next one.
        self.fence = false;
        let mut batch: Option<Batch> = None;
        for part in parts {
            let batch = batch.get_or_insert_with(|| Batch {
                base: part.base,
                index: part.index,
                rows: Rows::new(),
                commit: Commit::default(),
            });
            batch.index = part.index;
            batch.commit.id = part.id;
            let rows = part.rows.iter();
            batch
                .rows
                .extend(rows.map(|(key, value)| (Arc::clone(key), value.clone())));
        }
        if let Some(mut batch) = batch {
            batch.commit.turns = turns;
            self.actions.push_back(Action::Commit(Arc::new(batch)));
        }
    }

    /// Lets the next follower run its transactions.
    fn grant(&mut self) {
        // The next one after the last one.
        let later = self.followers.range(self.last_turn + 1..);
        let mut in_order = later.chain(self.followers.range(..=self.last_turn));
        let Some((&link, follower)) = in_order.find(|(_, follower)| follower.wants) else {
            return;
        };
        self.last_turn = link;
        let collected = self.chain.iter().map(|segment| &segment.part);
        let mut parent = self.log.before;
        let mut parts = Vec::new();
        for part in self.log.parts.iter().chain(collected) {
            if parts.is_empty() && part.base < follower.at {
                parent = part.id;
            } else {
                parts.push(Arc::clone(part));
            }
        }
        let room = self.room();
        let turn = Uuid::new_v4();
        let message = Message::Turn {
            turn,
            parent,
            parts,
            rows: room.rows as u64,
            exceed: room.exceed,
        };
        let at = self.tip().index();
        if let Some(follower) = self.followers.get_mut(&link) {
            follower.wants = false;
            follower.at = at;
        }
        self.turn = Some(Turn {
            id: turn,
            link,
            since: self.now,
        });
        self.actions.push_back(Action::Send(link, message));
    }

    /// Commits what was collected, and then lets a server replace everything.
    fn make_way(&mut self) {
        self.seal();
        if !self.chain.is_empty() || self.flight.is_some() || self.turn.is_some() {
            return;
        }
        if self.restore.is_some() {
            self.replace();
            return;
        }
        let next = self.followers.iter_mut().find(|(_, one)| one.wants_all);
        if let Some((&link, follower)) = next {
            follower.wants_all = false;
            self.lent = Some((link, self.now));
            self.actions.push_back(Action::Send(link, Message::All));
        }
    }

    fn left(&mut self, link: LinkId) {
        self.followers.remove(&link);
        if self.turn.as_ref().is_some_and(|turn| turn.link == link) {
            self.turn = None;
        }
        if self.lent.is_some_and(|(lent, _)| lent == link) {
            self.lent = None;
        }
        for segment in &mut self.chain {
            if segment.follower == Some(link) {
                // The commit still names its turn.
                segment.follower = Some(LinkId::MAX);
            }
        }
        if self.leader == Some(link) {
            self.follow_leader(None);
        }
    }

    fn close(&mut self, link: LinkId) {
        self.actions.push_back(Action::Close(link));
        self.left(link);
    }
}

/// Renewals of sessions.
impl Machine {
    /// Renews sessions of this server, which leads, and of its followers, if they exist. This
    /// includes sessions that are not stored yet: a follower may have seen the commit before this
    /// server got the answer.
    fn renew_all(&mut self) {
        let tip = self.tip();
        let renew = |session: &SessionKey| self.tables.renewals.renew(session, &tip, self.now);
        for renewal in self.renewing.take_all() {
            let exists = renew(&renewal.session);
            renewal.done(Ok(exists));
        }
        for (link, follower) in &mut self.followers {
            if !follower.renewing.is_empty() {
                let exist = follower.renewing.drain(..).map(|session| renew(&session));
                let exist = exist.collect();
                let renewed = Action::Send(*link, Message::Renewed { exist });
                self.actions.push_back(renewed);
            }
        }
    }
}

/// The follower.
impl Machine {
    fn follow_leader(&mut self, link: Option<LinkId>) {
        if self.leads {
            self.leads = false;
            // What is being stored may still be; the rest will never be.
            let flying = self.flying();
            self.turn = None;
            for segment in self.chain.iter_mut() {
                segment.follower = segment.follower.map(|_| LinkId::MAX);
            }
            if !self.inherited {
                self.discard(flying);
            }
            self.inherited = false;
            self.lent = None;
            self.fence = false;
            for link in std::mem::take(&mut self.followers).into_keys() {
                self.actions.push_back(Action::Close(link));
            }
        }
        if self.leader != link {
            self.leader = link;
            self.renewing.leader_changed();
            self.asking = Asking {
                unsure: !self.chain.is_empty(),
                ..Asking::default()
            };
        }
    }

    /// Asks the leader for what this server needs.
    fn ask(&mut self) {
        let Some(leader) = self.leader else {
            return;
        };
        if let Some(renew) = self.renewing.ask() {
            self.actions.push_back(Action::Send(leader, renew));
        }
        if self.trouble.as_ref().is_some_and(|trouble| trouble.blind) {
            return;
        }
        let wants = !self.jobs.is_empty() || self.asking.unsure;
        if wants && !self.asking.turn && !self.asking.stale {
            self.asking.turn = true;
            self.asking.unsure = false;
            let at = self.tables.state().index();
            let wants = Action::Send(leader, Message::Wants { at });
            self.actions.push_back(wants);
        }
        if self.restore.is_none() {
            return;
        }
        if !self.asking.all {
            self.asking.all = true;
            let wants = Action::Send(leader, Message::WantsAll);
            self.actions.push_back(wants);
        }
        if self.asking.has_all && self.chain.is_empty() && self.flight.is_none() && !self.behind {
            self.replace();
        }
    }

    fn received(&mut self, link: LinkId, message: Message) -> Result<(), Unreadable> {
        match message {
            Message::Wants { at } => {
                if let Some(follower) = self.followers.get_mut(&link) {
                    follower.wants = true;
                    follower.at = follower.at.max(at);
                }
            }
            Message::WantsAll => {
                if let Some(follower) = self.followers.get_mut(&link) {
                    follower.wants_all = true;
                }
            }
            Message::Ran {
                turn,
                index,
                rows,
                more,
            } => {
                if self
                    .turn
                    .as_ref()
                    .is_some_and(|now| now.id == turn && now.link == link)
                {
                    self.ran(link, turn, (index, rows), more);
                }
            }
            Message::Stale { turn, at } => {
                if self
                    .turn
                    .as_ref()
                    .is_some_and(|now| now.id == turn && now.link == link)
                {
                    self.turn = None;
                    self.fence = true;
                    if let Some(follower) = self.followers.get_mut(&link) {
                        follower.at = at;
                    }
                }
            }
            Message::Done => {
                if self.lent.is_some_and(|(lent, _)| lent == link) {
                    self.lent = None;
                }
            }
            Message::Renew { sessions } => {
                if let Some(follower) = self.followers.get_mut(&link) {
                    follower.renewing = sessions;
                }
            }
            Message::Turn { .. }
            | Message::All
            | Message::Refused { .. }
            | Message::Renewed { .. }
                if self.leader != Some(link) => {}
            Message::Turn {
                turn,
                parent,
                parts,
                rows,
                exceed,
            } => {
                let rows = usize::try_from(rows).unwrap_or(usize::MAX);
                let room = Room { rows, exceed };
                self.take_turn(link, turn, parent, parts, room)?;
            }
            Message::All => self.asking.has_all = self.restore.is_some(),
            Message::Refused {
                turn,
                after,
                reason,
            } => self.refused(turn, after, reason),
            Message::Renewed { exist } => self.renewing.confirmed(exist),
        }
        Ok(())
    }

    /// The part of a follower's turn.
    fn ran(&mut self, link: LinkId, turn: Uuid, (index, rows): (u64, Rows), more: bool) {
        self.turn = None;
        let base = self.tip().index();
        if rows.is_empty() {
            self.full = more;
        } else {
            let part = Part {
                id: turn,
                base,
                index,
                rows,
            };
            let appended = index > base && self.append(Arc::new(part), Some(link)).is_ok();
            if !appended {
                tracing::warn!("another server sent rows that cannot be read; is it newer?");
                self.close(link);
                return;
            }
        }
        let at = self.tip().index();
        if let Some(follower) = self.followers.get_mut(&link) {
            follower.wants |= more;
            follower.at = at;
        }
    }

    fn take_turn(
        &mut self,
        link: LinkId,
        turn: Uuid,
        parent: Uuid,
        parts: Vec<Arc<Part>>,
        room: Room,
    ) -> Result<(), Unreadable> {
        self.asking.turn = false;
        // A turn that was granted before a commit can arrive after it, and be followed by another
        // turn, for which nothing is missing.
        self.asking.stale = !self.catch_up(parent, parts)?;
        if self.asking.stale {
            let at = self.tables.state().index();
            let stale = Action::Send(link, Message::Stale { turn, at });
            self.actions.push_back(stale);
            return Ok(());
        }
        let before = self.tip_id();
        self.run(turn, room);
        let more = !self.jobs.is_empty();
        let (index, rows) = match self.chain.back() {
            Some(last) if self.tip_id() != before => (last.part.index, last.part.rows.clone()),
            _ => (self.tip().index(), Rows::new()),
        };
        self.asking.turn = more;
        let ran = Message::Ran {
            turn,
            index,
            rows,
            more,
        };
        self.actions.push_back(Action::Send(link, ran));
        Ok(())
    }

    /// Appends the parts that are missing. Returns whether the last one is the tip now.
    fn catch_up(&mut self, parent: Uuid, parts: Vec<Arc<Part>>) -> Result<bool, BadRow> {
        let known =
            |id| id == self.committed || self.chain.iter().any(|segment| segment.part.id == id);
        let (mut last, mut first) = (known(parent).then_some(parent), 0);
        for (n, part) in parts.iter().enumerate() {
            if known(part.id) {
                (last, first) = (Some(part.id), n + 1);
            }
        }
        let missing = &parts[first..];
        if last != Some(self.tip_id()) || self.chain.len() + missing.len() > CHAIN {
            return Ok(false);
        }
        for part in missing {
            if part.base != self.tip().index() {
                return Ok(false);
            }
            self.append(Arc::clone(part), None)?;
        }
        Ok(true)
    }

    fn refused(&mut self, turn: Uuid, after: Uuid, reason: Option<String>) {
        if reason.is_none() {
            self.asking.turn = false;
        }
        let is = |id: Uuid| move |segment: &Segment| segment.part.id == id;
        let Some(refused) = self.chain.iter().position(is(turn)) else {
            return;
        };
        if let Some(reason) = reason {
            self.fail(refused, &Unavailable::new(reason));
            return;
        }
        let first = if after == self.committed {
            0
        } else {
            let last = self.chain.iter().position(is(after));
            last.map_or(refused, |last| last + 1)
        };
        self.discard(first.max(self.flying()).min(refused));
    }
}

/// Time.
impl Machine {
    fn tick(&mut self) {
        if let Some(turn) = &self.turn
            && self.now >= turn.since + TURN
        {
            self.close(turn.link);
        }
        if self.lent.is_some_and(|(_, since)| self.now >= since + LENT) {
            self.lent = None;
            self.fence = true;
        }
        if self.cannot_commit() {
            self.expire();
        }
    }

    fn cannot_commit(&self) -> bool {
        !self.leads || self.inherited || self.lent.is_some()
    }

    /// Answers transactions that have waited too long.
    fn expire(&mut self) {
        let at_once = |trouble: &Trouble| self.now >= trouble.since + WRITE;
        self.hopeless |= self.trouble.as_ref().is_some_and(at_once);
        let reason = match &self.trouble {
            Some(trouble) => Arc::clone(&trouble.reason),
            None => "the server that leads did not commit it in time; try again".into(),
        };
        let late = |since: Instant| since + WRITE <= self.now;
        let expired = Unavailable::new(Arc::clone(&reason));
        self.renewing.expire(self.now, self.hopeless, &expired);
        let waiting = std::mem::take(&mut self.jobs);
        for mut queued in waiting {
            if self.hopeless || late(queued.since) {
                self.hopeless |= self.trouble.is_some();
                self.note_refused(1, &expired);
                queued.job.done(Err(expired.clone()));
            } else {
                self.jobs.push_back(queued);
            }
        }
        let unknown = Unavailable::new(format!("{reason}; it is not known whether it was made"));
        for n in self.flying()..self.chain.len() {
            let ran = std::mem::take(&mut self.chain[n].ran);
            let (expired, waiting) = ran.into_iter().partition(|ran| late(ran.queued.since));
            let expired: Vec<Ran> = expired;
            self.hopeless |= self.trouble.is_some() && !expired.is_empty();
            self.refuse(expired, &unknown);
            self.chain[n].ran = waiting;
        }
        if self.flight.is_none()
            && let Some(restoring) = self.restore.take()
        {
            if self.now >= restoring.since + LENT {
                restoring.restore.finish(Err(expired));
                self.give_back();
            } else {
                self.restore = Some(restoring);
            }
        }
    }
}

impl Log {
    fn new(before: Uuid) -> Self {
        Self {
            before,
            parts: VecDeque::new(),
            bytes: 0,
        }
    }

    fn push(&mut self, part: Arc<Part>) {
        self.bytes += size(&part);
        self.parts.push_back(part);
        while (self.parts.len() > LOG_PARTS || self.bytes > LOG_BYTES)
            && let Some(oldest) = self.parts.pop_front()
        {
            self.bytes -= size(&oldest);
            self.before = oldest.id;
        }
    }
}

/// The approximate bytes of a part.
fn size(part: &Part) -> usize {
    let rows = part.rows.iter();
    rows.map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len))
        .sum()
}
