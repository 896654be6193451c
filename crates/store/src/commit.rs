//! Group commit: transactions that arrive together are stored together, each at an index of its
//! own.
//!
//! Each transaction runs on the state that the one before left; what all of them changed is stored
//! in one step, and only then are they answered, those included that refused or that changed
//! nothing: they have seen what the others changed. What cannot be stored has never happened.
//! Storing is the business of [`crate::committer`].

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::{mpsc, oneshot};

use crate::outcome::{Applied, Unavailable};
use crate::reader::Tables;
use crate::snapshot::Snapshot;
use crate::state::{Changes, State};
use crate::write::WriteTxn;

/// How many transactions wait at most; who comes later waits to be let in.
const QUEUE: usize = 4096;

/// How many transactions are stored in one step at most.
const GROUP: usize = 512;

/// What waits for the committer.
pub(crate) struct Waiting {
    jobs: mpsc::Receiver<Box<dyn Attempt>>,
    restores: mpsc::Receiver<Restore>,
}

/// The way to the committer.
pub(crate) struct Queue {
    jobs: mpsc::Sender<Box<dyn Attempt>>,
    restores: mpsc::Sender<Restore>,
}

/// A snapshot that takes the place of everything, and where the answer goes to.
pub(crate) struct Restore {
    pub(crate) snapshot: Snapshot,
    pub(crate) answer: oneshot::Sender<Result<Applied, Unavailable>>,
}

/// What to do next.
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
    /// The next transactions, as many as wait now, or a restore. `None` when there will be none.
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Work> {
        let mut jobs = Vec::new();
        tokio::select! {
            received = self.jobs.recv_many(&mut jobs, GROUP) => {
                (received > 0).then_some(Work::Write(jobs))
            }
            Some(restore) = self.restores.recv() => Some(Work::Restore(restore)),
        }
    }

    /// Lets nobody in any more, and answers those who wait that the server stops.
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

/// A transaction that can be run until it has been stored once.
pub(crate) trait Attempt: Send {
    /// Runs it. `false`: it refused, and its writes must be given up.
    fn run(&mut self, txn: &mut WriteTxn) -> bool;
    /// Answers it with what the last run returned, when that counts.
    fn done(&mut self, stored: Result<Applied, Unavailable>);
}

/// A transaction with the place that its answer goes to.
pub(crate) struct Job<F, T, E> {
    transaction: F,
    /// What the last run returned.
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
            // Who has gone does not want the answer.
            drop(answer.send(result));
        }
    }
}

/// What some transactions made of a state.
pub(crate) struct Group {
    pub(crate) state: State,
    pub(crate) changes: Changes,
    ran: Vec<Ran>,
}

struct Ran {
    job: Box<dyn Attempt>,
    applied: Applied,
    /// Whether it ran on the state before the group: then it does not matter what becomes of it.
    first: bool,
}

impl Group {
    /// Runs transactions one after the other on a state, until together they change more than
    /// `rows` rows. Those that are left stay in `jobs`.
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

    /// Whether several transactions changed something: they can be stored in several steps.
    pub(crate) fn can_be_divided(&self) -> bool {
        self.ran.iter().filter(|ran| ran.applied.changed).count() > 1
    }

    /// The transactions, to be run again on a newer state.
    pub(crate) fn into_jobs(self) -> impl DoubleEndedIterator<Item = Box<dyn Attempt>> {
        self.ran.into_iter().map(|ran| ran.job)
    }

    /// Answers the transactions, and shows the result to readers when it was stored.
    pub(crate) fn finish(self, tables: &Tables, stored: Result<(), Unavailable>) {
        if stored.is_ok() && !self.changes.is_empty() {
            tables.publish(self.state, &self.changes);
        }
        for mut ran in self.ran {
            // What changed nothing and saw nothing new needed no storing.
            let result = if ran.first && !ran.applied.changed {
                Ok(())
            } else {
                stored.clone()
            };
            ran.job.done(result.map(|()| ran.applied));
        }
    }
}
