//! Group commit: transactions that arrive together are stored together, each with its own index.
//!
//! Each transaction runs on the state that the previous one left. Their changes are stored in one
//! step, and only then are they answered. This includes transactions that were refused or changed
//! nothing, if they have seen changes that are not stored yet. Changes that cannot be stored have
//! no effect. [`crate::replicas::machine`] decides, and [`crate::committer`] does the storing.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::outcome::{Applied, Unavailable};
use crate::renewals::{Renewal, SessionKey};
use crate::snapshot::Snapshot;
use crate::state::{Changes, State};
use crate::write::WriteTxn;

/// The maximum number of waiting transactions; more wait for a place in the queue.
const QUEUE: usize = 4096;

/// The maximum number of transactions stored in one step.
const GROUP: usize = 512;

/// The committer's end of the queue.
pub(crate) struct Waiting {
    jobs: mpsc::Receiver<Box<dyn Attempt>>,
    restores: mpsc::Receiver<Restore>,
    renewals: mpsc::Receiver<Renewal>,
}

/// The senders' end of the queue to the committer.
pub(crate) struct Queue {
    jobs: mpsc::Sender<Box<dyn Attempt>>,
    restores: mpsc::Sender<Restore>,
    renewals: mpsc::Sender<Renewal>,
}

/// A snapshot that replaces everything, and the channel for the result.
pub(crate) struct Restore {
    pub(crate) snapshot: Snapshot,
    pub(crate) answer: oneshot::Sender<Result<Applied, Unavailable>>,
}

impl Restore {
    pub(crate) fn finish(self, result: Result<Applied, Unavailable>) {
        // The caller may be gone.
        drop(self.answer.send(result));
    }
}

/// What is taken from the queue; the rest waits in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Takes {
    pub(crate) jobs: bool,
    pub(crate) restores: bool,
    pub(crate) renewals: bool,
}

/// The next work of the committer.
pub(crate) enum Work {
    Write(Vec<Box<dyn Attempt>>),
    Restore(Restore),
    Renew(Vec<Renewal>),
}

impl Queue {
    pub(crate) fn new() -> (Self, Waiting) {
        let (jobs, waiting_jobs) = mpsc::channel(QUEUE);
        let (restores, waiting_restores) = mpsc::channel(1);
        let (renewals, waiting_renewals) = mpsc::channel(QUEUE);
        let waiting = Waiting {
            jobs: waiting_jobs,
            restores: waiting_restores,
            renewals: waiting_renewals,
        };
        let queue = Self {
            jobs,
            restores,
            renewals,
        };
        (queue, waiting)
    }

    pub(crate) async fn send(&self, job: Box<dyn Attempt>) -> Result<(), Unavailable> {
        let sent = self.jobs.send(job).await;
        sent.map_err(|_| Unavailable::gone())
    }

    pub(crate) async fn restore(&self, snapshot: Snapshot) -> Result<Applied, Unavailable> {
        let (answer, answered) = oneshot::channel();
        let sent = self.restores.send(Restore { snapshot, answer }).await;
        sent.map_err(|_| Unavailable::gone())?;
        answered.await.unwrap_or_else(|_| Err(Unavailable::gone()))
    }

    pub(crate) async fn renew(&self, session: SessionKey) -> Result<bool, Unavailable> {
        let (answer, answered) = oneshot::channel();
        let sent = self.renewals.send(Renewal { session, answer }).await;
        sent.map_err(|_| Unavailable::gone())?;
        answered.await.unwrap_or_else(|_| Err(Unavailable::gone()))
    }
}

impl Waiting {
    /// The next transactions, all that are waiting now, renewals, or a restore, as far as they are
    /// taken.
    /// `None` if all senders are gone. Cancel-safe.
    pub(crate) async fn next(&mut self, takes: Takes) -> Option<Work> {
        let (mut jobs, mut renewals) = (Vec::new(), Vec::new());
        tokio::select! {
            received = self.jobs.recv_many(&mut jobs, GROUP), if takes.jobs => {
                (received > 0).then_some(Work::Write(jobs))
            }
            Some(restore) = self.restores.recv(), if takes.restores => {
                Some(Work::Restore(restore))
            }
            1.. = self.renewals.recv_many(&mut renewals, GROUP), if takes.renewals => {
                Some(Work::Renew(renewals))
            }
            else => std::future::pending().await,
        }
    }

