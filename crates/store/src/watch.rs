//! The registry of watches. The cost of a commit is proportional to its changed keys and their
//! watchers; other watches are not visited.
//!
//! Readers read first and watch afterwards. They miss no commits in between, because recent commits
//! are remembered: a watch on something that has changed since the read wakes at once.

use std::any::Any;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::key::Key;
use crate::reads::Reads;

/// The number of keys of recent commits that are remembered. A watch of an older read wakes at
/// once.
const REMEMBERED: usize = 16 * 1024;

/// The watches of a store.
#[derive(Default)]
pub(crate) struct Registry {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    by_key: HashMap<Key, Waiters>,
    next_id: u64,
    /// Recent commits, the oldest first.
    recent: VecDeque<Commit>,
    remembered: usize,
    /// The revision of the newest change that is no longer remembered.
    forgotten: u64,
}

/// A published change: the revision of its state, and all changed keys with their prefixes.
struct Commit {
    revision: u64,
    touched: HashSet<Key>,
}

/// The watchers of one key. Most keys have one watcher, which needs no map.
#[expect(
    clippy::box_collection,
    reason = "a map in place would make the room of one watcher twice as large"
)]
enum Waiters {
    One(u64, Waiter),
    Many(Box<HashMap<u64, Waiter>>),
}

#[derive(Clone)]
enum Waiter {
    Task(Arc<Notify>),
    Query(Arc<Query>),
    Kept(Arc<Mark>),
}

/// A shared result, which its readers watch by its own key.
struct Query {
    key: Key,
    fresh: Arc<AtomicBool>,
}

/// A flag that an input of a cached value has changed.
#[derive(Debug)]
pub(crate) struct Mark {
    stale: AtomicBool,
    notify: Arc<Notify>,
}

impl Mark {
    /// A clear mark; setting it notifies `notify`.
    pub(crate) fn new(notify: &Arc<Notify>) -> Self {
        Self {
            stale: AtomicBool::new(false),
            notify: Arc::clone(notify),
        }
    }

    /// Whether an input has changed.
    pub(crate) fn is_set(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    fn set(&self) {
        self.stale.store(true, Ordering::Release);
        self.notify.notify_one();
    }
}

impl Registry {
    /// Watches everything that was read.
    pub(crate) fn watch(self: &Arc<Self>, reads: &Reads) -> Watch {
        let notify = Arc::new(Notify::new());
        let mut waiting = self.lock();
        if waiting.changed_since(reads) {
            notify.notify_one();
        }
        let id = waiting.add(&reads.keys, &Waiter::Task(Arc::clone(&notify)));
        drop(waiting);
        Watch {
            notify,
            _place: self.place(id, reads),
        }
    }

    /// Watches the inputs of a cached value. The first change sets the mark.
    pub(crate) fn watch_kept(self: &Arc<Self>, reads: &Reads, mark: &Arc<Mark>) -> WatchGuard {
        let mut waiting = self.lock();
        let id = waiting.add(&reads.keys, &Waiter::Kept(Arc::clone(mark)));
        if waiting.changed_since(reads) {
            mark.set();
        }
        drop(waiting);
        self.place(id, reads)
    }

    /// Watches the inputs of a shared result. The first change clears `fresh`.
    pub(crate) fn watch_query(
        self: &Arc<Self>,
        key: &Key,
        reads: &Reads,
        fresh: &Arc<AtomicBool>,
    ) -> WatchGuard {
        let mut waiting = self.lock();
        let id = waiting.add(&reads.keys, &Query::waiter(key, fresh));
        waiting.mark_if_changed(key, reads, fresh);
        drop(waiting);
        self.place(id, reads)
    }

    /// Watches the inputs of a shared result that was computed again, in the place of those of before. `fresh` is the
    /// same as then.
    pub(crate) fn watch_query_again(
        self: &Arc<Self>,
        key: &Key,
        reads: &Reads,
        fresh: &Arc<AtomicBool>,
        guard: &mut WatchGuard,
    ) {
        let mut waiting = self.lock();
        let is_kept = |old: &Key| reads.keys.contains(old);
        if guard.keys.len() != reads.keys.len() || !guard.keys.iter().all(is_kept) {
            let old: HashSet<Key> = guard.keys.iter().cloned().collect();
            let added = reads.keys.difference(&old).cloned().collect();
            waiting.add_to(guard.id, &added, &Query::waiter(key, fresh));
            for gone in old.difference(&reads.keys) {
                waiting.remove(guard.id, gone);
            }
            guard.keys = reads.keys.iter().cloned().collect();
        }
        let results = reads.results.iter().cloned().collect();
        let results = std::mem::replace(&mut guard.results, results);
        // Whatever cleared it before this is older than the reads, or is found here.
        fresh.store(true, Ordering::Release);
        waiting.mark_if_changed(key, reads, fresh);
        drop(waiting);
        // Without the lock: what a result holds may end watches.
        drop(results);
    }

    /// Marks everything that depends on the keys of a change, then makes its state visible with
    /// `publish`. So no reader sees the new state together with a stale shared result.
    pub(crate) fn commit(&self, revision: u64, touched: &HashSet<Key>, publish: impl FnOnce()) {
        let mut prefixes = HashSet::new();
        for key in touched {
            for prefix in key.prefixes() {
                if !prefixes.contains(prefix) {
                    prefixes.insert(Key::from_bytes(prefix));
                }
            }
        }
        let mut waiting = self.lock();
        let touched = waiting.wake(prefixes);
        waiting.remember(Commit { revision, touched });
        publish();
    }

    /// The number of watches.
    #[cfg(test)]
    pub(crate) fn watchers(&self) -> usize {
        self.lock().by_key.values().map(Waiters::count).sum()
    }

