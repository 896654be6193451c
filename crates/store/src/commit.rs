//! Group commit: transactions that arrive together are stored together, each at an index of its
//! own.
//!
//! The committer is one task. It runs each waiting transaction on the state that the one before
//! left, stores what all of them changed in one step, and only then shows the result to readers and
//! answers. What cannot be stored has never happened.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::command::Applied;
use crate::write::{Changes, WriteTxn};
use crate::{State, store::Inner};

/// How many transactions wait at most; who comes later waits to be let in.
const QUEUE: usize = 4096;

/// How many transactions are stored in one step at most.
const GROUP: usize = 512;

/// A write that could not be stored. Reads go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the change could not be stored: {reason}")]
pub struct Unavailable {
    /// Why, and what to do.
    pub reason: Arc<str>,
}

impl Unavailable {
    pub(crate) fn new(reason: impl Into<Arc<str>>) -> Self {
        Self {
            reason: reason.into(),
        }
    }

    pub(crate) fn gone() -> Self {
        Self::new("the server is stopping; ask another one")
    }
}

/// Where transactions wait.
pub(crate) type Waiting = mpsc::Receiver<Box<dyn Attempt>>;

/// The way to the committer.
pub(crate) struct Queue(mpsc::Sender<Box<dyn Attempt>>);

impl Queue {
    pub(crate) fn new() -> (Self, Waiting) {
        let (sender, waiting) = mpsc::channel(QUEUE);
        (Self(sender), waiting)
    }

    pub(crate) async fn send(&self, job: Box<dyn Attempt>) -> Result<(), Unavailable> {
        self.0.send(job).await.map_err(|_| Unavailable::gone())
    }
}

/// A transaction that can be run until it has been stored once.
pub(crate) trait Attempt: Send {
    /// Runs it. `false`: it refused, and was answered.
    fn run(&mut self, txn: &mut WriteTxn) -> bool;
    /// Answers it.
    fn done(&mut self, stored: Result<Applied, Unavailable>);
}

/// A transaction with the place that its answer goes to.
pub(crate) struct Job<F, T, E> {
    transaction: F,
    value: Option<T>,
    answer: Option<oneshot::Sender<Result<(Applied, T), E>>>,
}

type Answered<T, E> = oneshot::Receiver<Result<(Applied, T), E>>;

impl<F, T, E> Job<F, T, E> {
    pub(crate) fn new(transaction: F) -> (Self, Answered<T, E>) {
        let (answer, answered) = oneshot::channel();
        let job = Self {
            transaction,
            value: None,
            answer: Some(answer),
        };
        (job, answered)
    }

    fn answer(&mut self, result: Result<(Applied, T), E>) {
        if let Some(answer) = self.answer.take() {
            // Who has gone does not want the answer.
            drop(answer.send(result));
        }
    }
}

impl<F, T, E> Attempt for Job<F, T, E>
where
    F: FnMut(&mut WriteTxn) -> Result<T, E> + Send,
    T: Send,
    E: From<Unavailable> + Send,
{
    fn run(&mut self, txn: &mut WriteTxn) -> bool {
        match (self.transaction)(txn) {
            Ok(value) => {
                self.value = Some(value);
                true
            }
            Err(refused) => {
                self.answer(Err(refused));
                false
            }
        }
    }

    fn done(&mut self, stored: Result<Applied, Unavailable>) {
        match (stored, self.value.take()) {
            (Ok(applied), Some(value)) => self.answer(Ok((applied, value))),
            (Ok(_), None) => self.answer(Err(Unavailable::gone().into())),
            (Err(unavailable), _) => self.answer(Err(unavailable.into())),
        }
    }
}

/// What some transactions made of a state.
pub(crate) struct Group {
    pub(crate) state: State,
    pub(crate) changes: Changes,
    ran: Vec<(Box<dyn Attempt>, Applied)>,
}

impl Group {
    /// Runs transactions one after the other on a state.
    pub(crate) fn run(state: &State, jobs: Vec<Box<dyn Attempt>>) -> Self {
        let mut group = Self {
            state: state.clone(),
            changes: Changes::default(),
            ran: Vec::new(),
        };
        for mut job in jobs {
            let mut txn = WriteTxn::on(&group.state);
            let run = catch_unwind(AssertUnwindSafe(|| job.run(&mut txn)));
            match run {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => {
                    job.done(Err(Unavailable::new("the transaction panicked")));
                    continue;
                }
            }
            let (state, changes) = txn.into_parts();
            let applied = Applied {
                index: state.index(),
                changed: !changes.is_empty(),
            };
            if applied.changed {
                group.state = state;
                group.changes.extend(changes);
            }
            group.ran.push((job, applied));
        }
        group
    }

    /// The transactions, to be run again on a newer state.
    pub(crate) fn into_jobs(self) -> Vec<Box<dyn Attempt>> {
        self.ran.into_iter().map(|(job, _)| job).collect()
    }

    /// Answers the transactions, and shows the result to readers when it was stored.
    pub(crate) fn finish(self, inner: &Inner, stored: Result<(), Unavailable>) {
        if stored.is_ok() && !self.changes.is_empty() {
            inner.publish(self.state, &self.changes);
        }
        for (mut job, applied) in self.ran {
            // What changed nothing needed no storing.
            let result = if applied.changed {
                stored.clone()
            } else {
                Ok(())
            };
            job.done(result.map(|()| applied));
        }
    }
}

/// The next transactions, as many as wait now. `None` when there will be none.
pub(crate) async fn next(waiting: &mut Waiting) -> Option<Vec<Box<dyn Attempt>>> {
    let mut jobs = Vec::new();
    (waiting.recv_many(&mut jobs, GROUP).await > 0).then_some(jobs)
}
