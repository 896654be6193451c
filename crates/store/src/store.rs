//! The store as its owner has it, and the handle of those who may only run transactions.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use crate::codec::Codec;
use crate::command::Command;
use crate::commit::{self, Attempt, Job};
use crate::leadership::Leadership;
use crate::outcome::{Applied, Unavailable, WriteError};
use crate::reader::{Reader, Tables};
use crate::reads::Reads;
use crate::snapshot::{self, Snapshot, SnapshotError};
use crate::state::{Changes, State};
use crate::watch::Watch;
use crate::write::WriteTxn;

/// The tables of a control plane, with all that can be done to them. Clones are handles to the same
/// tables.
///
/// Whoever needs less gets less: a [`Reader`], or a [`Writer`].
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
    leadership: Leadership,
}

/// Runs transactions on a store. Clones write to the same tables.
#[derive(Clone)]
pub struct Writer {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) tables: Arc<Tables>,
    commits: Commits,
    /// How rows are stored. `None` in memory.
    codec: Option<Codec>,
}

/// Who applies transactions.
enum Commits {
    /// Whoever asks: nothing has to be waited for.
    Memory(Mutex<()>),
    /// A task that commits many at once.
    Committer(commit::Queue),
}

impl Store {
    /// Makes an empty store that keeps nothing when it goes.
    pub fn new() -> Self {
        Self::with(State::empty(), Commits::Memory(Mutex::new(())), None)
    }

    fn with(state: State, commits: Commits, codec: Option<Codec>) -> Self {
        Self {
            inner: Arc::new(Inner {
                tables: Arc::new(Tables::new(state)),
                commits,
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
        Self::with(state, Commits::Committer(queue), Some(codec))
    }

    /// A handle that reads.
    pub fn reader(&self) -> Reader {
        Reader::of(&self.inner.tables)
    }

    /// A handle that runs transactions.
    pub fn writer(&self) -> Writer {
        Writer {
            inner: Arc::clone(&self.inner),
        }
    }

    /// The tables as they are now. They do not change under the caller.
    pub fn state(&self) -> Arc<State> {
        self.inner.tables.state()
    }

    /// See [`Reader::watch`].
    pub fn watch(&self, reads: &Reads) -> Watch {
        self.reader().watch(reads)
    }

    /// See [`Writer::write`].
    ///
    /// # Errors
    /// As there.
    pub async fn write<T, E>(
        &self,
        transaction: impl FnMut(&mut WriteTxn) -> Result<T, E> + Send + 'static,
    ) -> Result<(Applied, T), E>
    where
        T: Send + 'static,
        E: From<Unavailable> + Send + 'static,
    {
        self.inner.write(transaction).await
    }

    /// See [`Writer::apply`].
    ///
    /// # Errors
    /// As there.
    pub async fn apply(&self, command: Command) -> Result<Applied, WriteError> {
        self.inner.apply(command).await
    }

    /// Writes everything at one index, and returns that index. The store goes on meanwhile.
    ///
    /// It blocks as `to` does, and works for as long as there are rows: call it on a thread that
    /// may be blocked.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] and [`SnapshotError::InMemory`].
    pub fn save(&self, to: impl Write) -> Result<u64, SnapshotError> {
        let codec = self.inner.codec.as_ref().ok_or(SnapshotError::InMemory)?;
        let state = self.state();
        snapshot::save(&state, codec, to)?;
        Ok(state.index())
    }

    /// Reads a snapshot wholly, so that it can be restored ([`Store::restore`]). Nothing changes.
    ///
    /// It blocks as `from` does: call it on a thread that may be blocked. What is read is held in
    /// memory: limit `from` where its length is not trusted.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn read_snapshot(&self, from: impl Read) -> Result<Snapshot, SnapshotError> {
        let codec = self.inner.codec.as_ref().ok_or(SnapshotError::InMemory)?;
        Snapshot::read(from, codec)
    }

    /// Replaces everything with what a snapshot holds, in one step and at an index that is higher
    /// than that of the store and that of the snapshot. Wakes all who read something.
    ///
    /// # Errors
    /// [`Unavailable`] when the store cannot keep it.
    pub async fn restore(&self, snapshot: Snapshot) -> Result<Applied, Unavailable> {
        let writer = match &self.inner.commits {
            Commits::Committer(queue) => return queue.restore(snapshot).await,
            Commits::Memory(writer) => writer,
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
}

impl Writer {
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
        self.inner.write(transaction).await
    }

    /// Applies one command.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then.
    pub async fn apply(&self, command: Command) -> Result<Applied, WriteError> {
        self.inner.apply(command).await
    }
}

impl Inner {
    async fn write<T, E>(
        &self,
        transaction: impl FnMut(&mut WriteTxn) -> Result<T, E> + Send + 'static,
    ) -> Result<(Applied, T), E>
    where
        T: Send + 'static,
        E: From<Unavailable> + Send + 'static,
    {
        let (mut job, mut done) = Job::new(transaction);
        match &self.commits {
            Commits::Memory(writer) => {
                self.write_in_memory(writer, &mut job);
                // Not awaited: whoever has no runtime writes at once.
                let answer = done.try_recv();
                answer.unwrap_or_else(|_| Err(Unavailable::gone().into()))
            }
            Commits::Committer(queue) => {
                queue.send(Box::new(job)).await?;
                let answer = done.await;
                answer.unwrap_or_else(|_| Err(Unavailable::gone().into()))
            }
        }
    }

    fn write_in_memory(&self, writer: &Mutex<()>, job: &mut dyn Attempt) {
        // A panic in a transaction leaves the old state in place, which is whole.
        let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.tables.state();
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
            self.tables.publish(next, &changes);
        }
        job.done(Ok(applied));
        drop(writer);
    }

    async fn apply(&self, command: Command) -> Result<Applied, WriteError> {
        let write =
            move |txn: &mut WriteTxn| -> Result<(), WriteError> { Ok(txn.apply(command.clone())?) };
        self.write(write).await.map(|(applied, ())| applied)
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

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}