    /// The number of keys of recent commits that are remembered.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        let waiting = self.lock();
        waiting
            .recent
            .iter()
            .map(|commit| commit.touched.len())
            .sum()
    }

    fn place(self: &Arc<Self>, id: u64, reads: &Reads) -> WatchGuard {
        WatchGuard {
            registry: Arc::clone(self),
            id,
            keys: reads.keys.iter().cloned().collect(),
            results: reads.results.iter().cloned().collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Safe to ignore poisoning: every change of the lists is complete before anything can
        // panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Query {
    fn waiter(key: &Key, fresh: &Arc<AtomicBool>) -> Waiter {
        Waiter::Query(Arc::new(Self {
            key: key.clone(),
            fresh: Arc::clone(fresh),
        }))
    }
}

impl Waiting {
    fn add(&mut self, keys: &HashSet<Key>, waiter: &Waiter) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.add_to(id, keys, waiter);
        id
    }

    fn add_to(&mut self, id: u64, keys: &HashSet<Key>, waiter: &Waiter) {
        for key in keys {
            match self.by_key.entry(key.clone()) {
                Entry::Vacant(free) => {
                    free.insert(Waiters::One(id, waiter.clone()));
                }
                Entry::Occupied(mut others) => others.get_mut().add(id, waiter.clone()),
            }
        }
    }

    fn remove(&mut self, id: u64, key: &Key) {
        if let Entry::Occupied(mut waiters) = self.by_key.entry(key.clone())
            && waiters.get_mut().remove(id)
        {
            waiters.remove();
        }
    }

    /// Marks a shared result, whose inputs are watched already, if one of them has changed since it was read.
    fn mark_if_changed(&mut self, key: &Key, reads: &Reads, fresh: &AtomicBool) {
        if self.changed_since(reads) {
            fresh.store(false, Ordering::Release);
            // A reader that has read the result but does not watch it yet must notice the change.
            self.remember_key(key);
            self.wake(HashSet::from([key.clone()]));
        }
    }

    fn changed_since(&self, reads: &Reads) -> bool {
        if self.forgotten > reads.at {
            return true;
        }
        let newer = self.recent.iter().rev();
        newer
            .take_while(|commit| commit.revision > reads.at)
            .any(|commit| {
                // Iterates over the smaller set.
                if reads.keys.len() < commit.touched.len() {
                    reads.keys.iter().any(|key| commit.touched.contains(key))
                } else {
                    commit.touched.iter().any(|key| reads.keys.contains(key))
                }
            })
    }

    /// Wakes the watchers of the keys, also through shared results. Returns the keys, including
    /// those of the results.
    fn wake(&self, mut keys: HashSet<Key>) -> HashSet<Key> {
        let mut left: Vec<Key> = keys.iter().cloned().collect();
        while let Some(key) = left.pop() {
            for waiter in self.by_key.get(&key).into_iter().flat_map(Waiters::iter) {
                match waiter {
                    Waiter::Task(notify) => notify.notify_one(),
                    Waiter::Kept(mark) => mark.set(),
                    Waiter::Query(query) => {
                        query.fresh.store(false, Ordering::Release);
                        if keys.insert(query.key.clone()) {
                            left.push(query.key.clone());
                        }
                    }
                }
            }
        }
        keys
    }

    fn remember(&mut self, commit: Commit) {
        self.remembered += commit.touched.len();
        self.recent.push_back(commit);
        self.forget();
    }

    /// Adds a key to the newest commit.
    fn remember_key(&mut self, key: &Key) {
        if let Some(last) = self.recent.back_mut()
            && last.touched.insert(key.clone())
        {
            self.remembered += 1;
            self.forget();
        }
    }

    fn forget(&mut self) {
        while self.remembered > REMEMBERED
            && let Some(oldest) = self.recent.pop_front()
        {
            self.remembered = self.remembered.saturating_sub(oldest.touched.len());
            self.forgotten = oldest.revision;
        }
    }
}

impl Waiters {
    fn add(&mut self, id: u64, waiter: Waiter) {
        match self {
            Self::One(other, first) => {
                let both = HashMap::from([(*other, first.clone()), (id, waiter)]);
                *self = Self::Many(Box::new(both));
            }
            Self::Many(all) => {
                all.insert(id, waiter);
            }
        }
    }

    /// Removes a watcher. Returns whether it was the last one.
    fn remove(&mut self, id: u64) -> bool {
        match self {
            Self::One(only, _) => *only == id,
            Self::Many(all) => {
                all.remove(&id);
                all.is_empty()
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Waiter> {
        let (one, many) = match self {
            Self::One(_, waiter) => (Some(waiter), None),
            Self::Many(all) => (None, Some(all.values())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.iter().count()
    }
}

/// A registered watch. Dropping it removes it.
pub(crate) struct WatchGuard {
    registry: Arc<Registry>,
    id: u64,
    keys: Box<[Key]>,
    /// Held, because dropped results forward no changes.
    results: Box<[Arc<dyn Any + Send + Sync>]>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let mut waiting = self.registry.lock();
        for key in &self.keys {
            waiting.remove(self.id, key);
        }
    }
}

/// Waits until something that was read has changed. Dropping it ends the watch.
///
/// Includes changes between the read and the creation of the watch. Changes while no call waits are
/// coalesced into one.
pub struct Watch {
    notify: Arc<Notify>,
    _place: WatchGuard,
}

impl Watch {
    /// Returns when something has changed since the read or since the last return. Cancel-safe.
    pub async fn changed(&mut self) {
        self.notify.notified().await;
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
