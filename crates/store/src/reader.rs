//! Read access to the tables: states, watches and blocking queries.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use crate::key::Key;
use crate::read::ReadTxn;
use crate::reads::Reads;
use crate::refusals::Refusals;
use crate::renewals::Renewals;
use crate::state::{Changes, State};
use crate::watch::Watch;

/// The maximum wait of a query. Prevents overflow when it is added to the current time.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Read access to a store. Clones read the same tables.
#[derive(Clone)]
pub struct Reader {
    tables: Arc<Tables>,
}

/// The current state.
pub(crate) struct Tables {
    state: ArcSwap<State>,
    /// Held while a state is published.
    publishing: Mutex<()>,
    pub(crate) refusals: Refusals,
    pub(crate) renewals: Renewals,
}

/// The parameters of a blocking query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockingQuery {
    /// The index that the caller has seen; the query waits for a newer one. 0: answer at once.
    pub min_index: u64,
    /// The maximum wait. Callers add jitter themselves.
    pub wait: Duration,
}

/// The result of a blocking query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// The index of the result, at least 1: the next query's `min_index`.
    pub index: u64,
    /// The result.
    pub value: T,
}

impl Tables {
    pub(crate) fn new(state: State) -> Self {
        Self {
            state: ArcSwap::from_pointee(state),
            publishing: Mutex::default(),
            refusals: Refusals::default(),
            renewals: Renewals::default(),
        }
    }

    pub(crate) fn state(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// Publishes a commit and wakes the readers that it affects.
    pub(crate) fn publish(&self, mut state: State, changes: &Changes) {
        let _publishing = self.publishing();
        // The commit was prepared on an earlier state.
        let current = self.state();
        state.revision = current.revision;
        state.mirror.clone_from(&current.mirror);
        self.replace(state, &changes.touched);
    }

    /// Publishes the current state with a change outside of its rows, and wakes the readers of the keys that `change`
    /// returns. Without keys nothing is published.
    pub(crate) fn republish(&self, change: impl FnOnce(&mut State) -> HashSet<Key>) {
        let _publishing = self.publishing();
        let mut state = State::clone(&self.state());
        let touched = change(&mut state);
        if !touched.is_empty() {
            self.replace(state, &touched);
        }
    }

    fn replace(&self, mut state: State, touched: &HashSet<Key>) {
        state.revision += 1;
        let queries = Arc::clone(&state.queries);
        let revision = state.revision;
        let publish = || self.state.store(Arc::new(state));
        queries.registry.commit(revision, touched, publish);
    }

    fn publishing(&self) -> MutexGuard<'_, ()> {
        self.publishing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    pub(crate) fn of(tables: &Arc<Tables>) -> Self {
        Self {
            tables: Arc::clone(tables),
        }
    }

    /// The current state, which is immutable.
    pub fn state(&self) -> Arc<State> {
        self.tables.state()
    }

    /// Watches everything that was read, from the state of the read on.
    pub fn watch(&self, reads: &Reads) -> Watch {
        self.state().queries.registry.watch(reads)
    }

    /// Reads once there is a newer result than the caller has seen, or the wait is over.
    ///
    /// A result newer than `min_index` is returned at once. Later, the result must differ from the
    /// first one: a change without an effect on it does not end the wait. A `min_index` from the
    /// future (of an earlier life of the server) is answered at once, so that the caller can start
    /// again. A waiting query holds a digest of the result, not the result.
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

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("index", &self.state().index())
            .finish_non_exhaustive()
    }
}

/// Compares results without storing them.
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
        // A value without a JSON form results in an error anyway.
        Err(_) => [0; 32],
    }
}
