//! The protocol with generated orders of events: servers that lead, pause, crash and lose
//! connections, and commits whose answers are late or lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use legate_identity::SealingKey;
use legate_model::{NewSession, Session, Tenancy};
use proptest::prelude::*;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::Instant;

use super::WRITE;
use super::machine::{Action, Event, LinkId, Machine};
use super::message::Message;
use crate::backend::{Batch, Change, NotCommitted};
use crate::codec::Codec;
use crate::commit::Job;
use crate::key::Key;
use crate::origin::Origin;
use crate::outcome::{Applied, Unavailable, WriteError};
use crate::reader::Tables;
use crate::renewals::{Renewal, SessionKey};
use crate::state::State;
use crate::tests::{node, register};
use crate::write::{WriteTxn, replay};

const SERVERS: usize = 3;
/// The number of rows per commit, low enough that transactions do not always fit.
const ROWS: usize = 5;

/// What happens next; numbers select one of the possibilities.
#[derive(Debug, Clone)]
enum Step {
    /// A server receives so many transactions.
    Submit(usize, usize),
    /// A server is asked to renew a session.
    Renew(usize),
    /// A server gets the lease. The previous leader does not notice.
    Elect(usize),
    /// A server notices who has the lease, and connects if it has no connection.
    Notice(usize),
    /// The oldest message of a connection arrives.
    Deliver(usize),
    /// A connection ends, for one side after the other.
    Cut(usize),
    /// The end of a connection is noticed.
    Left(usize),
    /// A commit reaches the backend.
    Arrive(usize),
    /// A server gets the answer to its commit; no answer if it has not arrived.
    Answer(usize),
    /// A server sees the next commit.
    Watch(usize),
    /// A server restarts.
    Crash(usize),
    /// Time passes.
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let n = || 0..64_usize;
    prop_oneof![
        10 => (n(), 1..5_usize).prop_map(|(at, count)| Step::Submit(at, count)),
        3 => n().prop_map(Step::Renew),
        2 => n().prop_map(Step::Elect),
        6 => n().prop_map(Step::Notice),
        40 => n().prop_map(Step::Deliver),
        1 => n().prop_map(Step::Cut),
        3 => n().prop_map(Step::Left),
        15 => n().prop_map(Step::Arrive),
        15 => n().prop_map(Step::Answer),
        30 => n().prop_map(Step::Watch),
        1 => n().prop_map(Step::Crash),
        5 => prop_oneof![Just(50), Just(600), Just(8000)].prop_map(Step::Wait),
    ]
}

struct Server {
    machine: Machine,
    /// The number of commits that it has.
    known: usize,
    /// The number of its commit in progress.
    flight: Option<usize>,
    /// Its connection to a leader.
    link: Option<LinkId>,
}

/// A commit on its way.
struct Sent {
    batch: Arc<Batch>,
    /// The number of commits that it follows.
    guard: usize,
    /// Whether it was made, once it has arrived.
    made: Option<bool>,
}

struct Link {
    follower: usize,
    leader: usize,
    to_leader: VecDeque<Message>,
    to_follower: VecDeque<Message>,
    cut: bool,
}

struct Asked {
    name: String,
    answer: oneshot::Receiver<Result<(Applied, ()), WriteError>>,
}

type Renewed = oneshot::Receiver<Result<bool, Unavailable>>;

struct World {
    key: SealingKey,
    now: Instant,
    servers: Vec<Server>,
    /// What the backend has.
    commits: Vec<Arc<Batch>>,
    sent: Vec<Sent>,
    links: BTreeMap<LinkId, Link>,
    next_link: LinkId,
    lease: usize,
    asked: Vec<Asked>,
    renewed: Vec<Renewed>,
}

