//! The store's handle: applies commands one at a time, hands out states, answers blocking queries.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{Instant, timeout_at};

use crate::apply::apply;
use crate::command::{Applied, Command, Rejected};
use crate::state::State;
use crate::topic::Topic;
use crate::watch::{Registry, TopicWatch};

/// No query waits longer than a day, so that adding the wait to the time cannot overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The tables of a control plane, in memory. Clones are handles to the same tables.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    state: ArcSwap<State>,
    writer: Mutex<()>,
    registry: Arc<Registry>,
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

impl Store {
    /// Makes an empty store.
    pub fn new() -> Self {
        Self {
            inner: Arc::new(Inner {
                state: ArcSwap::from_pointee(State::empty()),
                writer: Mutex::new(()),
                registry: Arc::default(),
            }),
        }
    }

    /// The tables as they are now. They do not change under the caller.
    pub fn state(&self) -> Arc<State> {
        self.inner.state.load_full()
    }

    /// Applies one command, completely or not at all, and wakes those who watch what it touched.
    ///
    /// # Errors
    /// [`Rejected`] says what the command lacks; the tables are as they were.
    pub fn apply(&self, command: Command) -> Result<Applied, Rejected> {
        // A panic while applying leaves the old state in place, which is whole.
        let writer = self.inner.writer.lock();
        let writer = writer.unwrap_or_else(PoisonError::into_inner);
        let outcome = apply(&self.inner.state.load(), command)?;
        if let Some(state) = outcome.state {
            self.inner.state.store(Arc::new(state));
        }
        drop(writer);
        self.inner.registry.wake(&outcome.touched);
        Ok(outcome.applied)
    }

    /// Watches topics. Take the state after the watch, not before.
    pub fn watch(&self, topics: impl IntoIterator<Item = Topic>) -> TopicWatch {
        self.inner.registry.watch(topics)
    }

    /// Reads when there is something newer than what the caller has seen, or when the wait is over.
    ///
    /// `topics` must cover everything that `read` looks at. What is newer than `min_index` at the
    /// start is returned at once. Later, the result must differ from the first one: what a change
    /// of the topics leaves as it was does not end the waiting. A `min_index` from the future
    /// (another life of the server) is answered at once, so that the caller can start again.
    pub async fn blocking<T: PartialEq>(
        &self,
        topics: Vec<Topic>,
        query: BlockingQuery,
        read: impl Fn(&State) -> T,
    ) -> Answer<T> {
        let deadline = Instant::now() + query.wait.min(LONGEST_WAIT);
        let mut seen = query.min_index;
        let mut watch = (seen > 0).then(|| self.watch(topics.iter().cloned()));
        let mut first: Option<T> = None;
        loop {
            let state = self.state();
            let index = state.newest_index(&topics);
            let value = read(&state);
            let Some(watch) = watch.as_mut() else {
                return Answer { index, value };
            };
            if seen > state.index() {
                return Answer { index, value };
            }
            if index > seen {
                if first.as_ref().is_none_or(|first| *first != value) {
                    return Answer { index, value };
                }
                seen = index;
            }
            first.get_or_insert(value);
            drop(state);
            if timeout_at(deadline, watch.changed()).await.is_err() {
                let state = self.state();
                return Answer {
                    index: state.newest_index(&topics),
                    value: read(&state),
                };
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn watchers(&self, topic: &Topic) -> usize {
        self.inner.registry.watchers(topic)
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
