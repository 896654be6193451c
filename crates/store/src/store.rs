//! The store with full access, and a handle for transactions only.

use std::io::{Read, Seek, Write};
use std::sync::{Arc, Mutex, PoisonError};

use legate_runtime::metrics::IntCounter;
use tokio::time::Instant;

use crate::codec::Codec;
use crate::command::Command;
use crate::commit::{self, Attempt, Job};
use crate::leadership::Leadership;
use crate::mirror::Mirror;
use crate::outcome::{Applied, Unavailable, WriteError};
use crate::reader::{Reader, Tables};
use crate::reads::Reads;
use crate::renewals::{Renewals, SessionKey};
use crate::snapshot::{Saving, Snapshot, SnapshotError};
use crate::state::{Changes, State};
use crate::watch::Watch;
use crate::write::WriteTxn;

/// Full access to the tables of a control plane. Clones are handles to the same tables.
///
/// Components with fewer needs get a [`Reader`] or a [`Writer`].
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
    /// Encodes stored rows. `None` in memory.
    codec: Option<Codec>,
}

/// How transactions are applied.
enum Commits {
    /// By the caller, without waiting.
    Memory(Mutex<()>),
    /// By a task that commits many at once.
    Committer(commit::Queue),
}

impl Store {
    /// Creates an empty store in memory.
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

    /// The same store with a leader election among several servers.
    pub(crate) fn led_by(self, leadership: Leadership) -> Self {
        Self { leadership, ..self }
    }

    /// Whether this server is the leader.
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// A store whose transactions are committed by the receiver of the queue.
    pub(crate) fn committed_by(state: State, queue: commit::Queue, codec: Codec) -> Self {
        Self::with(state, Commits::Committer(queue), Some(codec))
    }

    /// Adds a counter of the writes that were valid but could not be stored, for example because
    /// the disk is full.
    pub fn count_refused_writes(&self, counter: IntCounter) {
        self.inner.tables.refusals.count(counter);
    }

    /// The renewals of sessions that this server keeps while it is the leader.
    pub fn renewals(&self) -> &Renewals {
        &self.inner.tables.renewals
    }

    /// A handle for reads.
    pub fn reader(&self) -> Reader {
        Reader::of(&self.inner.tables)
    }

    /// A handle for what is read of other datacenters. Without one, it is not available.
    pub fn mirror(&self) -> Mirror {
        Mirror::new(Arc::clone(&self.inner.tables))
    }

    /// A handle for transactions.
    pub fn writer(&self) -> Writer {
        Writer {
            inner: Arc::clone(&self.inner),
        }
    }

    /// The current state, which is immutable.
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
    /// The same as [`Writer::write`].
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
    /// The same as [`Writer::apply`].
    pub async fn apply(&self, command: Command) -> Result<Applied, WriteError> {
        self.inner.apply(command).await
    }

    /// A snapshot of the current state. The store stays in use. The snapshot of a store in memory contains
    /// the key of its secrets.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub fn snapshot(&self) -> Result<Saving, SnapshotError> {
        Saving::new(self.state(), self.inner.codec.clone())
    }

    /// Writes a snapshot at one index, and returns that index.
    ///
    /// Blocks on `to` and runs in proportion to the number of rows: call it on the blocking thread
    /// pool.
    ///
    /// # Errors
    /// As [`Self::snapshot`].
    pub fn save(&self, mut to: impl Write) -> Result<u64, SnapshotError> {
        let mut saving = self.snapshot()?;
        while let Some(part) = saving.next_part()? {
            to.write_all(&part)?;
        }
        to.flush()?;
        Ok(saving.index())
    }

    /// Reads a whole snapshot for [`Store::restore`]. Changes nothing.
    ///
    /// It is read twice: first it is checked, so that only a complete snapshot with this store's key
    /// is held in memory. Blocks on `from`: call it on the blocking thread pool.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn read_snapshot(&self, from: impl Read + Seek) -> Result<Snapshot, SnapshotError> {
        Snapshot::read(from, self.inner.codec.as_ref())
    }

    /// Replaces everything with the contents of a snapshot, atomically, at an index higher than
    /// those of the store and the snapshot. Wakes all watches.
    ///
    /// # Errors
    /// [`Unavailable`] if the contents cannot be stored.
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
    /// Runs a transaction atomically, with its own index, and durably if the backend is durable.
    /// Wakes the watches of everything that it changed.
    ///
    /// The transaction is a function of the state that it is applied to. It may be run again on a
    /// newer state after a conflict. It continues if the future is dropped.
    ///
    /// # Errors
    /// The error of the transaction, which then changed nothing. [`Unavailable`] if the change
    /// could not be stored; with etcd it may have been made anyway.
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

    /// Renews a session at the server that leads, which may be another one. Nothing is stored.
    /// Returns whether the session exists there.
    ///
    /// # Errors
    /// [`Unavailable`] if it was not confirmed in time.
    pub async fn renew(&self, session: SessionKey) -> Result<bool, Unavailable> {
        let tables = &self.inner.tables;
        match &self.inner.commits {
            Commits::Memory(_) => {
                let renewals = &tables.renewals;
                Ok(renewals.renew(&session, &tables.state(), Instant::now()))
            }
            Commits::Committer(queue) => queue.renew(session).await,
        }
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
                // Not awaited, so that no runtime is required.
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
        // A panic in a transaction leaves the old state in place.
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
