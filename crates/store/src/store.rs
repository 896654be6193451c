//! The store's handle: applies transactions, hands out states, answers blocking queries.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use crate::codec::Codec;
use crate::command::{Applied, Command, Rejected};
use crate::commit::{self, Attempt, Job, Unavailable};
use crate::leadership::Leadership;
use crate::read::{ReadTxn, Reads};
use crate::snapshot::Snapshot;
use crate::state::State;
use crate::watch::Watch;
use crate::write::{Changes, WriteTxn};

/// No query waits longer than a day, so that adding the wait to the time cannot overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The tables of a control plane. Clones are handles to the same tables.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
    leadership: Leadership,
}

pub(crate) struct Inner {
    pub(crate) tables: Arc<Tables>,
    writer: Writer,
    /// How rows are stored. `None` in memory.
    pub(crate) codec: Option<Codec>,
}

/// The state that readers see.
pub(crate) struct Tables {
    state: ArcSwap<State>,
}

/// Who applies transactions.
enum Writer {
    /// Whoever asks: nothing has to be waited for.
    Memory(Mutex<()>),
    /// A task that commits many at once.
    Committer(commit::Queue),
}

/// How long to wait for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockingQuery {
    /// The index the caller has seen; the answer is newer if there is one in time. 0: answer now.
    pub min_index: u64,
    /// How long to wait for something newer. A random part, if wanted, is the caller's to add.
    pub wait: Duration,
}

/// What a blocking query read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// The index of what was read, at least 1: the next query's `min_index`.
    pub index: u64,
    /// What was read.
    pub value: T,
}

/// Why a write was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The tables do not allow it.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// It could not be stored.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl Tables {
    pub(crate) fn state(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// Makes a commit visible and wakes those whom it concerns.
    pub(crate) fn publish(&self, state: State, changes: &Changes) {
        let queries = Arc::clone(&state.queries);
        let index = state.index();
        let publish = || self.state.store(Arc::new(state));
        queries.registry.commit(index, &changes.touched, publish);
    }
}

impl Store {
    /// Makes an empty store that keeps nothing when it goes.
    pub fn new() -> Self {
        Self::with(State::empty(), Writer::Memory(Mutex::new(())), None)
    }

    fn with(state: State, writer: Writer, codec: Option<Codec>) -> Self {
        let tables = Tables {
            state: ArcSwap::from_pointee(state),
        };
        Self {
            inner: Arc::new(Inner {
                tables: Arc::new(tables),
                writer,
                codec,
            }),
            leadership: Leadership::alone(),
        }
    }

    /// The same store, which several servers use.
    pub(crate) fn led_by(self, leadership: Leadership) -> Self {
        Self { leadership, ..self }
    }

    /// Whether this server does what one must do.
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// A store whose transactions are committed by whoever empties the queue.
    pub(crate) fn committed_by(state: State, queue: commit::Queue, codec: Codec) -> Self {
        Self::with(state, Writer::Committer(queue), Some(codec))
    }

    /// The tables as they are now. They do not change under the caller.
    pub fn state(&self) -> Arc<State> {
        self.inner.tables.state()
    }

    /// Runs a transaction: all of its writes or none, at an index of its own, and durable where the
    /// store is. Wakes those who read what it changed.
    ///
    /// The transaction is a function of the state that it is applied to, and may be run again on a
    /// newer one when somebody else was faster. It goes on when the future is dropped.
    ///
    /// # Errors
    /// What the transaction returns: then it changed nothing. [`Unavailable`] when the store cannot
    /// keep the change; where the store is on another machine, it may have been made all the same.
    pub async fn write<T, E>(
        &self,
        transaction: impl FnMut(&mut WriteTxn) -> Result<T, E> + Send + 'static,
    ) -> Result<(Applied, T), E>
    where
        T: Send + 'static,
        E: From<Unavailable> + Send + 'static,
    {
        let (mut job, mut done) = Job::new(transaction);
        match &self.inner.writer {
            Writer::Memory(writer) => {
                self.write_in_memory(writer, &mut job);
                // Not awaited: whoever has no runtime writes at once.
                let answer = done.try_recv();
                answer.unwrap_or_else(|_| Err(Unavailable::gone().into()))
            }
            Writer::Committer(queue) => {
                queue.send(Box::new(job)).await?;
                let answer = done.await;
                answer.unwrap_or_else(|_| Err(Unavailable::gone().into()))
            }
        }
    }