    /// Closes the queue, and answers waiting requests that the server is stopping.
    pub(crate) async fn refuse_all(mut self) {
        self.jobs.close();
        self.restores.close();
        self.renewals.close();
        while let Some(mut job) = self.jobs.recv().await {
            job.done(Err(Unavailable::gone()));
        }
        while let Some(restore) = self.restores.recv().await {
            restore.finish(Err(Unavailable::gone()));
        }
        while let Some(renewal) = self.renewals.recv().await {
            renewal.done(Err(Unavailable::gone()));
        }
    }
}

/// A transaction that can be run again until it is stored.
pub(crate) trait Attempt: Send {
    /// Runs it. `false` means that it was refused, and its writes must be discarded.
    fn run(&mut self, txn: &mut WriteTxn) -> bool;
    /// Answers it with the value of the last run, if that was stored.
    fn done(&mut self, stored: Result<Applied, Unavailable>);
}

/// A transaction with the channel for its result.
pub(crate) struct Job<F, T, E> {
    transaction: F,
    /// The result of the last run.
    outcome: Option<Result<T, E>>,
    answer: Option<oneshot::Sender<Result<(Applied, T), E>>>,
}

type Answered<T, E> = oneshot::Receiver<Result<(Applied, T), E>>;

impl<F, T, E> Job<F, T, E> {
    pub(crate) fn new(transaction: F) -> (Self, Answered<T, E>) {
        let (answer, answered) = oneshot::channel();
        let job = Self {
            transaction,
            outcome: None,
            answer: Some(answer),
        };
        (job, answered)
    }
}

impl<F, T, E> Attempt for Job<F, T, E>
where
    F: FnMut(&mut WriteTxn) -> Result<T, E> + Send,
    T: Send,
    E: From<Unavailable> + Send,
{
    fn run(&mut self, txn: &mut WriteTxn) -> bool {
        let outcome = (self.transaction)(txn);
        self.outcome.insert(outcome).is_ok()
    }

    fn done(&mut self, stored: Result<Applied, Unavailable>) {
        let result = match (stored, self.outcome.take()) {
            (Ok(applied), Some(outcome)) => outcome.map(|value| (applied, value)),
            (Ok(_), None) => Err(Unavailable::gone().into()),
            (Err(unavailable), _) => Err(unavailable.into()),
        };
        if let Some(answer) = self.answer.take() {
            // The caller may be gone.
            drop(answer.send(result));
        }
    }
}

/// A transaction in the queue.
pub(crate) struct Queued {
    pub(crate) job: Box<dyn Attempt>,
    /// When it arrived.
    pub(crate) since: Instant,
}

/// The combined changes of some transactions.
pub(crate) struct Group {
    pub(crate) state: State,
    pub(crate) changes: Changes,
    pub(crate) ran: Vec<Ran>,
}

/// A transaction that ran, and has not been answered.
pub(crate) struct Ran {
    pub(crate) queued: Queued,
    pub(crate) applied: Applied,
}

/// The room for a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// The number of rows.
    pub(crate) rows: usize,
    /// Whether its first transaction may change more rows than that.
    pub(crate) exceed: bool,
}

impl Group {
    /// Runs transactions one after the other on a state, until their rows exceed the room. The
    /// remaining ones stay in `jobs`.
    pub(crate) fn run(state: &State, jobs: &mut VecDeque<Queued>, room: Room) -> Self {
        let mut group = Self {
            state: state.clone(),
            changes: Changes::default(),
            ran: Vec::new(),
        };
        while let Some(mut queued) = jobs.pop_front() {
            let mut txn = WriteTxn::on(&group.state);
            let run = catch_unwind(AssertUnwindSafe(|| queued.job.run(&mut txn)));
            let (state, changes) = match run {
                Ok(true) => txn.into_parts(),
                Ok(false) => (group.state.clone(), Changes::default()),
                Err(_) => {
                    let panicked = Unavailable::new("the transaction panicked");
                    queued.job.done(Err(panicked));
                    continue;
                }
            };
            let may_exceed = room.exceed && group.changes.is_empty();
            let rows = group.changes.rows.len() + changes.rows.len();
            if !changes.is_empty() && !may_exceed && rows > room.rows {
                jobs.push_front(queued);
                break;
            }
            let applied = Applied {
                index: state.index(),
                changed: !changes.is_empty(),
            };
            if applied.changed {
                group.state = state;
                group.changes.extend(changes);
            }
            group.ran.push(Ran { queued, applied });
        }
        group
    }
}

impl Ran {
    /// Answers it as stored or not.
    pub(crate) fn done(mut self, stored: Result<(), Unavailable>) {
        self.queued.job.done(stored.map(|()| self.applied));
    }
}