fn machine(key: &SealingKey, commits: &[Arc<Batch>]) -> Machine {
    let codec = Codec { key: key.clone() };
    let origin = Origin {
        store: "the world".to_owned(),
        key: key.clone(),
        key_file: "key".into(),
    };
    let mut state = State::empty();
    for batch in commits {
        state = read(&codec, &state, batch);
    }
    let tables = Arc::new(Tables::new(state));
    let mut machine = Machine::new((codec, origin), Vec::new(), tables, (ROWS, true));
    if let Some(last) = commits.last() {
        machine.starts_at(last.commit.id);
    }
    machine
}

fn read(codec: &Codec, state: &State, batch: &Batch) -> State {
    let rows = batch.rows.iter().map(|(key, value)| match value {
        Some(value) => {
            let (key, row) = codec.decode(Arc::clone(key), value).unwrap();
            (key, Some(row))
        }
        None => (Key::from_bytes(Arc::clone(key)), None),
    });
    replay(state, batch.index, rows).0
}

/// How often a transaction of this name was applied.
fn times(state: &State, name: &str) -> u64 {
    let row = state.read().node(name);
    row.map_or(0, |row| row.meta["count"].parse().unwrap())
}

fn count(txn: &mut WriteTxn, name: &str) -> Result<(), WriteError> {
    let found = txn.read().node(name);
    let mut row = found.map_or_else(|| node(name), |row| legate_model::Node::clone(&row));
    let count: u64 = row
        .meta
        .get("count")
        .map_or(0, |count| count.parse().unwrap());
    row.meta.insert("count".to_owned(), (count + 1).to_string());
    Ok(txn.apply(register(row, None, Vec::new()))?)
}

impl World {
    fn new() -> Self {
        let key = SealingKey::generate().unwrap();
        let servers = (0..SERVERS).map(|_| Server {
            machine: machine(&key, &[]),
            known: 0,
            flight: None,
            link: None,
        });
        Self {
            servers: servers.collect(),
            key,
            now: Instant::now(),
            commits: Vec::new(),
            sent: Vec::new(),
            links: BTreeMap::new(),
            next_link: 1,
            lease: 0,
            asked: Vec::new(),
            renewed: Vec::new(),
        }
    }

    fn handle(&mut self, at: usize, event: Event) {
        let server = &mut self.servers[at];
        server.machine.handle(self.now, event).unwrap();
        while let Some(action) = self.servers[at].machine.next_action() {
            match action {
                Action::Send(id, message) => {
                    if let Some(link) = self.links.get_mut(&id).filter(|link| !link.cut) {
                        if link.leader == at {
                            link.to_follower.push_back(message);
                        } else {
                            link.to_leader.push_back(message);
                        }
                    }
                }
                Action::Close(id) => self.cut(id),
                Action::Commit(batch) => {
                    let server = &mut self.servers[at];
                    assert_eq!(server.flight, None, "one commit at a time");
                    server.flight = Some(self.sent.len());
                    let most = batch.rows.len() <= ROWS || batch.index == batch.base + 1;
                    assert!(most, "{} rows", batch.rows.len());
                    self.sent.push(Sent {
                        batch,
                        guard: server.known,
                        made: None,
                    });
                }
                Action::Replace(..) => unreachable!("nothing is restored"),
            }
        }
    }

    fn cut(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(&id) {
            link.cut = true;
        }
    }

    fn submit(&mut self, at: usize, count_of: usize) {
        let mut jobs: Vec<Box<dyn crate::commit::Attempt>> = Vec::new();
        for _ in 0..count_of {
            let name = format!("t{}", self.asked.len());
            let shared = self.asked.len().is_multiple_of(4);
            let own = name.clone();
            let (job, answer) = Job::new(move |txn: &mut WriteTxn| {
                count(txn, &own)?;
                if shared {
                    count(txn, "shared")?;
                }
                Ok::<_, WriteError>(())
            });
            jobs.push(Box::new(job));
            self.asked.push(Asked { name, answer });
        }
        self.handle(at, Event::Jobs(jobs));
    }

