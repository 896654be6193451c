//! What keeps the rows: the contract between the committer and a place that survives the process.
//!
//! A backend keeps a header, an index and rows. To it keys and values are bytes: what they mean,
//! and that those of secret tables are sealed, is settled before they get here. It never decides
//! what a transaction may do, and holds no copy of the rows in memory: that is the [`State`].
//!
//! Everything that a backend holds has one index, which grows with each commit. A commit names the
//! index that it was made from, and is refused when the backend holds another one. So commits are
//! serial, whoever makes them, and all servers over one backend pass through the same states at
//! the same indexes.
//!
//! A new backend is one module here that implements [`Backend`], a variant of
//! `StoreConfig`, and the line in `Store::open` that opens it. Opening is not part of the
//! trait, because every backend has settings of its own; it returns the backend and what it holds
//! ([`Loaded`]), or `None` when nothing was ever stored there.
//!
//! [`State`]: crate::State

pub(crate) mod disk;
pub(crate) mod etcd;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use crate::outcome::Unavailable;

/// Keys of rows in their stored form (`Key::to_bytes`).
pub(crate) type KeyBytes = Arc<[u8]>;

/// Everything that a backend holds, at one index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// What to know before the rows can be read. It is written by [`Backend::replace`] only.
    pub(crate) header: Vec<u8>,
    /// The index of the last commit.
    pub(crate) index: u64,
    /// All rows, the keys in ascending order and each of them once.
    pub(crate) rows: Vec<(KeyBytes, Vec<u8>)>,
}

/// What some transactions changed. It is stored as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The index that the transactions were run on.
    pub(crate) base: u64,
    /// The index afterwards: greater than `base`, by one for each transaction that changed
    /// something.
    pub(crate) index: u64,
    /// The rows that change, with their new values; `None` removes a row. It is not empty, and not
    /// longer than [`Backend::rows_at_once`] unless one transaction alone is.
    pub(crate) rows: BTreeMap<KeyBytes, Option<Vec<u8>>>,
}

/// A commit that this committer did not make, or of which it was not known whether it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Some rows changed. `base` is the index of the commit before.
    Batch(Arc<Batch>),
    /// Everything was replaced, with a higher index. Also what a backend answers that cannot tell
    /// what happened in between (a watch was lost, history was compacted): it reads everything
    /// again.
    Everything(Arc<Loaded>),
}

/// Why a commit was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotCommitted {
    /// The backend holds another index than the one that the commit was made from. Nothing was
    /// written. [`Backend::changed`] gives what is missing; then the transactions run again.
    Lost,
    /// The backend does not take so much at once. Nothing was written. The committer divides what
    /// is more than one transaction.
    TooLarge(Unavailable),
    /// The commit could not be made. Nothing was written, or it is not known whether it was:
    /// should it turn out that it was, [`Backend::changed`] gives it, or the next commit is
    /// `Lost`. Later commits are tried all the same.
    Unavailable(Unavailable),
}

/// A place that keeps rows. The committer owns it and makes one call at a time.
///
/// No call blocks the thread it is polled on: input and output that does runs on threads for
/// blocking work ([`blocking`]).
pub(crate) trait Backend: Send + 'static {
    /// How many rows one commit should change at most. Transactions that come together are divided
    /// so; a single transaction that changes more is committed all the same or refused with
    /// [`NotCommitted::TooLarge`] and what to do. etcd takes 4,032 rows and 1.5 MiB.
    fn rows_at_once(&self) -> usize;

    /// Makes a batch durable: after `Ok` it survives the loss of power, and every other server that
    /// reads sees it. It answers in bounded time.
    ///
    /// The future is never dropped before it is ready, except when the process ends: then the batch
    /// may have been stored or not, but never in part.
    fn commit(
        &mut self,
        batch: Arc<Batch>,
    ) -> impl Future<Output = Result<(), NotCommitted>> + Send;

    /// Replaces everything, the header included, when the backend holds the index `base` (0:
    /// nothing was ever stored). The same promises as for [`Backend::commit`], without a limit on
    /// the number of rows.
    fn replace(
        &mut self,
        base: u64,
        contents: Arc<Loaded>,
    ) -> impl Future<Output = Result<(), NotCommitted>> + Send;

    /// The next commit behind those that the committer knows, in order and without a gap: those
    /// that it loaded, made itself (`Ok`) or got from here before. Its own are not given again.
    ///
    /// Pending while there is none. Cancel safe: a change that was not returned is returned by the
    /// next call. It never fails: a backend that cannot be reached is asked again, with growing
    /// pauses, for as long as it takes.
    fn changed(&mut self) -> impl Future<Output = Change> + Send;

    /// Gives back what it holds (locks, leases, connections), in bounded time.
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

/// Runs work that blocks (files, fsync) on a thread that may be blocked. `None`: it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
