//! Backends store the rows: the contract between the committer and durable storage.
//!
//! A backend stores a header, an index and rows. Keys and values are opaque bytes: they are
//! encoded, and secret tables are sealed, above this layer. A backend makes no decisions about
//! transactions, and holds no copy of the rows in memory, unlike [`State`].
//!
//! The contents of a backend have one index, which grows with each commit. A commit names its base
//! index, and is refused if the backend is at another index. So commits are serialized across
//! committers, and all servers that share a backend pass through the same states at the same
//! indexes.
//!
//! A new backend is a module here that implements [`Backend`], a variant of `StoreConfig`, and a
//! line in `Store::open` that opens it. Opening is not part of the trait, because every backend has
//! its own settings; it returns the backend and its contents ([`Loaded`]), or `None` if nothing was
//! ever stored.
//!
//! [`State`]: crate::State

pub(crate) mod disk;
pub(crate) mod etcd;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use uuid::Uuid;

use crate::outcome::Unavailable;

/// Keys of rows in stored form (`Key::to_bytes`).
pub(crate) type KeyBytes = Arc<[u8]>;

/// The contents of a backend at one index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// The header, needed to decode the rows. Only [`Backend::replace`] writes it.
    pub(crate) header: Vec<u8>,
    /// The index of the last commit.
    pub(crate) index: u64,
    /// All rows, by unique ascending keys.
    pub(crate) rows: Vec<(KeyBytes, Vec<u8>)>,
}

/// The changes of some transactions, stored atomically.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The index before the transactions.
    pub(crate) base: u64,
    /// The index after them: `base` plus the number of transactions that changed something. `base`
    /// if there are no rows.
    pub(crate) index: u64,
    /// The changed rows with their new values. At most [`Backend::rows_at_once`] rows unless a
    /// single transaction changes more. Only a batch that decides the outcome of earlier ones is
    /// empty ([`crate::replicas`]).
    pub(crate) rows: Rows,
    /// By what servers recognise it.
    pub(crate) commit: Commit,
}

/// Keys of rows with their new values; `None` removes a row.
pub(crate) type Rows = BTreeMap<KeyBytes, Option<Vec<u8>>>;

/// By what servers recognise a commit and the transactions in it. A backend for a single server
/// need not store it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Commit {
    /// Unique.
    pub(crate) id: Uuid,
    /// The turns of other servers whose transactions it contains ([`crate::replicas`]).
    pub(crate) turns: Vec<Uuid>,
}

/// A commit that another committer made, or whose outcome was unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Some rows changed. `base` is the index of the previous commit.
    Batch(Arc<Batch>),
    /// Everything was replaced, with a higher index. Also returned if the backend has lost track of
    /// changes (a watch was lost, or history was compacted) and has read everything again.
    Everything(Arc<Loaded>),
}

/// Why a commit was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotCommitted {
    /// Conflict: the backend is at another index than the base of the commit. Nothing was written.
    /// [`Backend::changed`] returns the missing commits; then the transactions are retried.
    Lost,
    /// The batch exceeds the limits of the backend. Nothing was written. The committer divides
    /// batches of several transactions.
    TooLarge(Unavailable),
    /// The commit failed, or its outcome is unknown. If it turns out to have been made,
    /// [`Backend::changed`] returns it, or the next commit is `Lost`. Later commits are still
    /// attempted.
    Unavailable(Unavailable),
}

/// Durable storage of rows. The committer owns it and makes one call at a time.
///
/// No call blocks its thread: blocking IO runs on the blocking thread pool ([`blocking`]).
pub(crate) trait Backend: Send + 'static {
    /// The maximum number of rows per commit for batches of several transactions. A single
    /// transaction with more rows is committed anyway, or refused with [`NotCommitted::TooLarge`]
    /// and advice. etcd accepts 4,032 rows and 1.5 MiB.
    fn rows_at_once(&self) -> usize;

    /// Makes a batch durable: after `Ok` it survives a power failure, and is visible to all other
    /// servers. Completes in bounded time.
    ///
    /// The future is polled to completion, except when the process ends: then the batch may have
    /// been stored or not, but never in part.
    fn commit(
        &mut self,
        batch: Arc<Batch>,
    ) -> impl Future<Output = Result<(), NotCommitted>> + Send;

    /// Replaces everything, including the header, if the backend is at index `base` (0: nothing was
    /// ever stored). Same guarantees as [`Backend::commit`], without a limit on the number of rows.
    fn replace(
        &mut self,
        base: u64,
        contents: Arc<Loaded>,
    ) -> impl Future<Output = Result<(), NotCommitted>> + Send;

    /// The next commit that the committer does not have, in order and without gaps. The committer
    /// has the commits that it loaded, made itself (`Ok`) or received from here; its own are not
    /// returned.
    ///
    /// Pending while there is none. Cancel-safe: a change that was not returned is returned by the
    /// next call. Never fails: an unreachable backend is retried indefinitely, with backoff.
    fn changed(&mut self) -> impl Future<Output = Change> + Send;

    /// The id of the last commit that the committer has: that it loaded, made itself or received.
    fn last_commit(&self) -> Uuid {
        Uuid::nil()
    }

    /// Releases resources (locks, leases, connections), in bounded time.
    fn close(self) -> impl Future<Output = ()> + Send;
}

impl Change {
    /// The index afterwards.
    pub(crate) fn index(&self) -> u64 {
        match self {
            Self::Batch(batch) => batch.index,
            Self::Everything(loaded) => loaded.index,
        }
    }
}

/// Runs blocking work (files, fsync) on the blocking thread pool. `None` if it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