    fn renew(&mut self, at: usize, id: &str) {
        let (answer, renewed) = oneshot::channel();
        let session = SessionKey {
            tenancy: Tenancy::default(),
            id: id.to_owned(),
        };
        self.renewed.push(renewed);
        self.handle(at, Event::Renew(vec![Renewal { session, answer }]));
    }

    /// Creates a session, and renews it at every server.
    fn check_renewals(&mut self) {
        let (job, mut created) = Job::new(|txn: &mut WriteTxn| {
            txn.apply(register(node("n"), None, Vec::new()))?;
            let session = Session {
                id: "s".to_owned(),
                node: "n".to_owned(),
                ttl: "10s".to_owned(),
                ..Session::default()
            };
            let created = txn.create_session(NewSession {
                session,
                default_check: false,
            });
            created.expect("a session");
            Ok::<_, WriteError>(())
        });
        self.handle(0, Event::Jobs(vec![Box::new(job)]));
        self.settle();
        created.try_recv().unwrap().unwrap();
        let commits = self.commits.len();
        for at in 0..SERVERS {
            self.renew(at, "s");
            self.settle();
            let renewed = self.renewed.last_mut().unwrap().try_recv();
            assert_eq!(renewed, Ok(Ok(true)), "at {at}");
            let leader = &self.servers[self.lease].machine.tables;
            let seen = leader.state().read().expiring_sessions(0);
            assert!(leader.renewals.take(&seen[0]).is_some(), "at {at}");
        }
        assert_eq!(self.commits.len(), commits, "nothing is stored");
        for mut renewed in self.renewed.drain(..) {
            match renewed.try_recv() {
                Ok(Ok(exists)) => assert!(!exists),
                Ok(Err(_)) => {}
                Err(error) => assert_eq!(error, TryRecvError::Closed),
            }
        }
    }

    fn notice(&mut self, at: usize) {
        if at == self.lease {
            self.servers[at].link = None;
            self.handle(at, Event::Leads);
            return;
        }
        let connected = self.servers[at].link.and_then(|id| self.links.get(&id));
        if connected.is_some_and(|link| link.leader == self.lease && !link.cut) {
            return;
        }
        if let Some(old) = self.servers[at].link.take() {
            self.cut(old);
        }
        let id = self.next_link;
        self.next_link += 1;
        self.links.insert(
            id,
            Link {
                follower: at,
                leader: self.lease,
                to_leader: VecDeque::new(),
                to_follower: VecDeque::new(),
                cut: false,
            },
        );
        self.servers[at].link = Some(id);
        self.handle(self.lease, Event::Joined(id));
        self.handle(at, Event::Follows(Some(id)));
    }

