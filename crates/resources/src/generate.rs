//! Generates all resources of a proxy from its snapshot.

use std::sync::atomic::{AtomicU64, Ordering};

use legate_proxycfg::Snapshot;

use crate::composer::Composer;
use crate::extension::Extensions;
use crate::kinds;
use crate::memo::Memo;
use crate::set::ResourceSet;

/// Makes resources and memoises those that proxies hold. Shared by all streams.
#[derive(Debug)]
pub struct Generator {
    memo: Memo,
    computed: AtomicU64,
}

/// Counters of a [`Generator`] since its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Parts that were computed because one of their inputs had changed.
    pub computed: u64,
    /// Resources that were encoded because they were not in the memo.
    pub encoded: u64,
}

impl Generator {
    /// A generator with an empty memo.
    pub fn new() -> Self {
        Self {
            memo: Memo::new(),
            computed: AtomicU64::new(0),
        }
    }

    /// All resources of the proxy of this snapshot.
    ///
    /// `previous` is the previous snapshot of the same proxy, with the set made from it. Parts with
    /// the same inputs (the same `Arc`s) are reused from there. A resource that cannot be made
    /// keeps its version from there, or is left out, and is reported in [`ResourceSet::failures`].
    pub fn generate(
        &self,
        snapshot: &Snapshot,
        previous: Option<(&Snapshot, &ResourceSet)>,
    ) -> ResourceSet {
        // Nothing of a proxy of another kind is reused.
        let kind = |of: &Snapshot| std::mem::discriminant(&of.kind);
        let previous = previous.filter(|(last, _)| kind(last) == kind(snapshot));
        let set = previous.map(|(_, set)| set);
        let before = set.and_then(|set| set.extensions.as_ref());
        let extensions = Extensions::of(&self.memo, snapshot, before);
        let mut composer = Composer::new(&self.memo, &self.computed, set, extensions);
        kinds::compose(&mut composer, snapshot, previous.map(|(last, _)| last));
        composer.finish()
    }

    /// The counters.
    pub fn work(&self) -> Work {
        Work {
            computed: self.computed.load(Ordering::Relaxed),
            encoded: self.memo.encoded(),
        }
    }
}

impl Default for Generator {
    fn default() -> Self {
        Self::new()
    }
}
