//! Group commit: transactions that arrive together are stored together, each with its own index.
//!
//! Each transaction runs on the state that the previous one left. Their changes are stored in one
//! step, and only then are they answered. This includes transactions that were refused or changed
//! nothing, because they have seen the others' changes. Changes that cannot be stored have no
//! effect. [`crate::committer`] does the storing.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::{mpsc, oneshot};

use crate::outcome::{Applied, Unavailable};
use crate::reader::Tables;
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
}

/// The senders' end of the queue to the committer.
pub(crate) struct Queue {
    jobs: mpsc::Sender<Box<dyn Attempt>>,
    restores: mpsc::Sender<Restore>,
}

/// A snapshot that replaces everything, and the channel for the result.
pub(crate) struct Restore {
    pub(crate) snapshot: Snapshot,
    pub(crate) answer: oneshot::Sender<Result<Applied, Unavailable>>,
}

/// The next work of the committer.
pub(crate) enum Work {
    Write(Vec<Box<dyn Attempt>>),
    Restore(Restore),
}

impl Queue {
    pub(crate) fn new() -> (Self, Waiting) {
        let (jobs, waiting_jobs) = mpsc::channel(QUEUE);
        let (restores, waiting_restores) = mpsc::channel(1);
        let waiting = Waiting {
            jobs: waiting_jobs,
            restores: waiting_restores,
        };
        (Self { jobs, restores }, waiting)
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
}

impl Waiting {
    /// The next transactions, all that are waiting now, or a restore. `None` if all senders are
    /// gone. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Work> {
        let mut jobs = Vec::new();
        tokio::select! {
            received = self.jobs.recv_many(&mut jobs, GROUP) => {
                (received > 0).then_some(Work::Write(jobs))
            }
            Some(restore) = self.restores.recv() => Some(Work::Restore(restore)),
        }
    }

    /// Closes the queue, and answers waiting requests that the server is stopping.
    pub(crate) async fn refuse_all(mut self) {
        self.jobs.close();
        self.restores.close();
        while let Some(mut job) = self.jobs.recv().await {
            job.done(Err(Unavailable::gone()));
        }
        while let Some(restore) = self.restores.recv().await {
            drop(restore.answer.send(Err(Unavailable::gone())));
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

/// The combined changes of some transactions.
pub(crate) struct Group {
    pub(crate) state: State,
    pub(crate) changes: Changes,
    ran: Vec<Ran>,
}

struct Ran {
    job: Box<dyn Attempt>,
    applied: Applied,
    /// Whether it ran on the state before the group, so that its result does not depend on the
    /// group.
    first: bool,
}

impl Ran {
    /// A transaction without changes that saw no unstored changes needs no storing.
    fn needs_storing(&self) -> bool {
        !self.first || self.applied.changed
    }
}

impl Group {
    /// Runs transactions one after the other on a state, until together they change more than
    /// `rows` rows. The remaining ones stay in `jobs`.
    pub(crate) fn run(state: &State, jobs: &mut VecDeque<Box<dyn Attempt>>, rows: usize) -> Self {
        let mut group = Self {
            state: state.clone(),
            changes: Changes::default(),
            ran: Vec::new(),
        };
        while let Some(mut job) = jobs.pop_front() {
            let first = group.changes.is_empty();
            let mut txn = WriteTxn::on(&group.state);
            let run = catch_unwind(AssertUnwindSafe(|| job.run(&mut txn)));
            let (state, changes) = match run {
                Ok(true) => txn.into_parts(),
                Ok(false) => (group.state.clone(), Changes::default()),
                Err(_) => {
                    job.done(Err(Unavailable::new("the transaction panicked")));
                    continue;
                }
            };
            if !first && group.changes.rows.len() + changes.rows.len() > rows {
                jobs.push_front(job);
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
            group.ran.push(Ran {
                job,
                applied,
                first,
            });
        }
        group
    }

    /// Whether several transactions changed something, so that they can be stored in several steps.
    pub(crate) fn can_be_divided(&self) -> bool {
        self.ran.iter().filter(|ran| ran.applied.changed).count() > 1
    }

    /// The transactions, to be run again on a newer state.
    pub(crate) fn into_jobs(self) -> impl DoubleEndedIterator<Item = Box<dyn Attempt>> {
        self.ran.into_iter().map(|ran| ran.job)
    }

    /// Answers the transactions, and publishes the new state if it was stored.
    pub(crate) fn finish(self, tables: &Tables, stored: Result<(), Unavailable>) {
        let changes = !self.changes.is_empty();
        if stored.is_ok() && changes {
            tables.publish(self.state, &self.changes);
        }
        if changes {
            let writes = self.ran.iter().filter(|ran| ran.needs_storing()).count();
            tables.refusals.note(&stored, writes as u64);
        }
        for mut ran in self.ran {
            let result = if ran.needs_storing() {
                stored.clone()
            } else {
                Ok(())
            };
            ran.job.done(result.map(|()| ran.applied));
        }
    }
}