    fn write_in_memory(&self, writer: &Mutex<()>, job: &mut dyn Attempt) {
        // A panic in a transaction leaves the old state in place, which is whole.
        let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state();
        let mut txn = WriteTxn::on(&state);
        let (next, changes) = if job.run(&mut txn) {
            txn.into_parts()
        } else {
            (State::clone(&state), Changes::default())
        };
        let applied = Applied {
            index: next.index(),
            changed: !changes.is_empty(),
        };
        if applied.changed {
            self.inner.tables.publish(next, &changes);
        }
        job.done(Ok(applied));
        drop(writer);
    }

    /// Replaces everything with what a snapshot holds, in one step and at an index that is higher
    /// than that of the store and that of the snapshot. Wakes all who read something.
    ///
    /// # Errors
    /// [`Unavailable`] when the store cannot keep it.
    pub async fn restore(&self, snapshot: Snapshot) -> Result<Applied, Unavailable> {
        let writer = match &self.inner.writer {
            Writer::Committer(queue) => return queue.restore(snapshot).await,
            Writer::Memory(writer) => writer,
        };
        let _writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state();
        let index = state.index().max(snapshot.index) + 1;
        let (next, changes) = state.replaced(index, snapshot.rows);
        self.inner.tables.publish(next, &changes);
        Ok(Applied {
            index,
            changed: true,
        })
    }

    /// Applies one command.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then.
    pub async fn apply(&self, command: Command) -> Result<Applied, WriteError> {
        let write =
            move |txn: &mut WriteTxn| -> Result<(), WriteError> { Ok(txn.apply(command.clone())?) };
        self.write(write).await.map(|(applied, ())| applied)
    }

    /// Watches what was read, from the moment of the read.
    pub fn watch(&self, reads: &Reads) -> Watch {
        self.state().queries.registry.watch(reads)
    }

    /// Reads when there is something newer than what the caller has seen, or when the wait is over.
    ///
    /// What is newer than `min_index` at the start is returned at once. Later, the result must
    /// differ from the first one: a change that leaves it as it was does not end the waiting. A
    /// `min_index` from the future (another life of the server) is answered at once, so that the
    /// caller can start again. A waiting query holds a digest of what it read and not the result.
    pub async fn blocking<T: Serialize>(
        &self,
        query: BlockingQuery,
        read: impl Fn(&ReadTxn<'_>) -> T,
    ) -> Answer<T> {
        let deadline = Instant::now() + query.wait.min(LONGEST_WAIT);
        let mut seen = query.min_index;
        let mut first: Option<[u8; 32]> = None;
        let mut over = false;
        loop {
            let mut watch = {
                let state = self.state();
                let txn = state.read();
                let value = read(&txn);
                let reads = txn.into_reads();
                let index = reads.index();
                let news = index > seen && {
                    seen = index;
                    first.is_none_or(|first| first != digest(&value))
                };
                if over || query.min_index == 0 || query.min_index > state.index() || news {
                    return Answer { index, value };
                }
                if first.is_none() {
                    first = Some(digest(&value));
                }
                self.watch(&reads)
            };
            over = timeout_at(deadline, watch.changed()).await.is_err();
        }
    }
}

/// Tells results apart without keeping them.
fn digest<T: Serialize>(value: &T) -> [u8; 32] {
    struct Digesting(Sha256);
    impl Write for Digesting {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut digesting = Digesting(Sha256::new());
    match serde_json::to_writer(&mut digesting, value) {
        Ok(()) => digesting.0.finalize().into(),
        // What has no JSON form is answered with an error anyway.
        Err(_) => [0; 32],
    }
}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("index", &self.state().index())
            .finish_non_exhaustive()
    }
}