    /// One of the connections for which something can be done.
    fn pick(&self, n: usize, fits: impl Fn(&Link) -> bool) -> Option<LinkId> {
        let fitting = self.links.iter().filter(|(_, link)| fits(link));
        let ids: Vec<_> = fitting.map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| ids[n % ids.len()])
    }

    fn deliver(&mut self, n: usize) -> bool {
        let full = |link: &Link| !link.to_leader.is_empty() || !link.to_follower.is_empty();
        let Some(id) = self.pick(n, full) else {
            return false;
        };
        let link = self.links.get_mut(&id).unwrap();
        let to_leader =
            link.to_follower.is_empty() || (n.is_multiple_of(2) && !link.to_leader.is_empty());
        let (to, message) = if to_leader {
            (link.leader, link.to_leader.pop_front())
        } else {
            (link.follower, link.to_follower.pop_front())
        };
        self.handle(to, Event::Received(id, message.unwrap()));
        true
    }

    fn leave(&mut self, n: usize) -> bool {
        let Some(id) = self.pick(n, |link| link.cut) else {
            return false;
        };
        let link = self.links.remove(&id).unwrap();
        if self.servers[link.follower].link == Some(id) {
            self.servers[link.follower].link = None;
        }
        self.handle(link.follower, Event::Left(id));
        self.handle(link.leader, Event::Left(id));
        true
    }

    fn arrive(&mut self, n: usize) -> bool {
        let waiting = self.sent.iter_mut().filter(|sent| sent.made.is_none());
        let mut waiting: Vec<_> = waiting.collect();
        let count = waiting.len();
        if count == 0 {
            return false;
        }
        let sent = &mut waiting[n % count];
        let made = sent.guard == self.commits.len();
        sent.made = Some(made);
        if made {
            let last = self.commits.last().map_or(1, |last| last.index);
            assert_eq!(sent.batch.base, last, "the base is the last index");
            self.commits.push(Arc::clone(&sent.batch));
        }
        true
    }

    /// `lost`: an answer may be lost.
    fn answer(&mut self, n: usize, lost: bool) -> bool {
        let waiting = (0..SERVERS).filter(|at| {
            let flight = self.servers[*at].flight;
            flight.is_some_and(|flight| lost || self.sent[flight].made.is_some())
        });
        let waiting: Vec<_> = waiting.collect();
        if waiting.is_empty() {
            return false;
        }
        let at = waiting[n % waiting.len()];
        let server = &mut self.servers[at];
        let sent = &self.sent[server.flight.take().unwrap()];
        let stored = match sent.made {
            Some(true) if !lost || !n.is_multiple_of(5) => {
                server.known = sent.guard + 1;
                Ok(())
            }
            Some(false) => Err(NotCommitted::Lost),
            // No answer: the commit may have been made, or may still arrive.
            _ => Err(NotCommitted::Unavailable(Unavailable::new("no answer"))),
        };
        let id = sent.batch.commit.id;
        self.handle(at, Event::Stored(stored, id));
        true
    }

    fn watch(&mut self, at: usize) -> bool {
        let server = &mut self.servers[at];
        // The driver waits for the answer to a commit first.
        if server.flight.is_some() {
            return false;
        }
        let Some(batch) = self.commits.get(server.known) else {
            return false;
        };
        server.known += 1;
        let batch = Arc::clone(batch);
        let id = batch.commit.id;
        self.handle(at, Event::Changed(Change::Batch(batch), id));
        true
    }

    fn crash(&mut self, at: usize) {
        let links = self
            .links
            .iter()
            .filter(|(_, link)| link.follower == at || link.leader == at);
        let links: Vec<_> = links.map(|(id, _)| *id).collect();
        for id in links {
            self.links.remove(&id);
            for (other, server) in self.servers.iter_mut().enumerate() {
                if server.link == Some(id) {
                    server.link = None;
                }
                if other != at {
                    // Both sides of the connection get the same event.
                    server.machine.handle(self.now, Event::Left(id)).unwrap();
                }
            }
        }
        for other in (0..SERVERS).filter(|other| *other != at) {
            self.handle(other, Event::Tick);
        }
        self.servers[at] = Server {
            machine: machine(&self.key, &self.commits),
            known: self.commits.len(),
            flight: None,
            link: None,
        };
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Submit(at, count) => self.submit(at % SERVERS, count),
            Step::Renew(at) => self.renew(at % SERVERS, "nobody"),
            Step::Elect(at) => self.lease = at % SERVERS,
            Step::Notice(at) => self.notice(at % SERVERS),
            Step::Deliver(n) => drop(self.deliver(n)),
            Step::Cut(n) => {
                if let Some(id) = self.pick(n, |_| true) {
                    self.cut(id);
                }
            }
            Step::Left(n) => drop(self.leave(n)),
            Step::Arrive(n) => drop(self.arrive(n)),
            Step::Answer(n) => drop(self.answer(n, true)),
            Step::Watch(n) => drop(self.watch(n % SERVERS)),
            Step::Crash(at) => self.crash(at % SERVERS),
            Step::Wait(millis) => {
                self.now += Duration::from_millis(millis);
                for at in 0..SERVERS {
                    self.handle(at, Event::Tick);
                }
            }
        }
    }

    /// Lets everything happen that can happen without failures.
    fn settle(&mut self) {
        for at in [0, 1, 2, 0, 1, 2] {
            self.notice(at);
        }
        for round in 0..10_000 {
            let mut busy = self.leave(0) | self.arrive(0) | self.deliver(round);
            busy |= self.answer(0, false);
            for at in 0..SERVERS {
                busy |= self.watch(at);
            }
            if !busy {
                return;
            }
        }
        panic!("it does not settle");
    }

    fn check(&mut self) {
        self.settle();
        // A fence that failed is repeated after a pause.
        for _ in 0..3 {
            self.step(Step::Wait(1500));
            self.settle();
        }
        // Every server works again, without waiting for a time limit.
        let before = self.asked.len();
        for n in 0..SERVERS {
            // One after the other, because a commit of one frees others that wait for a commit.
            self.submit((before + n) % SERVERS, 3);
            self.settle();
            for asked in &mut self.asked[before + 3 * n..] {
                let answer = asked.answer.try_recv();
                assert!(matches!(answer, Ok(Ok(_))), "{}: {answer:?}", asked.name);
            }
        }
        self.asked.truncate(before);
        let states: Vec<_> = self
            .servers
            .iter()
            .map(|one| one.machine.tables.state())
            .collect();
        let state = &states[0];
        for other in &states {
            assert_eq!(other.index(), state.index());
            let rows = |state: &State| format!("{:?}", state.read().nodes());
            assert_eq!(rows(other), rows(state));
        }
        let mut shared = 0;
        for (n, asked) in self.asked.iter_mut().enumerate() {
            let applied = times(state, &asked.name);
            assert!(applied <= 1, "{} was applied {applied} times", asked.name);
            shared += if n.is_multiple_of(4) { applied } else { 0 };
            match asked.answer.try_recv() {
                Ok(Ok((at, ()))) => {
                    assert_eq!(applied, 1, "{} was acknowledged and is lost", asked.name);
                    let row = state.read().node(&asked.name).unwrap();
                    assert_eq!(row.modify_index, at.index, "{}", asked.name);
                }
                Ok(Err(WriteError::Rejected(error))) => panic!("{error}"),
                Ok(Err(WriteError::Unavailable(_))) => {}
                // Its server crashed.
                Err(TryRecvError::Closed) => {}
                Err(TryRecvError::Empty) => panic!("{} is not answered", asked.name),
            }
        }
        self.check_renewals();
        let more = (before..before + 3 * SERVERS)
            .filter(|n| n.is_multiple_of(4))
            .count();
        assert_eq!(times(state, "shared"), shared + more as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn acknowledged_transactions_are_applied_once_whatever_happens(
        steps in prop::collection::vec(any_step(), 1..400)
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.check();
    }
}

/// A leader makes a fence and loses the lease. The next leader sees the fence and continues it, with a part of the first
/// one, which gets the answer to its fence only then.
#[test]
fn a_late_answer_to_a_fence_does_not_repeat_what_continues_it() {
    use Step::{Answer, Arrive, Deliver, Elect, Left, Notice, Submit, Wait, Watch};
    let steps = [
        Notice(21),
        Submit(0, 1),
        Notice(17),
        Left(0),
        Submit(32, 1),
        Answer(0),
        Submit(44, 1),
        Left(0),
        Watch(0),
        Notice(28),
        Elect(0),
        Submit(40, 1),
        Submit(1, 1),
        Wait(600),
        Wait(600),
        Arrive(19),
        Left(0),
        Answer(16),
        Submit(1, 1),
        Submit(40, 2),
        Elect(31),
        Deliver(5),
        Arrive(0),
        Deliver(29),
        Deliver(1),
        Deliver(0),
        Deliver(0),
        Notice(46),
        Answer(0),
        Answer(1),
        Arrive(2),
        Watch(28),
        Watch(16),
        Arrive(0),
        Notice(3),
        Elect(0),
        Deliver(0),
        Deliver(0),
        Deliver(0),
        Submit(24, 1),
        Deliver(0),
        Deliver(0),
        Arrive(11),
        Deliver(0),
        Answer(1),
        Submit(0, 1),
    ];
    let mut world = World::new();
    for step in steps {
        world.step(step);
    }
    world.check();
}

/// A new leader grants a turn while it makes its fence, and another one afterwards. The follower has
/// seen the fence before it gets the first turn, which it cannot use.
#[test]
fn a_turn_from_before_a_fence_does_not_stop_a_follower() {
    use Step::{Deliver, Notice, Renew, Submit, Wait};
    let mut world = World::new();
    for step in [
        Submit(0, 24),
        Renew(1),
        Notice(1),
        Submit(1, 1),
        Deliver(0),
        Deliver(0),
        Wait(8000),
    ] {
        world.step(step);
    }
    world.check();
}

/// A world whose servers follow the first one.
fn settled() -> World {
    let mut world = World::new();
    world.settle();
    world
}

fn answers(world: &mut World) -> Vec<Result<(), String>> {
    let asked = world.asked.iter_mut();
    asked
        .map(|asked| match asked.answer.try_recv() {
            Ok(answer) => answer.map(drop).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        })
        .collect()
}

#[test]
fn transactions_of_all_servers_are_stored_in_one_commit() {
    let mut world = settled();
    let before = world.commits.len();
    world.submit(0, 1);
    // While the leader's own is stored, the others are collected.
    world.submit(1, 2);
    world.submit(2, 2);
    while world.deliver(0) {}
    assert_eq!(
        world.sent.iter().filter(|sent| sent.made.is_none()).count(),
        1
    );
    world.settle();
    assert_eq!(answers(&mut world), vec![Ok(()); 5]);
    assert_eq!(world.commits.len(), before + 2);
}

#[test]
fn a_follower_that_hangs_in_its_turn_delays_others_once() {
    let mut world = settled();
    world.submit(1, 1);
    while world.links.values().all(|link| link.to_follower.is_empty()) {
        assert!(world.deliver(0));
    }
    world.submit(0, 1);
    world.submit(2, 1);
    // The turn is not answered; the follower's connection is closed.
    world.step(Step::Wait(600));
    let cut = world.links.values().filter(|link| link.cut).count();
    assert_eq!(cut, 1);
    for link in world.links.values_mut().filter(|link| link.cut) {
        link.to_follower.clear();
    }
    while world.arrive(0)
        | world.answer(0, false)
        | world.deliver(0)
        | world.watch(2)
        | world.watch(0)
    {}
    assert_eq!(answers(&mut world)[1..], [Ok(()), Ok(())]);
    world.check();
}

#[test]
fn without_a_leader_transactions_and_renewals_fail_in_time() {
    let mut world = World::new();
    world.submit(1, 1);
    world.renew(1, "s");
    world.now += WRITE;
    world.handle(1, Event::Tick);
    let answer = answers(&mut world).remove(0).unwrap_err();
    assert!(answer.contains("could not be stored"), "{answer}");
    assert!(world.renewed[0].try_recv().unwrap().is_err());
}

#[test]
fn renewals_are_sent_to_the_next_leader_if_one_does_not_answer() {
    let mut world = settled();
    world.renew(1, "nobody");
    world.renew(1, "nobody either");
    assert_eq!(
        world
            .links
            .values()
            .map(|link| link.to_leader.len())
            .sum::<usize>(),
        1
    );
    // The leader is lost before it gets the message.
    world.crash(0);
    world.lease = 2;
    world.settle();
    for mut renewed in world.renewed.drain(..) {
        assert_eq!(renewed.try_recv(), Ok(Ok(false)));
    }
}
