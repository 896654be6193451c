//! Shared results: each is computed once for all readers, and recomputed when one of its inputs has
//! changed.
//!
//! A result is dropped when no reader holds it and nothing depends on it. Results are computed only
//! on demand.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::key::Key;
use crate::reads::Reads;
use crate::watch::{Registry, WatchGuard};

/// The minimum number of results for a sweep.
const SWEEP_FROM: usize = 64;

/// The shared results of a store, and its registry of watches.
#[derive(Default)]
pub(crate) struct Queries {
    pub(crate) registry: Arc<Registry>,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    by_key: HashMap<Key, Arc<Mutex<Option<Slot>>>>,
    /// The number of results at which the next sweep drops unused ones.
    sweep_at: usize,
}

struct Slot {
    value: Weak<dyn Any + Send + Sync>,
    /// The revision of the state that the result was computed from.
    at: u64,
    /// The index of the last change of its inputs.
    newest: u64,
    is_pending: bool,
    /// Cleared by the first change of an input.
    fresh: Arc<AtomicBool>,
    guard: WatchGuard,
}

/// The dependencies of a reader of a result.
pub(crate) enum DependsOn {
    /// The result, by its key. `newest` is the index of the last change of its inputs, and `is_pending` says whether
    /// one of them is not known yet.
    Result { newest: u64, is_pending: bool },
    /// The inputs of the result, because this reader's result is not the shared one.
    Reads(Reads),
}

impl Queries {
    /// The result for a reader of the state with this revision.
    pub(crate) fn get<T: PartialEq + Any + Send + Sync>(
        &self,
        key: &Key,
        at: u64,
        compute: impl FnOnce() -> (T, Reads),
    ) -> (Arc<T>, DependsOn) {
        let slot = self.slot(key);
        // A panic leaves the slot unchanged.
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let known = slot.as_ref().and_then(|slot| {
            let value = slot.value.upgrade()?.downcast::<T>().ok()?;
            Some((value, slot))
        });
        if let Some((value, slot)) = &known {
            if slot.at > at {
                // The reader has an older state; the newer result stays for others.
                let (value, reads) = compute();
                return (Arc::new(value), DependsOn::Reads(reads));
            }
            if slot.fresh.load(Ordering::Acquire) {
                let depends = DependsOn::Result {
                    newest: slot.newest,
                    is_pending: slot.is_pending,
                };
                return (Arc::clone(value), depends);
            }
        }
        let (value, reads) = compute();
        let value = match known {
            Some((old, _)) if *old == value => old,
            _ => Arc::new(value),
        };
        let erased: Arc<dyn Any + Send + Sync> = value.clone();
        let erased = Arc::downgrade(&erased);
        let (newest, is_pending) = (reads.newest, reads.is_pending);
        match &mut *slot {
            // Mostly the inputs are the same as before.
            Some(slot) => {
                self.registry
                    .watch_query_again(key, &reads, &slot.fresh, &mut slot.guard);
                (slot.value, slot.at) = (erased, at);
                (slot.newest, slot.is_pending) = (newest, is_pending);
            }
            None => {
                let fresh = Arc::new(AtomicBool::new(true));
                let guard = self.registry.watch_query(key, &reads, &fresh);
                *slot = Some(Slot {
                    value: erased,
                    at,
                    newest,
                    is_pending,
                    fresh,
                    guard,
                });
            }
        }
        (value, DependsOn::Result { newest, is_pending })
    }

    /// Drops the results that nobody holds, and what they hold.
    pub(crate) fn drop_unused(&self) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let before = slots.by_key.len();
            slots.by_key.retain(|_, slot| is_held(slot));
            if slots.by_key.len() == before {
                return;
            }
        }
    }

    fn slot(&self, key: &Key) -> Arc<Mutex<Option<Slot>>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.by_key.get(key) {
            return Arc::clone(slot);
        }
        if slots.by_key.len() >= slots.sweep_at {
            slots.by_key.retain(|_, slot| is_held(slot));
            slots.sweep_at = SWEEP_FROM.max(2 * slots.by_key.len());
        }
        let slot = Arc::default();
        slots.by_key.insert(key.clone(), Arc::clone(&slot));
        slot
    }

    /// The number of results that are not swept yet.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.by_key.len()
    }
}

/// Whether the result is held, or is being computed.
fn is_held(slot: &Arc<Mutex<Option<Slot>>>) -> bool {
    if Arc::strong_count(slot) > 1 {
        return true;
    }
    match slot.try_lock() {
        Ok(slot) => slot
            .as_ref()
            .is_some_and(|slot| slot.value.strong_count() > 0),
        Err(_) => true,
    }
}
