//! The tables for those who may only read them: states, watches and blocking queries.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use crate::read::ReadTxn;
use crate::reads::Reads;
use crate::state::{Changes, State};
use crate::watch::Watch;

/// No query waits longer than a day, so that adding the wait to the time cannot overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads a store, and cannot change it. Clones read the same tables.
#[derive(Clone)]
pub struct Reader {
    tables: Arc<Tables>,
}

/// The state that readers see.
pub(crate) struct Tables {
    state: ArcSwap<State>,
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

impl Tables {
    pub(crate) fn new(state: State) -> Self {
        Self {
            state: ArcSwap::from_pointee(state),
        }
    }

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

impl Reader {
    pub(crate) fn of(tables: &Arc<Tables>) -> Self {
        Self {
            tables: Arc::clone(tables),
        }
    }

    /// The tables as they are now. They do not change under the caller.
    pub fn state(&self) -> Arc<State> {
        self.tables.state()
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

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("index", &self.state().index())
            .finish_non_exhaustive()
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
